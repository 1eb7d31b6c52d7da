"""The steps of a run: samples of each worker, their weights and the learning rate."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raybench.data.dataset import Array, Dataset, Indices, batches, epoch_order, worker_share
from raybench.spec.run import RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import DistributedContext, Step
from raybench.training.reading import mixes


def training_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> Iterator[tuple[Step, int]]:
    """Yield this worker's steps without end, each with the number of samples of all workers in it.

    Starts after `samples` samples of all workers, at the end of a step.
    """
    schedule = build_schedule(spec, dataset.num_train_samples)
    num_rows = len(dataset.train)
    frozen = frozen_samples(spec, dataset.num_train_samples)
    # A mixed sample also has part of the other sample's weight, which comes with its labels.
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
    """Return the smallest global batch: batch normalization fails on a worker with one sample."""
    return 2 * spec.num_workers if spec.batch_size_per_worker > 1 else 1


def make_step(
    spec: RunSpec,
    batch: Indices,
    world: DistributedContext,
    learning_rate: float,
    *,
    sample_weights: Array | None = None,
    rounds: Indices | None = None,
    is_frozen: bool = False,
) -> Step:
    """Cut this worker's share of a global batch into passes of the per-worker batch size.

    If the batch includes the remainder of an epoch, passes are one or two samples larger. A share
    that does not fill its passes is padded with weight 0 (at most one sample per pass), and an
    empty share becomes one sample of weight 0, so that every rank takes part in every gradient
    exchange. Replicas in one process have the shares of as many workers, padded to one size and
    side by side in a pass, the first replica first.

    Args:
        spec: The run spec.
        batch: (samples,) positions of the global batch in the training split.
        world: The workers of the group.
        learning_rate: Learning rate of the step.
        sample_weights: Weights of all samples of the training split.
        rounds: (samples,) rounds of the batch, see `Step.rounds`.
        is_frozen: Whether only the head is trained.
    """
    shares = _shares(spec, batch, world)
    longest = max(map(len, shares))
    passes = min(spec.accumulate, max(1, math.ceil(longest / spec.batch_size_per_worker)))
    width = max(1, math.ceil(longest / passes))

    def laid_out(of_batch: np.ndarray) -> np.ndarray:
        """Return (passes, samples of all replicas), padded with 0."""
        rows = np.zeros((len(shares), passes * width), of_batch.dtype)
        for row, share in zip(rows, _shares(spec, of_batch, world), strict=True):
            row[: len(share)] = share
        return rows.reshape(len(rows), passes, -1).swapaxes(0, 1).reshape(passes, -1)

    weights = np.ones(len(batch), np.float32) if sample_weights is None else sample_weights[batch]
    each = laid_out(np.full(len(batch), 1 / len(batch), np.float32))
    return Step(
        indices=laid_out(batch),
        weights=laid_out(weights / np.float32(len(batch))),
        shares=each.reshape(passes, len(shares), -1).sum(axis=2),
        rounds=None if rounds is None else laid_out(rounds),
        learning_rate=learning_rate,
        num_samples=sum(map(len, shares)),
        is_frozen=is_frozen,
    )


def _shares(spec: RunSpec, of_batch: np.ndarray, world: DistributedContext) -> list[np.ndarray]:
    """Return the share of each replica of this process in a batch."""
    replicas = spec.replicas_per_process
    first, every = world.rank * replicas, world.num_workers * replicas
    return [worker_share(of_batch, rank=first + one, num_workers=every) for one in range(replicas)]


def warm_up_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> list[Step]:
    """Return a full-size step and, on GPUs, one of the size of the last batch of an epoch if that
    differs; also unfrozen copies if they start frozen.

    A GPU picks its kernels for every shape (cuDNN benchmarking); a CPU needs only one.
    """
    found = [warm_up_step(spec, dataset, world, samples)]
    *_, last = batches(
        dataset.num_train_samples, size=spec.global_batch_size, least=_min_batch(spec)
    )
    num_last = last.stop - last.start
    if spec.gpus_per_worker and num_last != min(spec.global_batch_size, dataset.num_train_samples):
        found.append(warm_up_step(spec, dataset, world, samples, num_samples=num_last))
    if not found[0].is_frozen or frozen_samples(spec, 1) >= spec.epochs:
        return found
    return [each for one in found for each in (one, replace(one, is_frozen=False))]


def warm_up_step(
    spec: RunSpec,
    dataset: Dataset,
    world: DistributedContext,
    samples: int = 0,
    *,
    num_samples: int | None = None,
) -> Step:
    """Return a step over the first rows, full-size unless `num_samples` is given; warm-up uses only
    its shape.

    It is frozen if the step after `samples` samples of all workers is.
    """
    size = min(num_samples or spec.global_batch_size, dataset.num_train_samples)
    batch = np.arange(size) % len(dataset.train)
    rounds = np.zeros_like(batch) if spec.augment else None
    is_frozen = samples < frozen_samples(spec, dataset.num_train_samples)
    return make_step(spec, batch, world, 0.0, rounds=rounds, is_frozen=is_frozen)


def take_until(steps: Iterator[tuple[Step, int]], wanted: int) -> tuple[list[Step], int]:
    """Return whole steps with at least `wanted` samples in all, and the number of samples."""
    chunk: list[Step] = []
    seen = 0
    while seen < wanted:
        step, size = next(steps)
        chunk.append(step)
        seen += size
    return chunk, seen


def frozen_samples(spec: RunSpec, samples_per_epoch: int) -> float:
    """Return the number of training samples with a frozen backbone; infinite for `all`."""
    if spec.frozen_epochs == "all":
        return math.inf
    return spec.frozen_epochs * samples_per_epoch
