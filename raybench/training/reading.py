"""Samples of a split read by rows, augmented where asked for, and prepared ahead by threads;
for any backend.
"""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from raybench.data.dataset import Array, Split
from raybench.data.inputs import Batch, Rows, each, repeated_first
from raybench.spec.dataset_spec import Mixup
from raybench.spec.run import RunSpec
from raybench.training.base import Step

if TYPE_CHECKING:
    from raybench.data.augment import Augmenter

Item = TypeVar("Item")
Made = TypeVar("Made")


class Prefetch:
    """Makes batches, `depth` of them while earlier ones are trained on; with 0 when asked for.

    One thread makes them one after another, so what reads the data needs no locks; or `readers`
    threads make as many at a time, and they still come in their order. Threads, not processes:
    numpy works on large arrays without the interpreter's lock. They begin with the first batch of
    an interval and are done at its end: nothing is prepared off the training clock, and where a run
    stops, is saved or continued, no batch is under way.
    """

    def __init__(self, depth: int, readers: int = 1) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(max(1, readers), "raybench-prefetch") if depth else None

    def each(self, make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield `make(item)` of all items; what one raises is raised where its batch would be."""
        if self._pool is None:
            yield from map(make, items)
            return
        waiting: deque[Future[Made]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(make, item))
                if len(waiting) > self._depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # where training ended with an error
            for batch in waiting:
                batch.cancel()

    def close(self) -> None:
        """End the threads, after the batches that they are making."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


AHEAD = 2
"""Batches that are augmented ahead, at least."""
Read = Callable[[Rows], Batch]


@dataclass(frozen=True)
class Samples:
    """Samples read of some rows."""

    inputs: Batch
    labels: Array
    mixed: tuple[Array, Array, Array] | None = None
    """Labels of the samples that these are mixed with, and what the loss by a sample's own label
    counts and that by the other's: their shares, each times the weight of its own sample."""


class Reader:
    """Reads samples of a split, and changes them; any number of threads may ask it.

    Samples on demand are read by one of them at a time (`OnDemand`).
    """

    def __init__(
        self, split: Split, read: Read | None = None, augmenter: "Augmenter | None" = None
    ):
        self.split = split
        self._read, self._augmenter = read or split.read, augmenter

    def prefetch(self, number: int) -> Prefetch:
        """Return what prepares so many batches ahead, by as many threads where that helps: where
        they do more than to read one after the other."""
        depth = max(number, AHEAD) if self._augmenter else number
        return Prefetch(depth, number if self._augmenter or not self.split.is_on_demand else 1)

    def read(self, rows: Rows, rounds: Rows | None = None) -> Samples:
        """Return the samples at `rows`, in that order; `rounds` of them is for augmentation."""
        inputs, labels = self._read(rows), self.split.labels[rows]
        if self._augmenter is None:
            return Samples(inputs, labels)
        assert rounds is not None
        changed = self._augmenter(inputs, rows, rounds)
        if changed.other_rows is None:
            return Samples(changed.inputs, labels)
        assert changed.shares is not None
        own, rest = changed.shares, 1 - changed.shares
        if self.split.weights is not None:
            own = own * self.split.weights[rows]
            rest = rest * self.split.weights[changed.other_rows]
        others = self.split.labels[changed.other_rows]
        return Samples(changed.inputs, labels, (others, own, rest))


class BatchesInMemory:
    """Inputs and labels that are on the device: a batch is an index. A framework's has the rest."""

    _noise_like: Any
    """Returns random pixels or numbers in the shape of an array of inputs."""

    def __init__(self, inputs: Any, labels: Any, *, mixed: bool = False) -> None:
        """`mixed`: each sample with itself, to warm up what mixes them."""
        self._inputs, self._labels, self._is_mixed = inputs, labels, mixed
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, `size` at a time."""
        inputs, labels = self._cut(self._inputs, self._labels, rows)
        for start in range(0, len(labels), size):
            yield self._cut(inputs, labels, slice(start, start + size))

    def noise(self, num_rows: int) -> Self:
        """Return random inputs with the first labels: throw-away data of the same kind."""
        inputs, labels = self._cut(self._inputs, self._labels, slice(num_rows))
        return type(self)(each(inputs, self._noise_like), labels, mixed=self._is_mixed)

    def waited_seconds(self) -> float:
        """Seconds that training has waited for batches so far; waits for the device."""
        return self._waited_s

    def close(self) -> None:
        """Nothing to end."""

    def _cut(self, inputs: Any, labels: Any, rows: slice) -> tuple[Any, Any]:
        return each(inputs, lambda one: one[rows]), labels[rows]


class BatchesOnDemand:
    """Inputs that are read on demand, `prefetch` batches ahead. A framework's has the rest."""

    in_memory: Any
    _sent: Any
    """Returns an array as a tensor that the device, by `_on_device`, takes."""
    _on_device: Any

    def __init__(self, reader: Reader, prefetch: int, *, mixed: bool = False) -> None:
        """`mixed`: whether the reader mixes samples."""
        self._reader, self._is_mixed = reader, mixed
        self._prefetch = reader.prefetch(prefetch)
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, `size` at a time."""
        wanted = np.arange(len(self._reader.split))[rows]
        chunks = (wanted[start : start + size] for start in range(0, len(wanted), size))
        for inputs, labels in self._prefetch.each(self._read, chunks):
            yield each(inputs, self._on_device), self._on_device(labels)

    def noise(self, num_rows: int) -> Any:
        """Return random inputs with the first labels, in memory; of whole numbers the first sample
        alone is read, as any others might be beyond a vocabulary."""
        split = self._reader.split
        labels = split.labels[:num_rows].copy()

        def first(one: Any) -> Any:
            if np.dtype(one.dtype).kind == "i":
                return repeated_first(one, len(labels))
            return np.zeros((len(labels), *one.shape[1:]), one.dtype)

        inputs = each(split.inputs, lambda one: self._on_device(self._sent(first(one))))
        there = self.in_memory(inputs, self._on_device(self._sent(labels)), mixed=self._is_mixed)
        return there.noise(num_rows)

    def waited_seconds(self) -> float:
        """Seconds that training has waited for batches so far; waits for the device."""
        return self._waited_s

    def close(self) -> None:
        """End the threads."""
        self._prefetch.close()

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        samples = self._reader.read(rows)
        return each(samples.inputs, self._sent), self._sent(samples.labels)


def training_reader(spec: RunSpec, split: Split) -> Reader | None:
    """Return what reads and augments the training samples; None where nothing is augmented."""
    if not spec.augment:
        return None
    read = _one_at_a_time(split.read) if split.is_on_demand else split.read
    build = importlib.import_module("raybench.data.augment").Augmenter
    return Reader(split, read, build(spec.augment, split, spec.seed, read))


def _one_at_a_time(read: Read) -> Read:
    lock = Lock()

    def locked(rows: Rows) -> Batch:
        with lock:
            return read(rows)

    return locked


def mixes(spec: RunSpec) -> bool:
    """Whether training samples come mixed with others."""
    return any(isinstance(one, Mixup) for one in spec.augment)


def rounds_of(step: Step) -> "np.ndarray | list[None]":
    """Return the rounds of each pass of a step, or None for each where it has none."""
    return [None] * len(step.indices) if step.rounds is None else step.rounds
