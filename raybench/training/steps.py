"""A run's steps: which samples each worker takes, with which weights, at which rate."""

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
    """Yield this worker's steps without end, each with the samples of all workers in it.

    They begin after `samples` of all workers, at the end of a step.
    """
    schedule = build_schedule(spec, dataset.num_train_samples)
    num_rows = len(dataset.train)
    frozen = frozen_samples(spec, dataset.num_train_samples)
    # A mixed sample has a part of the other's weight too, which comes with its labels.
    of_samples = None if mixes(spec) else dataset.train.weights
    least = _least(spec)
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
                of_samples=of_samples,
                rounds=None if rounds is None else rounds[part],
                is_frozen=samples < frozen,
            )
            yield step, len(batch)
            samples += len(batch)
        epoch, first = epoch + 1, 0


def _least(spec: RunSpec) -> int:
    """Batch normalisation fails on one sample: what leaves a worker less than two is no step."""
    return 2 * spec.num_workers if spec.batch_size_per_worker > 1 else 1


def make_step(
    spec: RunSpec,
    batch: Indices,
    world: DistributedContext,
    learning_rate: float,
    *,
    of_samples: Array | None = None,
    rounds: Indices | None = None,
    is_frozen: bool = False,
) -> Step:
    """Cut this worker's share of a global batch into passes of the per-worker batch size; of a
    batch that has an epoch's remainder too, into one or two samples more each.

    A share that does not fill its passes is padded with weight 0 (at most one sample a
    pass), and an empty share becomes one sample of weight 0, so that every rank takes part
    in every gradient exchange. Replicas in one process have the shares of as many workers, all
    padded to one size and side by side in a pass, those of the first replica first.

    `of_samples` are the training split's own weights, `rounds` those of the samples of the batch.
    """
    shares = _shares(spec, batch, world)
    longest = max(map(len, shares))
    passes = min(spec.accumulate, max(1, math.ceil(longest / spec.batch_size_per_worker)))
    width = max(1, math.ceil(longest / passes))

    def laid_out(of_batch: np.ndarray) -> np.ndarray:
        """Return (passes, samples of all replicas), 0 where a share does not fill them."""
        rows = np.zeros((len(shares), passes * width), of_batch.dtype)
        for row, share in zip(rows, _shares(spec, of_batch, world), strict=True):
            row[: len(share)] = share
        return rows.reshape(len(rows), passes, -1).swapaxes(0, 1).reshape(passes, -1)

    weights = np.ones(len(batch), np.float32) if of_samples is None else of_samples[batch]
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
    """Return what each replica of this process has of a batch."""
    replicas = spec.replicas_per_process
    first, every = world.rank * replicas, world.num_workers * replicas
    return [worker_share(of_batch, rank=first + one, num_workers=every) for one in range(replicas)]


def warm_up_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, samples: int = 0
) -> list[Step]:
    """Return a full-size step and, where GPUs train, one of an epoch's last batch if that differs;
    each once more where it is frozen and later ones are not.

    A GPU picks its kernels anew for every shape (cuDNN's search). Cores need no second step, and
    their warm-up stays as it is.
    """
    found = [warm_up_step(spec, dataset, world, samples)]
    *_, last = batches(dataset.num_train_samples, size=spec.global_batch_size, least=_least(spec))
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
    """Return a step over the first rows, full-size unless `num_samples` says of how many; warm-up
    uses its shape, not its data.

    It is frozen where that after `samples` of all workers is.
    """
    size = min(num_samples or spec.global_batch_size, dataset.num_train_samples)
    batch = np.arange(size) % len(dataset.train)
    rounds = np.zeros_like(batch) if spec.augment else None
    is_frozen = samples < frozen_samples(spec, dataset.num_train_samples)
    return make_step(spec, batch, world, 0.0, rounds=rounds, is_frozen=is_frozen)


def take_until(steps: Iterator[tuple[Step, int]], wanted: int) -> tuple[list[Step], int]:
    """Take whole steps until at least `wanted` samples are in them."""
    chunk: list[Step] = []
    seen = 0
    while seen < wanted:
        step, size = next(steps)
        chunk.append(step)
        seen += size
    return chunk, seen


def frozen_samples(spec: RunSpec, samples_per_epoch: int) -> float:
    """Return the training samples in which the backbone is frozen; infinite for `all`."""
    if spec.frozen_epochs == "all":
        return math.inf
    return spec.frozen_epochs * samples_per_epoch
