"""Read, augment and prefetch the samples of a split, for any backend."""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from raybench.data.dataset import Array, Dataset, Split
from raybench.data.inputs import Batch, Rows, each, read_one
from raybench.spec.dataset_spec import Mixup
from raybench.spec.run import RunSpec

if TYPE_CHECKING:
    from raybench.data.augment import Augmenter

Item = TypeVar("Item")
Made = TypeVar("Made")


class Prefetch:
    """Prepares up to `depth` batches ahead of training; if `depth` is 0, each batch on request.

    `readers` threads build batches in parallel; batches are yielded in order. With one thread, the
    code that reads the data needs no locks. Threads are enough, since numpy releases the GIL on
    large arrays. Prefetching starts with the first batch of an evaluation interval, and at its end
    the queue is empty, so no batch is prepared outside training time or pending when a run stops,
    is saved or resumes.
    """

    def __init__(self, depth: int, readers: int = 1) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(max(1, readers), "raybench-prefetch") if depth else None

    def each(self, make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield `make(item)` for all items, in order; its error is raised when the item is due."""
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
        finally:  # batches are left if training ended with an error
            for batch in waiting:
                batch.cancel()

    def close(self) -> None:
        """Stop the threads after their current batches."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


AHEAD = 2
"""Smallest depth of prefetching if samples are augmented."""
Read = Callable[[Rows], Batch]


@dataclass(frozen=True)
class Samples:
    """Samples at some rows of a split, in memory."""

    inputs: Batch
    labels: Array
    mixed: tuple[Array, Array, Array] | None = None
    """With mixup: labels of the sample mixed into each sample, and weights of the losses computed
    with `labels` and with these labels. A weight is a sample's share in the mix, times its
    `Split.weights`."""


class Reader:
    """Reads and augments samples of a split.

    Safe to use from several threads; `OnDemand` inputs are read by only one of them at a time.
    """

    def __init__(
        self, split: Split, read: Read | None = None, augmenter: "Augmenter | None" = None
    ):
        self.split = split
        self._read, self._augmenter = read or split.read, augmenter

    def prefetch(self, number: int) -> Prefetch:
        """Return a `Prefetch` of depth `number` (at least AHEAD with augmentation).

        It has `number` threads, but only one if on-demand samples are not augmented.
        """
        depth = max(number, AHEAD) if self._augmenter else number
        return Prefetch(depth, number if self._augmenter or not self.split.is_on_demand else 1)

    def read(self, rows: Rows, rounds: Rows | None = None) -> Samples:
        """Return the samples at `rows`, in this order; `rounds` (see `Step.rounds`) seeds their
        augmentation."""
        inputs, labels = self._read(rows), self.split.labels[rows]
        if self._augmenter is None:
            return Samples(inputs, labels)
        assert rounds is not None
        changed = self._augmenter(inputs, rows, rounds)
        if changed.other_rows is None:
            return Samples(changed.inputs, labels)
        assert changed.shares is not None
        weights, other_weights = changed.shares, 1 - changed.shares
        if self.split.weights is not None:
            weights = weights * self.split.weights[rows]
            other_weights = other_weights * self.split.weights[changed.other_rows]
        other_labels = self.split.labels[changed.other_rows]
        return Samples(changed.inputs, labels, (other_labels, weights, other_weights))


class BaseInMemoryBatches:
    """Holds inputs and labels on the device and selects batches from them by index; each backend
    has a subclass."""

    def __init__(self, inputs: Any, labels: Any, *, mixed: bool = False) -> None:
        """With `mixed`, mix each sample with itself, to warm up for training on mixed samples."""
        self._inputs, self._labels, self._is_mixed = inputs, labels, mixed
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, `size` at a time."""
        inputs, labels = self._cut(self._inputs, self._labels, rows)
        for start in range(0, len(labels), size):
            yield self._cut(inputs, labels, slice(start, start + size))

    def stand_in(self, num_rows: int) -> Self:
        """Return batches of the first `num_rows` samples, for the warm-up."""
        inputs, labels = self._cut(self._inputs, self._labels, slice(num_rows))
        return type(self)(inputs, labels, mixed=self._is_mixed)

    def waited_seconds(self) -> float:
        """Return the seconds that training has waited for batches; waits for the device."""
        return self._waited_s

    def close(self) -> None:
        """Do nothing."""

    def _cut(self, inputs: Any, labels: Any, rows: slice) -> tuple[Any, Any]:
        return each(inputs, lambda array: array[rows]), labels[rows]


class BaseOnDemandBatches:
    """Reads inputs batch by batch, `prefetch` batches ahead; each backend has a subclass."""

    in_memory: Any
    """The backend's subclass of `BaseInMemoryBatches`."""
    _sent: Any
    """Method that converts an array to a tensor for `_on_device`."""
    _on_device: Any
    """Method that moves a tensor to the device."""

    def __init__(self, reader: Reader, prefetch: int, *, mixed: bool = False) -> None:
        """`mixed` says whether the reader mixes samples."""
        self._reader, self._is_mixed = reader, mixed
        self._prefetch = reader.prefetch(prefetch)
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, `size` at a time."""
        positions = np.arange(len(self._reader.split))[rows]
        chunks = (positions[start : start + size] for start in range(0, len(positions), size))
        for inputs, labels in self._prefetch.each(self._read, chunks):
            yield each(inputs, self._on_device), self._on_device(labels)

    def stand_in(self, num_rows: int) -> Any:
        """Return in-memory batches of random inputs with the first `num_rows` labels, for the
        warm-up, which reads no sample.

        Integer inputs repeat the first sample, because random integers might exceed a vocabulary.
        """
        split, drawn = self._reader.split, np.random.default_rng(0)
        labels = split.labels[:num_rows].copy()

        def made(array: Any) -> Any:
            shape, dtype = (len(labels), *array.shape[1:]), np.dtype(array.dtype)
            if dtype.kind == "i":
                return np.repeat(read_one(array, np.zeros(1, np.int64)), len(labels), axis=0)
            if dtype == np.uint8:
                return drawn.integers(0, 256, shape, np.uint8)
            return drawn.standard_normal(shape, np.float32)

        inputs = each(split.inputs, lambda array: self._on_device(self._sent(made(array))))
        return self.in_memory(inputs, self._on_device(self._sent(labels)), mixed=self._is_mixed)

    def waited_seconds(self) -> float:
        """Return the seconds that training has waited for batches; waits for the device."""
        return self._waited_s

    def close(self) -> None:
        """Stop the threads."""
        self._prefetch.close()

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        samples = self._reader.read(rows)
        return each(samples.inputs, self._sent), self._sent(samples.labels)


def batches_by_split(
    spec: RunSpec,
    dataset: Dataset,
    *,
    fits: Callable[[Split], bool],
    in_memory: Callable[[Split], Any],
    on_demand: Callable[..., Any],
) -> dict[str, Any]:
    """Return the batches of each split that has samples, by name of the split.

    Args:
        spec: The run spec.
        dataset: The dataset.
        fits: Returns whether the device has room for a whole split, and reserves it.
        in_memory: Puts a split on the device.
        on_demand: Returns batches that are read on demand: `on_demand(reader, mixed=...)`. Used for
            splits that do not fit, and for training samples that are augmented.
    """
    batches = {}
    for name, split in dataset.splits.items():
        if name == "train" and spec.augment:
            batches[name] = on_demand(_augmenting_reader(spec, split), mixed=mixes(spec))
        elif len(split):
            is_on_demand = split.is_on_demand or not fits(split)
            batches[name] = on_demand(Reader(split)) if is_on_demand else in_memory(split)
    return batches


def _augmenting_reader(spec: RunSpec, split: Split) -> Reader:
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
    """Return whether training samples are mixed with each other (mixup)."""
    return any(isinstance(augmentation, Mixup) for augmentation in spec.augment)
