"""Read, augment and prefetch the samples of a split, for any backend."""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from raybench.data.dataset import Array, Batch, Dataset, Rows, Split, each, read_one
from raybench.spec.dataset_spec import Mixup
from raybench.spec.run import RunSpec

if TYPE_CHECKING:
    from raybench.data.augment import Augmenter

Item = TypeVar("Item")
Made = TypeVar("Made")


class Prefetch:
    """Prepares batches in other threads, ahead of training.

    Batches are yielded in order. Threads suffice, since numpy releases the GIL on large arrays.
    Prefetching starts with the first batch after an evaluation, and is complete before the next
    evaluation. Therefore no batch is prepared outside training time, and none is pending when a run
    stops, is saved or is resumed.
    """

    def __init__(self, depth: int, readers: int = 1) -> None:
        """Start the threads.

        Args:
            depth: Maximum number of batches that are prepared ahead; 0 to prepare each batch when
                it is requested, without threads.
            readers: Number of threads. With a single thread, the code that reads the data needs no
                locks.
        """
        self._depth = depth
        self._pool = ThreadPoolExecutor(max(1, readers), "raybench-prefetch") if depth else None

    def each(self, make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield `make(item)` for all items, in order.

        An error of `make` is raised when the result of its item would be yielded.
        """
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
        finally:  # batches are pending only if training has ended with an error
            for batch in waiting:
                batch.cancel()

    def close(self) -> None:
        """Stop the threads after their current batches."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


AHEAD = 2
"""Minimum number of batches that are prefetched if samples are augmented."""
Read = Callable[[Rows], Batch]
"""Function that returns the inputs at some rows of a split."""


@dataclass(frozen=True)
class Samples:
    """Samples at some rows of a split, in memory."""

    inputs: Batch
    labels: Array
    mixed: tuple[Array, Array, Array] | None = None
    """With mixup: labels of the sample that was mixed into each sample, weights of the losses for
    `labels`, and weights of the losses for the labels in this tuple. Each weight is the share of
    one sample in the mix, multiplied by the sample's weight in the data (`Split.weights`)."""


class Reader:
    """Reads and augments samples of a split.

    Several threads can use a reader at the same time; inputs of the class `OnDemand` are read by
    only one of them at a time.
    """

    def __init__(
        self, split: Split, read: Read | None = None, augmenter: "Augmenter | None" = None
    ):
        """Create a reader.

        Args:
            split: The split.
            read: Function that reads the inputs; None for `split.read`.
            augmenter: Augments the inputs; None for no augmentation.
        """
        self.split = split
        self._read, self._augmenter = read or split.read, augmenter

    def prefetch(self, number: int) -> Prefetch:
        """Return a `Prefetch` for the batches of this reader.

        With augmentation, it has `number` threads and prepares at least AHEAD batches ahead.
        Without, it prepares `number` batches ahead, with a single thread if the samples are read on
        demand.
        """
        depth = max(number, AHEAD) if self._augmenter else number
        return Prefetch(depth, number if self._augmenter or not self.split.is_on_demand else 1)

    def read(self, rows: Rows, rounds: Rows | None = None) -> Samples:
        """Return the samples at some rows.

        Args:
            rows: Rows of the split; the samples are in this order.
            rounds: Number of times that each sample was used before (`Step.rounds`), which seeds
                its augmentation; None without augmentation.
        """
        inputs, labels = self._read(rows), self.split.labels[rows]
        if self._augmenter is None:
            return Samples(inputs, labels)
        assert rounds is not None
        augmented = self._augmenter(inputs, rows, rounds)
        if augmented.other_rows is None:
            return Samples(augmented.inputs, labels)
        assert augmented.shares is not None
        weights, other_weights = augmented.shares, 1 - augmented.shares
        if self.split.weights is not None:
            weights = weights * self.split.weights[rows]
            other_weights = other_weights * self.split.weights[augmented.other_rows]
        other_labels = self.split.labels[augmented.other_rows]
        return Samples(augmented.inputs, labels, (other_labels, weights, other_weights))


class BaseInMemoryBatches:
    """Keeps inputs and labels of a split on the device, and selects batches from them by index.

    Each backend has a subclass.
    """

    def __init__(self, inputs: Any, labels: Any, *, mixed: bool = False) -> None:
        """Create the batches of a split.

        Args:
            inputs: Inputs of all samples, on the device.
            labels: Labels of all samples, on the device.
            mixed: Whether each sample is mixed with itself, for the warm-up of training with mixup.
        """
        self._inputs, self._labels, self._is_mixed = inputs, labels, mixed
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, in batches of at most `size` samples."""
        inputs, labels = self._select(self._inputs, self._labels, rows)
        for start in range(0, len(labels), size):
            yield self._select(inputs, labels, slice(start, start + size))

    def stand_in(self, num_rows: int) -> Self:
        """Return an object with only the first `num_rows` samples, for the warm-up."""
        inputs, labels = self._select(self._inputs, self._labels, slice(num_rows))
        return type(self)(inputs, labels, mixed=self._is_mixed)

    def waited_seconds(self) -> float:
        """Return the seconds for which training has waited for batches; synchronizes the device."""
        return self._waited_s

    def close(self) -> None:
        """Do nothing; there are no threads to stop."""

    def _select(self, inputs: Any, labels: Any, rows: slice) -> tuple[Any, Any]:
        """Return the inputs and labels at some rows."""
        return each(inputs, lambda array: array[rows]), labels[rows]


class BaseOnDemandBatches:
    """Reads the inputs of a split in batches, ahead of training; each backend has a subclass."""

    in_memory: Any
    """The backend's subclass of `BaseInMemoryBatches`."""
    _to_tensor: Any
    """Method that converts an array to a tensor that `_on_device` accepts."""
    _on_device: Any
    """Method that moves a tensor to the device."""

    def __init__(self, reader: Reader, prefetch: int, *, mixed: bool = False) -> None:
        """Create the batches of a split.

        Args:
            reader: Reader of the split.
            prefetch: Number of batches that are read ahead (see `Reader.prefetch`).
            mixed: Whether the reader mixes samples (mixup).
        """
        self._reader, self._is_mixed = reader, mixed
        self._prefetch = reader.prefetch(prefetch)
        self._waited_s = 0.0

    def slices(self, rows: slice, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and labels of the rows, in batches of at most `size` samples."""
        positions = np.arange(len(self._reader.split))[rows]
        chunks = (positions[start : start + size] for start in range(0, len(positions), size))
        for inputs, labels in self._prefetch.each(self._read, chunks):
            yield each(inputs, self._on_device), self._on_device(labels)

    def stand_in(self, num_rows: int) -> Any:
        """Return in-memory batches of random inputs with the first `num_rows` labels, for the
        warm-up, which therefore reads no samples.

        Integer inputs repeat the first sample, because random integers might exceed a vocabulary.
        """
        split, generator = self._reader.split, np.random.default_rng(0)
        labels = split.labels[:num_rows].copy()

        def random_inputs(array: Any) -> Any:
            shape, dtype = (len(labels), *array.shape[1:]), np.dtype(array.dtype)
            if dtype.kind == "i":
                return np.repeat(read_one(array, np.zeros(1, np.int64)), len(labels), axis=0)
            if dtype == np.uint8:
                return generator.integers(0, 256, shape, np.uint8)
            return generator.standard_normal(shape, np.float32)

        inputs = each(
            split.inputs, lambda array: self._on_device(self._to_tensor(random_inputs(array)))
        )
        labels_there = self._on_device(self._to_tensor(labels))
        return self.in_memory(inputs, labels_there, mixed=self._is_mixed)

    def waited_seconds(self) -> float:
        """Return the seconds for which training has waited for batches; synchronizes the device."""
        return self._waited_s

    def close(self) -> None:
        """Stop the threads."""
        self._prefetch.close()

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        """Read inputs and labels of an evaluation batch, as tensors; runs in a thread."""
        samples = self._reader.read(rows)
        return each(samples.inputs, self._to_tensor), self._to_tensor(samples.labels)


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
        fits: Function that reserves memory on the device for a whole split, and returns whether it
            fits.
        in_memory: Function that puts a split on the device and returns its batches.
        on_demand: Function that returns batches that are read on demand, called as
            `on_demand(reader, mixed=...)`; used for splits that do not fit, and for training
            samples that are augmented.
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
    """Return a reader that augments samples as the run spec says."""
    read = _with_lock(split.read) if split.is_on_demand else split.read
    build = importlib.import_module("raybench.data.augment").Augmenter
    return Reader(split, read, build(spec.augment, split, spec.seed, read))


def _with_lock(read: Read) -> Read:
    """Return a function that calls `read` in only one thread at a time."""
    lock = Lock()

    def locked(rows: Rows) -> Batch:
        with lock:
            return read(rows)

    return locked


def mixes(spec: RunSpec) -> bool:
    """Return whether training samples are mixed with each other (mixup)."""
    return any(isinstance(augmentation, Mixup) for augmentation in spec.augment)
