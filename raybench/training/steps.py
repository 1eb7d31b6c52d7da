"""The optimizer steps of a run: samples of each worker, their weights, and the learning rate."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raybench.data.dataset import Array, Dataset, Rows, batches, epoch_order, shard
from raybench.spec.run import RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import DistributedContext, Step
from raybench.training.reading import mixes


def training_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> Iterator[tuple[Step, int]]:
    """Endlessly yield this worker's steps, each with its number of samples over all workers.

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
    # With mixup, the weight of a loss depends on both mixed samples, see `reading.Samples.mixed`.
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
    normalization fails on a single sample."""
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
    in every gradient exchange. If the process holds several replicas, each gets the share of one
    worker: the shares are padded to the same size and are next to each other in a pass, in the
    order of the replicas.

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
    """Return the values that belong to each replica of this process, in the order of the replicas;
    `values` has one value per sample of the global batch."""
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

    These are a step of the global batch size and, on GPUs, a step of the size of an epoch's last
    batch, if that differs: a GPU picks kernels for every shape (cuDNN benchmarking), and on a CPU
    one shape suffices. If the backbone is frozen at first and later trained, each step is returned
    for both phases. `samples` is the number of samples of all workers so far.
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
    """Take steps from an iterator until they have at least `num_samples` samples of all workers.

    Returns:
        The steps, and their number of samples of all workers.
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
