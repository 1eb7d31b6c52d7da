"""The splits of a dataset as tensors on the worker's device. Mirrors torch/parts.py."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from raybench.backends.base import Step
from raybench.backends.prefetch import Prefetch
from raybench.backends.tensorflow.arrays import to_tensor
from raybench.data.dataset import Split

Batch = tuple[tf.Tensor, ...]


class InMemoryPart:
    """Inputs and labels that are on the device: a batch is an index into them."""

    def __init__(self, inputs: tf.Tensor, labels: tf.Tensor) -> None:
        self._inputs, self._labels = inputs, labels
        self._waited_s = 0.0

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield what the traced function takes, as many steps in a call as have one shape.

        That is inputs, labels, and (steps, passes, samples) rows of these and their weights,
        and (steps,) rates. Counts the time waited; the index itself is a part of the step.
        """
        for _, group in itertools.groupby(steps, key=lambda step: step.indices.shape):
            started = time.perf_counter()
            chunk = list(group)
            indices = tf.constant(np.stack([step.indices for step in chunk]))
            batch = self._inputs, self._labels, indices, *_weights_and_rates(chunk)
            self._waited_s += time.perf_counter() - started
            yield batch

    def slices(self, rows: slice, size: int) -> Iterator[Batch]:
        """Yield inputs and labels of the rows, `size` at a time."""
        inputs, labels = self._inputs[rows], self._labels[rows]
        for start in range(0, len(labels), size):
            batch = slice(start, start + size)
            yield inputs[batch], labels[batch]

    def noise(self, num_rows: int) -> "InMemoryPart":
        """Return random inputs with the first labels: throw-away data of the same kind."""
        return _noise(self._inputs.shape[1:], self._inputs.dtype, self._labels[:num_rows])

    def waited_seconds(self) -> float:
        """Seconds that training has waited for batches so far."""
        return self._waited_s

    def close(self) -> None:
        """Nothing to end."""


class OnDemandPart:
    """Inputs that are read when they are asked for, the batches of `prefetch` steps ahead."""

    def __init__(self, split: Split, prefetch: int) -> None:
        self._split = split
        self._prefetch = Prefetch(prefetch)
        self._waited_s = 0.0

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield what the traced function takes, one step in a call: as in memory, of its samples.

        Counts the time waited. A call returns when the device is done with it, so the time on
        the host is what training waits.
        """
        read = self._prefetch.each(self._read_step, steps)
        for _ in steps:
            started = time.perf_counter()
            batch = next(read)
            self._waited_s += time.perf_counter() - started
            yield batch

    def slices(self, rows: slice, size: int) -> Iterator[Batch]:
        """Yield inputs and labels of the rows, `size` at a time."""
        wanted = np.arange(len(self._split))[rows]
        chunks = (wanted[start : start + size] for start in range(0, len(wanted), size))
        return self._prefetch.each(self._read, chunks)

    def noise(self, num_rows: int) -> InMemoryPart:
        """Return random inputs with the first labels; nothing is read."""
        labels = to_tensor(self._split.labels[:num_rows])
        return _noise(self._split.inputs.shape[1:], tf.as_dtype(self._split.dtype), labels)

    def waited_seconds(self) -> float:
        """Seconds that training has waited for batches so far."""
        return self._waited_s

    def close(self) -> None:
        """End the thread."""
        self._prefetch.close()

    def _read_step(self, step: Step) -> Batch:
        inputs, labels = self._read(step.indices.reshape(-1))
        indices = np.arange(step.indices.size).reshape(1, *step.indices.shape)
        return inputs, labels, tf.constant(indices), *_weights_and_rates([step])

    def _read(self, rows: np.ndarray) -> Batch:
        return tf.constant(self._split.read(rows)), tf.constant(self._split.labels[rows])


Part = InMemoryPart | OnDemandPart


def part_of(split: Split, prefetch: int) -> Part:
    """Return a split as the worker takes it; what is in memory needs no `prefetch`."""
    if split.is_on_demand:
        return OnDemandPart(split, prefetch)
    return InMemoryPart(to_tensor(split.array), to_tensor(split.labels))


def signature(split: Split) -> list[tf.TensorSpec]:
    """Return that of inputs and labels of as many rows as there may be."""
    shape = [None, *split.inputs.shape[1:]]
    return [tf.TensorSpec(shape, tf.as_dtype(split.dtype)), tf.TensorSpec([None], tf.int64)]


def _weights_and_rates(steps: list[Step]) -> Batch:
    weights = tf.constant(np.stack([step.weights for step in steps]))
    return weights, tf.constant([step.learning_rate for step in steps], tf.float32)


def _noise(shape: tuple[int, ...], kind: tf.DType, labels: tf.Tensor) -> InMemoryPart:
    shape = (len(labels), *shape)
    if kind == tf.uint8:
        return InMemoryPart(tf.cast(tf.random.uniform(shape, 0, 256, tf.int32), kind), labels)
    return InMemoryPart(tf.random.normal(shape, dtype=kind), labels)
