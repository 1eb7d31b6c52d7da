"""The optimizer steps of a run: each worker's samples, their weights and the learning rate."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raybench.data.dataset import Array, Dataset, batches, epoch_order, shard
from raybench.data.inputs import Rows
from raybench.spec.run import RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import DistributedContext, Step
from raybench.training.reading import mixes


def training_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> Iterator[tuple[Step, int]]:
    """Yield this worker's steps forever, each with the number of samples of all workers in it.

    Skips the first `samples` samples of all workers, which must be whole steps.
    """
    schedule = build_schedule(spec, dataset.num_train_samples)
    num_rows = len(dataset.train)
    frozen = frozen_samples(spec, dataset.num_train_samples)
    # The weight of a mixed sample depends on both of its samples, see `reading.Samples.mixed`.
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
    """Return the smallest global batch size: two samples per worker, since batch normalization
    fails on one."""
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
    """Cut this worker's share of a global batch into forward-backward passes of the per-worker
    batch size.

    If the remainder of an epoch was added to the batch, passes are one or two samples larger. A
    share that does not fill its passes is padded with samples of weight 0 (at most one per pass),
    and an empty share becomes one sample of weight 0, so that every rank takes part in every
    gradient exchange. Each replica in the process gets the share of one worker; the shares are
    padded to the same size and lie side by side in a pass, the first replica's first.

    Args:
        spec: The run spec.
        batch: (samples,) positions of the global batch in the training split.
        world: The workers of the group.
        learning_rate: Learning rate of the step.
        sample_weights: Weights of all samples of the training split.
        rounds: (samples,) augmentation rounds of the samples, see `Step.rounds`.
        is_frozen: Whether only the head is trained.
    """
    shares = _shares(spec, batch, world)
    longest = max(map(len, shares))
    passes = min(spec.accumulate, max(1, math.ceil(longest / spec.batch_size_per_worker)))
    width = max(1, math.ceil(longest / passes))

    def laid_out(of_batch: np.ndarray) -> np.ndarray:
        """Return per-sample values of the batch as (passes, samples of all replicas), padded with
        0."""
        rows = np.zeros((len(shares), passes * width), of_batch.dtype)
        for row, share in zip(rows, _shares(spec, of_batch, world), strict=True):
            row[: len(share)] = share
        return rows.reshape(len(rows), passes, -1).swapaxes(0, 1).reshape(passes, -1)

    weights = np.ones(len(batch), np.float32) if sample_weights is None else sample_weights[batch]
    sample_shares = laid_out(np.full(len(batch), 1 / len(batch), np.float32))
    return Step(
        indices=laid_out(batch),
        weights=laid_out(weights / np.float32(len(batch))),
        shares=sample_shares.reshape(passes, len(shares), -1).sum(axis=2),
        rounds=None if rounds is None else laid_out(rounds),
        learning_rate=learning_rate,
        num_samples=sum(map(len, shares)),
        is_frozen=is_frozen,
    )


def _shares(spec: RunSpec, of_batch: np.ndarray, world: DistributedContext) -> list[np.ndarray]:
    """Return the part of `of_batch` that belongs to each replica of this process."""
    replicas = spec.replicas_per_process
    first, every = world.rank * replicas, world.num_workers * replicas
    return [
        of_batch[shard(len(of_batch), rank=first + replica, num_workers=every)]
        for replica in range(replicas)
    ]


def warm_up_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> list[Step]:
    """Return a full-size step and, on GPUs, a step as large as an epoch's last batch if that
    differs.

    If the backbone is frozen at first and later not, each step is returned for both phases. A GPU
    picks kernels for every shape (cuDNN benchmarking); on a CPU, one shape is enough.
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
    """Return a step on the first rows, full-size unless `num_samples` is given; warm-up uses only
    its shape.

    The step trains only the head if the run does so after `samples` samples of all workers.
    """
    size = min(num_samples or spec.global_batch_size, dataset.num_train_samples)
    batch = np.arange(size) % len(dataset.train)
    rounds = np.zeros_like(batch) if spec.augment else None
    is_frozen = samples < frozen_samples(spec, dataset.num_train_samples)
    return make_step(spec, batch, world, 0.0, rounds=rounds, is_frozen=is_frozen)


def take_until(steps: Iterator[tuple[Step, int]], num_samples: int) -> tuple[list[Step], int]:
    """Take steps until they have at least `num_samples` samples of all workers.

    Return the steps and their number of samples.
    """
    chunk: list[Step] = []
    seen = 0
    while seen < num_samples:
        step, size = next(steps)
        chunk.append(step)
        seen += size
    return chunk, seen


def frozen_samples(spec: RunSpec, samples_per_epoch: int) -> float:
    """Return the number of samples trained with a frozen backbone; infinite for `frozen_epochs:
    all`."""
    if spec.frozen_epochs == "all":
        return math.inf
    return spec.frozen_epochs * samples_per_epoch
