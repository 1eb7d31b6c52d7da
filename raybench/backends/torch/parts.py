"""The splits of a dataset as tensors on the worker's device. Mirrors tensorflow/parts.py."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch

from raybench.backends.base import Step
from raybench.backends.prefetch import Prefetch
from raybench.backends.torch.input_clock import InputClock
from raybench.data.dataset import Split

Batch = tuple[torch.Tensor, ...]


class InMemoryPart:
    """Inputs and labels that are on the device: a batch is an index into them."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self._inputs, self._labels = inputs, labels
        self._waited_s = 0.0

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield inputs, labels and weights of each pass of the steps.

        Counts the time waited; the index itself is a part of the step.
        """
        inputs, labels, device = self._inputs, self._labels, self._inputs.device
        for step in steps:
            for rows, weights in zip(step.indices, step.weights, strict=True):
                started = time.perf_counter()
                index = torch.from_numpy(rows).to(device, non_blocking=True)
                weight = torch.from_numpy(weights).to(device, non_blocking=True)
                self._waited_s += time.perf_counter() - started
                batch = inputs.index_select(0, index), labels.index_select(0, index), weight
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
    """Inputs that are read when they are asked for, `prefetch` batches ahead."""

    def __init__(self, split: Split, device: torch.device, prefetch: int) -> None:
        self._split, self._device = split, device
        self._prefetch = Prefetch(prefetch)
        self._clock = InputClock(device)

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield inputs, labels and weights of each pass of the steps; count the time waited."""
        passes = (zip(step.indices, step.weights, strict=True) for step in steps)
        read = self._prefetch.each(self._read, itertools.chain.from_iterable(passes))
        for _ in range(sum(len(step.indices) for step in steps)):
            with self._clock.waiting():
                batch = self._on_device(next(read))
            yield batch

    def slices(self, rows: slice, size: int) -> Iterator[Batch]:
        """Yield inputs and labels of the rows, `size` at a time."""
        wanted = np.arange(len(self._split))[rows]
        starts = range(0, len(wanted), size)
        chunks = ((wanted[start : start + size],) for start in starts)
        yield from map(self._on_device, self._prefetch.each(self._read, chunks))

    def noise(self, num_rows: int) -> InMemoryPart:
        """Return random inputs with the first labels; nothing is read."""
        labels = torch.from_numpy(self._split.labels[:num_rows]).to(self._device)
        kind = torch.uint8 if self._split.dtype == np.uint8 else torch.float32
        return _noise(self._split.inputs.shape[1:], kind, labels)

    def waited_seconds(self) -> float:
        """Seconds that training has waited for batches so far; waits for the device."""
        return self._clock.seconds()

    def close(self) -> None:
        """End the thread."""
        self._prefetch.close()

    def _read(self, asked: tuple[np.ndarray, ...]) -> Batch:
        """Return inputs, labels and what else goes with the rows, where the device takes them."""
        rows, *others = asked
        arrays = (self._split.read(rows), self._split.labels[rows], *others)
        batch = tuple(torch.from_numpy(array) for array in arrays)
        if self._device.type == "cpu":
            return batch
        with torch.cuda.device(self._device):  # a new thread's own would be the first one
            return tuple(tensor.pin_memory() for tensor in batch)

    def _on_device(self, batch: Batch) -> Batch:
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in batch)


Part = InMemoryPart | OnDemandPart


def part_of(split: Split, device: torch.device, prefetch: int) -> Part:
    """Return a split as the worker takes it; what is in memory needs no `prefetch`."""
    if split.is_on_demand:
        return OnDemandPart(split, device, prefetch)
    inputs, labels = torch.from_numpy(split.array), torch.from_numpy(split.labels)
    return InMemoryPart(inputs.to(device), labels.to(device))


def _noise(shape: tuple[int, ...], kind: torch.dtype, labels: torch.Tensor) -> InMemoryPart:
    shape, device = (len(labels), *shape), labels.device
    if kind == torch.uint8:
        return InMemoryPart(torch.randint(0, 256, shape, dtype=kind, device=device), labels)
    return InMemoryPart(torch.randn(shape, dtype=kind, device=device), labels)
