"""The samples of a run, for both backends: division into optimizer steps, reading, augmentation,
prefetching, and the memory that samples may take."""

import importlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from raybench.data.dataset import (
    Array,
    Batch,
    Dataset,
    Rows,
    Split,
    batches,
    each,
    epoch_order,
    parts,
    read_one,
    shard,
)
from raybench.spec.dataset_spec import Mixup
from raybench.spec.run import RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import DistributedContext, Step


def training_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> Iterator[tuple[Step, int]]:
    """Yield this worker's steps without end, each with the number of samples that all workers
    together process in the step.

    Args:
        spec: The run spec.
        dataset: Dataset of the run.
        world: The group of workers.
        samples: Number of samples of all workers to skip, in a resumed run; they must be whole
            steps.
    """
    schedule = build_schedule(spec, dataset.num_train_samples)
    num_rows = len(dataset.train)
    frozen = frozen_samples(spec, dataset.num_train_samples)
    # With mixup, the weight of a loss depends on both mixed samples, see `Samples.mixed`.
    sample_weights = None if mixes(spec) else dataset.train.weights
    least = _min_batch(spec)
    epoch, first = divmod(samples, dataset.num_train_samples)
    while True:
        order = epoch_order(dataset.num_train_samples, seed=spec.seed, epoch=epoch)
        rows = order % num_rows
        rounds = epoch * dataset.repeat + order // num_rows if spec.augment else None
        for part in batches(len(order), size=spec.global_batch_size, least=least, first=first):
            batch = rows[part]
            step = make_step(
                spec,
                batch,
                world,
                schedule(float(samples)),
                sample_weights=sample_weights,
                rounds=None if rounds is None else rounds[part],
                is_frozen=samples < frozen,
            )
            yield step, len(batch)
            samples += len(batch)
        epoch, first = epoch + 1, 0


def _min_batch(spec: RunSpec) -> int:
    """Return the smallest global batch size of a step: two samples per worker, because batch
    normalization fails on a single sample; or 1 if the batch size per worker is 1."""
    return 2 * spec.num_workers if spec.batch_size_per_worker > 1 else 1


def make_step(
    spec: RunSpec,
    batch: Rows,
    world: DistributedContext,
    learning_rate: float,
    *,
    sample_weights: Array | None = None,
    rounds: Rows | None = None,
    is_frozen: bool = False,
) -> Step:
    """Return this worker's step on a global batch.

    The worker's share of the global batch is cut into passes (forward and backward) of the batch
    size per worker. If the remainder of an epoch was added to the batch, passes are one or two
    samples larger. A share that does not fill its passes is padded with samples of weight 0, at
    most one per pass. An empty share becomes one sample of weight 0, so that every rank takes part
    in every gradient exchange. If the process holds several replicas, each replica gets the share
    of one worker. In each pass, their shares are padded to the same size and lie next to each
    other, in the order of the replicas.

    Args:
        spec: The run spec.
        batch: Positions of the samples in the training split, shape (samples,).
        world: The group of workers.
        learning_rate: Learning rate of the step.
        sample_weights: Weight of each sample of the training split; None for equal weights.
        rounds: Number of times that each sample was used before (`Step.rounds`), shape (samples,);
            None without augmentation.
        is_frozen: Whether only the head is trained.
    """
    shares = _shares(spec, batch, world)
    longest = max(map(len, shares))
    passes = min(spec.accumulate, max(1, math.ceil(longest / spec.batch_size_per_worker)))
    width = max(1, math.ceil(longest / passes))

    def arrange(values: np.ndarray) -> np.ndarray:
        """Arrange one value per sample of the batch in the shape (passes, samples of all replicas),
        padded with 0."""
        rows = np.zeros((len(shares), passes * width), values.dtype)
        for row, share in zip(rows, _shares(spec, values, world), strict=True):
            row[: len(share)] = share
        return rows.reshape(len(rows), passes, -1).swapaxes(0, 1).reshape(passes, -1)

    weights = np.ones(len(batch), np.float32) if sample_weights is None else sample_weights[batch]
    sample_shares = arrange(np.full(len(batch), 1 / len(batch), np.float32))
    return Step(
        indices=arrange(batch),
        weights=arrange(weights / np.float32(len(batch))),
        shares=sample_shares.reshape(passes, len(shares), -1).sum(axis=2),
        rounds=None if rounds is None else arrange(rounds),
        learning_rate=learning_rate,
        num_samples=sum(map(len, shares)),
        is_frozen=is_frozen,
    )


def _shares(spec: RunSpec, values: np.ndarray, world: DistributedContext) -> list[np.ndarray]:
    """Return the values that belong to each replica of this process, one array per replica.

    `values` has one value per sample of the global batch.
    """
    replicas = spec.replicas_per_process
    first, num_all = world.rank * replicas, world.num_workers * replicas
    return [
        values[shard(len(values), rank=first + replica, num_workers=num_all)]
        for replica in range(replicas)
    ]


def warm_up_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> list[Step]:
    """Return the steps with which the trainer warms up.

    The first step has the global batch size. On GPUs, a second step has the size of an epoch's last
    batch if that differs, because a GPU picks kernels for every shape (cuDNN benchmarking). If the
    backbone is frozen at first and later trained, each step is returned for both phases. `samples`
    is the number of samples of all workers so far.
    """
    steps = [warm_up_step(spec, dataset, world, samples)]
    *_, last = batches(
        dataset.num_train_samples, size=spec.global_batch_size, least=_min_batch(spec)
    )
    num_last = last.stop - last.start
    if spec.gpus_per_worker and num_last != min(spec.global_batch_size, dataset.num_train_samples):
        steps.append(warm_up_step(spec, dataset, world, samples, num_samples=num_last))
    if not steps[0].is_frozen or frozen_samples(spec, 1) >= spec.epochs:
        return steps
    return [*steps, *(replace(step, is_frozen=False) for step in steps)]


def warm_up_step(
    spec: RunSpec,
    dataset: Dataset,
    world: DistributedContext,
    samples: int = 0,
    *,
    num_samples: int | None = None,
) -> Step:
    """Return a step on the first rows of the training split; the warm-up uses only its shape.

    Args:
        spec: The run spec.
        dataset: Dataset of the run.
        world: The group of workers.
        samples: Number of samples of all workers so far, which decides whether only the head is
            trained.
        num_samples: Number of samples of all workers in the step; None for the global batch size.
    """
    size = min(num_samples or spec.global_batch_size, dataset.num_train_samples)
    batch = np.arange(size) % len(dataset.train)
    rounds = np.zeros_like(batch) if spec.augment else None
    is_frozen = samples < frozen_samples(spec, dataset.num_train_samples)
    return make_step(spec, batch, world, 0.0, rounds=rounds, is_frozen=is_frozen)


def take_until(steps: Iterator[tuple[Step, int]], num_samples: int) -> tuple[list[Step], int]:
    """Take steps from an iterator until all workers together have at least `num_samples` samples.

    Returns:
        The steps, and the number of samples of all workers in them.
    """
    chunk: list[Step] = []
    seen = 0
    while seen < num_samples:
        step, size = next(steps)
        chunk.append(step)
        seen += size
    return chunk, seen


def frozen_samples(spec: RunSpec, samples_per_epoch: int) -> float:
    """Return the number of samples for which the backbone is frozen; infinite for `frozen_epochs:
    all`.

    `samples_per_epoch` sets the unit: with 1, the result is in epochs.
    """
    if spec.frozen_epochs == "all":
        return math.inf
    return spec.frozen_epochs * samples_per_epoch


def mixes(spec: RunSpec) -> bool:
    """Return whether training samples are mixed with each other (mixup)."""
    return any(isinstance(augmentation, Mixup) for augmentation in spec.augment)


if TYPE_CHECKING:
    from raybench.data.augment import Augmenter

Item = TypeVar("Item")
Made = TypeVar("Made")


class Prefetch:
    """Prepares batches in other threads, ahead of training.

    Threads suffice, since numpy releases the GIL on large arrays. Prefetching starts with the first
    batch after an evaluation, and is complete before the next evaluation. Therefore no batch is
    prepared outside training time, and none is pending when a run stops, is saved or is resumed.
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
    """With mixup, three arrays: the labels of the second sample of each mixed pair, the weights of
    the losses for `labels`, and the weights of the losses for the second labels. A weight is the
    share of a sample in its mix, multiplied by the sample's weight in the dataset
    (`Split.weights`). None without mixup."""


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

        It has `number` threads and prepares `number` batches ahead, with two exceptions: with
        augmentation, it prepares at least AHEAD batches ahead; without augmentation, it has a
        single thread if the samples are read on demand.
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


SHARE = 0.5
"""Share of the machine's free memory that all samples of a run may take on a CPU."""
SHARE_OF_GPU = 0.2
"""Share of a GPU's free memory that all samples of a run may take. Gradients, optimizer state and
activations are allocated after the data. If the data left too little memory, a run would fail as if
its batch size were too large for the GPU."""
MAX_VALUES = 2**24
"""Maximum number of values that enter or leave a model in one pass of an evaluation."""
TOKEN_VALUES = 1024
"""Number of values that one token counts as, because models turn each token into a vector of about
this length."""


def num_bytes(split: Split) -> int:
    """Return the size of a split's inputs and labels in memory, in bytes."""
    return sum(array.nbytes for array in parts(split.arrays)) + split.labels.nbytes


class Room:
    """Memory budget for the samples of a run; each split that fits reserves its part."""

    def __init__(self, free_bytes: int, *, is_gpu: bool = False) -> None:
        """Create an object without reservations.

        Args:
            free_bytes: Free memory in bytes before any split is loaded.
            is_gpu: Whether this is the memory of a GPU.
        """
        self._left_bytes = (SHARE_OF_GPU if is_gpu else SHARE) * free_bytes

    def reserve(self, split: Split) -> bool:
        """Reserve memory for a whole split, if it fits; return whether it does."""
        needed = num_bytes(split)
        if needed > self._left_bytes:
            return False
        self._left_bytes -= needed
        return True


def evaluation_batch(spec: RunSpec, dataset: Dataset, largest: int) -> int:
    """Return the batch size of evaluations.

    This is `largest`, or less if the samples are large (see MAX_VALUES). The size of the samples
    does not reduce it below the batch size per worker in training, which is known to fit.
    """
    values = sum(
        math.prod(array.shape[1:]) * (TOKEN_VALUES if np.dtype(array.dtype).kind == "i" else 1)
        for array in parts(dataset.train.inputs)
    )
    if dataset.task == "language_modelling":
        values = max(values, dataset.num_outputs * math.prod(dataset.train.labels.shape[1:]))
    return min(largest, max(spec.batch_size_per_worker, MAX_VALUES // max(1, values), 1))


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
        """Return the seconds for which training has waited for batches."""
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
        warm-up.

        Integer inputs repeat the first sample, because random integers might exceed a vocabulary.
        No other samples are read.
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
        """Return the seconds for which training has waited for batches."""
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
    """Return the batches of each split that has samples, keyed by name of the split.

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
    """Return a reader that augments training samples with `augment` of the run spec."""
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
