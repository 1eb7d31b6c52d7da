"""Batches of a dataset's splits, as tensors on the device of the worker.

Mirrors torch/batches.py.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from raybench.data.dataset import Array, Dataset, OnDemand, Split, each, parts
from raybench.data.memory import available_bytes
from raybench.spec.run import RunSpec
from raybench.training.base import Step
from raybench.training.machine import gpu_memory_bytes
from raybench.training.samples import (
    BaseInMemoryBatches,
    BaseOnDemandBatches,
    Room,
    batches_by_split,
    mixes,
)
from raybench.training.tensorflow.model import Inputs, Mixed

WORDS = {4: tf.float32, 2: tf.float16}
"""Types to which uint8 data are bitcast before they are gathered, by size in bytes. `GatherV2` has
GPU kernels for these types, but not for uint8."""


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return a copy of an array on the device."""
    return tf.constant(array, tensor_type_of(array.dtype))


def tensor_type_of(dtype: np.dtype) -> tf.DType:
    """Return the type of the tensor for an array of the given type.

    On GPUs, int32 becomes int64, because TensorFlow keeps int32 tensors in the host's memory.
    """
    tensor_type = tf.as_dtype(dtype)
    return tf.int64 if tensor_type == tf.int32 and has_gpus() else tensor_type


def gathered(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return some rows of a tensor, gathered by a kernel on the tensor's device; runs inside a
    `tf.function`."""
    shape = tensor.shape[1:]
    size = word_bytes(shape)
    if tensor.dtype != tf.uint8 or size is None:
        return tf.gather(tensor, rows)
    words = tf.bitcast(tf.reshape(tensor, [-1, math.prod(shape) // size, size]), WORDS[size])
    return tf.reshape(tf.bitcast(tf.gather(words, rows), tf.uint8), [-1, *shape])


def word_bytes(shape: Sequence[int]) -> int | None:
    """Return the largest word size in bytes (a key of `WORDS`) that divides the size of a uint8
    sample of this shape; None if the sample has an odd number of bytes."""
    return next((size for size in WORDS if math.prod(shape) % size == 0), None)


def has_gpus() -> bool:
    """Return whether the tensors of this process are on a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def free_bytes(share: float = 1) -> int:
    """Return the memory in bytes that is free for tensors: that of the first GPU or, without GPUs,
    that of the machine.

    Memory that TensorFlow has reserved but does not use counts as free. If a GPU does not report
    its memory, the result is 0, and data are read batch by batch.

    Args:
        share: Number of GPUs per worker, less than 1 if several workers share a GPU. The worker may
            use this share of the GPU's total memory.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return available_bytes()
    name = gpus[0].name.split("/device:")[-1]  # in a cluster, the full name begins with the task
    used = int(tf.config.experimental.get_memory_info(name)["current"])
    return max(0, int(gpu_memory_bytes() * min(share, 1)) - used)


Batch = tuple[Inputs, tf.Tensor, Mixed, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
"""Arguments of the traced function that takes several steps (`Trainer._take_steps`):

- inputs, labels and `Mixed`, from which each pass selects some rows;
- these rows, and the weights of the samples, both of shape (steps, passes, samples);
- `Step.shares`, shape (steps, passes, replicas);
- learning rates, shape (steps,).
"""


class InMemoryBatches(BaseInMemoryBatches):
    """Keeps a whole split on the device and gathers batches from it by index."""

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield the arguments of each call of the traced function. A call takes successive steps of
        the same shape.

        Preparing the arguments counts as waiting for data; gathering the samples is part of the
        step.
        """
        shares = tf.ones(len(self._labels)), tf.zeros(len(self._labels))
        mixed = (self._labels, *shares) if self._is_mixed else ()
        for _, group in itertools.groupby(steps, key=lambda step: step.indices.shape):
            started = time.perf_counter()
            chunk = list(group)
            indices = tf.constant(np.stack([step.indices for step in chunk]))
            batch = self._inputs, self._labels, mixed, indices, *_step_numbers(chunk)
            self._waited_s += time.perf_counter() - started
            yield batch


class OnDemandBatches(BaseOnDemandBatches):
    """Reads the inputs of a split in batches, ahead of training."""

    in_memory = InMemoryBatches

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield the arguments of each call of the traced function. A call takes one step.

        The time of waiting for data is measured on the host, since each call of the traced function
        returns only after the device has finished.
        """
        read = self._prefetch.each(self._read_step, steps)
        for _ in steps:
            started = time.perf_counter()
            batch = next(read)
            self._waited_s += time.perf_counter() - started
            yield batch

    def _to_tensor(self, array: np.ndarray) -> tf.Tensor:
        return to_tensor(array)

    def _on_device(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def _read_step(self, step: Step) -> Batch:
        """Read the samples of a step; runs in a thread."""
        rounds = None if step.rounds is None else step.rounds.reshape(-1)
        samples = self._reader.read(step.indices.reshape(-1), rounds)
        mixed = tuple(to_tensor(array) for array in samples.mixed or ())
        indices = np.arange(step.indices.size).reshape(1, *step.indices.shape)
        return (
            each(samples.inputs, to_tensor),
            to_tensor(samples.labels),
            mixed,
            tf.constant(indices),
            *_step_numbers([step]),
        )


Batches = InMemoryBatches | OnDemandBatches


def batches_of(spec: RunSpec, dataset: Dataset) -> dict[str, Batches]:
    """Return the batches of each split, keyed by split name."""
    room = Room(free_bytes(spec.gpus_per_worker), is_gpu=has_gpus())

    def fits(split: Split) -> bool:
        # Samples without a gather kernel would be copied from the GPU to the host at every step.
        pixels = [array for array in parts(split.arrays) if array.dtype == np.uint8]
        if has_gpus() and not all(word_bytes(array.shape[1:]) for array in pixels):
            return False
        return room.reserve(split)

    def in_memory(split: Split) -> InMemoryBatches:
        return InMemoryBatches(each(split.arrays, to_tensor), to_tensor(split.labels))

    on_demand = partial(OnDemandBatches, prefetch=spec.prefetch)
    return batches_by_split(spec, dataset, fits=fits, in_memory=in_memory, on_demand=on_demand)


def signature(split: Split) -> tuple[tf.TensorSpec | dict[str, tf.TensorSpec], tf.TensorSpec]:
    """Return the signature, for `tf.function`, of inputs and labels with any number of rows."""
    labels = tf.TensorSpec([None, *split.labels.shape[1:]], tensor_type_of(split.labels.dtype))
    return each(split.inputs, _any_rows), labels


def training_signature(spec: RunSpec, split: Split) -> list[Any]:
    """Return the signature, for `tf.function`, of a `Batch` of any size, so that smaller batches do
    not need another trace."""
    inputs, labels = signature(split)
    shares = [tf.TensorSpec([None], tf.float32)] * 2
    dtypes = (tf.int64, tf.float32, tf.float32)
    steps = [tf.TensorSpec([None, None, None], dtype) for dtype in dtypes]
    mixed = (labels, *shares) if mixes(spec) else ()
    return [inputs, labels, mixed, *steps, tf.TensorSpec([None], tf.float32)]


def _any_rows(inputs: Array | OnDemand) -> tf.TensorSpec:
    """Return the signature of inputs with any number of rows."""
    return tf.TensorSpec([None, *inputs.shape[1:]], tensor_type_of(np.dtype(inputs.dtype)))


def _step_numbers(steps: list[Step]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the weights, shares and learning rates of steps, as in a `Batch`."""
    weights = tf.constant(np.stack([step.weights for step in steps]))
    shares = tf.constant(np.stack([step.shares for step in steps]))
    return weights, shares, tf.constant([step.learning_rate for step in steps], tf.float32)
