"""One run on one worker: order, schedule, evaluations, ledger and stop rule, for any backend."""

import math
from collections.abc import Iterator

import numpy as np

from raybench.backends.base import Step, Trainer, World
from raybench.backends.heads import frozen_samples
from raybench.backends.mean_answer import mean_of_mean
from raybench.backends.reading import mixes
from raybench.backends.recording import Recording
from raybench.core.checkpoint import RunState
from raybench.core.clock import WORKER_PHASES, Ledger, merge_ranks
from raybench.core.objective import BUDGET, StopRule, is_finite
from raybench.core.record import Evaluation
from raybench.core.schedule import Schedule, build_schedule
from raybench.core.spec import RunSpec
from raybench.data.dataset import Array, Dataset
from raybench.data.order import Indices, epoch_order, shard, worker_share

EARLY = 0.98
"""Share of the budget at which its last evaluation is aimed, since speeds vary a little."""


def run(
    spec: RunSpec,
    dataset: Dataset,
    trainer: Trainer,
    world: World,
    ledger: Ledger,
    *,
    resume: RunState | None = None,
) -> Iterator[Evaluation]:
    """Train, and yield at every evaluation; the last one carries `stop` or `failure`.

    Every rank runs this in step: what is yielded, and therefore every decision on it, is
    computed from numbers that all ranks share. The caller ends a run early by closing the
    generator on all ranks after the same evaluation.

    `resume` continues a run: the next evaluation is the one after it. The caller has given the
    trainer its `Trainer.restore`, and begun the ledger at the seconds of `resume.ledger`.
    """
    earlier = resume.evaluations if resume else ()
    samples, index, train_seconds = 0, 0, 0.0
    if resume:
        samples, index, train_seconds = resume.samples, resume.index, resume.train_s
    steps = training_steps(spec, dataset, world, samples)
    metric, of_mean = trainer.metric, mean_of_mean(trainer.metric, dataset, dataset.validation)
    judged = {"metric": metric.name, "direction": metric.direction}
    rule = StopRule(
        spec.objective.model_copy(update=judged),
        values=[evaluation.value for evaluation in earlier],
        train_seconds=[evaluation.train_s for evaluation in earlier],
    )
    recording = Recording(spec, trainer, world) if spec.record_steps else None
    cadence = spec.eval_every_samples or dataset.num_train_samples
    samples_total = math.ceil(spec.epochs * dataset.num_train_samples)
    _wait_for_all(world)
    ledger.enter("compile")
    trainer.warm_up(warm_up_step(spec, dataset, world, samples))
    fitting = samples_total
    if resume and spec.objective.kind == BUDGET:
        fitting = _within_budget(samples, train_seconds, spec)
    while True:
        goal = min((samples // cadence + 1) * cadence, samples_total)
        goal = min(goal, fitting)
        if recording:
            recording.begin()
        # Ranks hear "go on" at different moments: none of them trains, or is timed, before all do.
        _wait_for_all(world)
        ledger.enter("train")
        chunk, seen = take_until(steps, goal - samples)
        loss = trainer.train(chunk)
        _wait_for_all(world)
        ledger.enter("eval")
        recorded = recording.end(chunk) if recording else {}
        totals = trainer.evaluate("validation", _rows(len(dataset.validation), world))
        samples += seen
        sums = np.sum(world.gather([loss, totals.value, float(totals.samples)]), axis=0)
        ledger.enter("report")
        snapshot = merge_ranks([_from_row(row) for row in world.gather(_row(ledger, trainer))])
        train_loss = float(sums[0]) / len(chunk)
        value = metric.finish(float(sums[1] / sums[2]), of_mean)
        interval = snapshot["train"] - train_seconds
        train_seconds = snapshot["train"]
        stop = rule.update(value=value, train_s=train_seconds, finished=samples >= samples_total)
        if spec.objective.kind == BUDGET:
            fitting = _within_budget(samples, train_seconds, spec)
            if fitting < samples + spec.global_batch_size:
                stop = stop or "max_train_seconds"
        yield Evaluation(
            index=index,
            epoch=samples / dataset.num_train_samples,
            samples=samples,
            train_s=train_seconds,
            train_loss=train_loss,
            value=value,
            learning_rate=chunk[-1].learning_rate,
            samples_per_s=seen / max(interval, 1e-9),
            ledger=snapshot,
            best_value=rule.best_value,
            time_to_target_s=rule.time_to_target_s,
            stop=stop,
            failure=None if is_finite(train_loss) else "nan",
            input_s=snapshot["input"] if recording else None,
            **recorded,
        )
        if stop or not is_finite(train_loss):
            return
        index += 1


def _within_budget(samples: int, train_seconds: float, spec: RunSpec) -> int:
    """Return the samples that can be trained on within the budget, at the speed so far.

    What is reached after the budget does not count, so the last evaluation comes just before
    it. From numbers that all ranks share.
    """
    budget = EARLY * spec.objective.max_train_seconds
    return int(min(samples * budget / max(train_seconds, 1e-9), 2.0**62))


def evaluate_split(dataset: Dataset, trainer: Trainer, world: World, part: str) -> float:
    """Return the metric on a whole split, sharded over the workers and reduced exactly."""
    split = dataset.test if part == "test" else dataset.validation
    totals = trainer.evaluate(part, _rows(len(split), world))
    sums = np.sum(world.gather([totals.value, float(totals.samples)]), axis=0)
    of_mean = mean_of_mean(trainer.metric, dataset, split)
    return trainer.metric.finish(float(sums[0] / sums[1]), of_mean)


def training_steps(
    spec: RunSpec, dataset: Dataset, world: World, samples: int = 0
) -> Iterator[tuple[Step, int]]:
    """Yield this worker's steps without end, each with the samples of all workers in it.

    They begin after `samples` of all workers, at the end of a step.
    """
    schedule = build_schedule(spec, dataset.num_train_samples)
    num_rows = len(dataset.train)
    frozen = frozen_samples(spec, dataset.num_train_samples)
    # A mixed sample has a part of the other's weight too, which comes with its labels.
    of_samples = None if mixes(spec) else dataset.train.weights
    epoch, first = divmod(samples, dataset.num_train_samples)
    while True:
        order = epoch_order(dataset.num_train_samples, seed=spec.seed, epoch=epoch)
        rows = order % num_rows
        rounds = epoch * dataset.repeat + order // num_rows if spec.augment else None
        for start in range(first, len(order), spec.global_batch_size):
            part = slice(start, start + spec.global_batch_size)
            batch = rows[part]
            step = make_step(
                spec,
                batch,
                world,
                schedule,
                samples,
                of_samples=of_samples,
                rounds=None if rounds is None else rounds[part],
                is_frozen=samples < frozen,
            )
            yield step, len(batch)
            samples += len(batch)
        epoch, first = epoch + 1, 0


def make_step(
    spec: RunSpec,
    batch: Indices,
    world: World,
    schedule: Schedule,
    samples: int,
    *,
    of_samples: Array | None = None,
    rounds: Indices | None = None,
    is_frozen: bool = False,
) -> Step:
    """Cut this worker's share of a global batch into passes of the per-worker batch size.

    A share that does not fill its passes is padded with weight 0 (at most one sample a
    pass), and an empty share becomes one sample of weight 0, so that every rank takes part
    in every gradient exchange. Replicas in one process have the shares of as many workers, all
    padded to one size and side by side in a pass, those of the first replica first.

    `of_samples` are the training split's own weights, `rounds` those of the samples of the batch.
    """
    shares = _shares(spec, batch, world)
    longest = max(map(len, shares))
    passes = max(1, math.ceil(longest / spec.batch_size_per_worker))
    width = max(1, math.ceil(longest / passes))
    indices = np.zeros((len(shares), passes * width), np.int64)
    weights = np.zeros((len(shares), passes * width), np.float32)
    for replica, share in enumerate(shares):
        own = 1.0 if of_samples is None else of_samples[share]
        indices[replica, : len(share)] = share
        weights[replica, : len(share)] = own / len(batch)
    given: Indices | None = None
    if rounds is not None:
        given = np.zeros_like(indices)
        for replica, of_share in enumerate(_shares(spec, rounds, world)):
            given[replica, : len(of_share)] = of_share
    return Step(
        indices=_side_by_side(indices, passes),
        weights=_side_by_side(weights, passes),
        rounds=None if given is None else _side_by_side(given, passes),
        learning_rate=schedule(float(samples)),
        num_samples=sum(map(len, shares)),
        is_frozen=is_frozen,
    )


def _shares(spec: RunSpec, of_batch: np.ndarray, world: World) -> list[np.ndarray]:
    """Return what each replica of this process has of a batch."""
    replicas = spec.replicas_per_process
    first, every = world.rank * replicas, world.num_workers * replicas
    return [worker_share(of_batch, rank=first + one, num_workers=every) for one in range(replicas)]


def _side_by_side(rows: np.ndarray, passes: int) -> np.ndarray:
    """Return a row of each replica as (passes, samples of all replicas)."""
    return rows.reshape(len(rows), passes, -1).swapaxes(0, 1).reshape(passes, -1)


def warm_up_step(spec: RunSpec, dataset: Dataset, world: World, samples: int = 0) -> Step:
    """Return a full-size step over the first rows; warm-up uses its shape, not its data.

    It is frozen where that after `samples` of all workers is.
    """
    batch = np.arange(min(spec.global_batch_size, dataset.num_train_samples)) % len(dataset.train)
    rounds = np.zeros_like(batch) if spec.augment else None
    is_frozen = samples < frozen_samples(spec, dataset.num_train_samples)
    return make_step(spec, batch, world, lambda _: 0.0, 0, rounds=rounds, is_frozen=is_frozen)


def take_until(steps: Iterator[tuple[Step, int]], wanted: int) -> tuple[list[Step], int]:
    """Take whole steps until at least `wanted` samples are in them."""
    chunk: list[Step] = []
    seen = 0
    while seen < wanted:
        step, size = next(steps)
        chunk.append(step)
        seen += size
    return chunk, seen


def _rows(num_samples: int, world: World) -> slice:
    return shard(num_samples, rank=world.rank, num_workers=world.num_workers)


def _wait_for_all(world: World) -> None:
    world.gather([0.0])


_NAMES = (*WORKER_PHASES, "input")


def _row(ledger: Ledger, trainer: Trainer) -> list[float]:
    snapshot = ledger.snapshot() | {"input": trainer.input_seconds()}
    return [snapshot[name] for name in _NAMES]


def _from_row(row: list[float]) -> dict[str, float]:
    return dict(zip(_NAMES, row, strict=True))
