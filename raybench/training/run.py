"""The training loop of a run on one worker, for any backend.

It trains and evaluates, counts the seconds of each phase in the ledger, and decides when to stop.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybench.data.dataset import Dataset, Split, shard
from raybench.data.split_metrics import measure
from raybench.spec.metric import Metric
from raybench.spec.objective import BUDGET, Objective, StopReason, StopRule
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import CPU_NAMES, WORKER_PHASES, Ledger, merge_ranks
from raybench.stats.record import Evaluation, Failure
from raybench.stats.step_times import NoiseSums, StepTimes, bytes_exchanged, terms_of_parts
from raybench.training.base import BaseTrainer, DistributedContext, Step, Totals
from raybench.training.machine import GpuLoad
from raybench.training.samples import take_until, training_steps, warm_up_steps


def baseline_mean(metric: Metric, dataset: Dataset, split: Split) -> float:
    """Return the error of a model that always predicts the mean label of a split.

    This is the mean squared error or the mean absolute error, whichever the metric averages, for
    labels in their original unit. It is NaN if the metric averages neither.
    """
    if metric.per_sample not in ("squared_error", "absolute_error"):
        return math.nan
    labels = split.labels.astype(np.float64)
    scale = 1.0 if dataset.label_scale is None else dataset.label_scale
    errors = (labels - labels.mean(axis=0)) * scale
    return float(np.mean(errors**2 if metric.per_sample == "squared_error" else np.abs(errors)))


def value_error(
    metric: Metric, total: float, squares: float, samples: float, baseline: float
) -> float | None:
    """Return the standard error of a metric on a finite number of samples, in the metric's unit.

    It is computed with the delta method: half the difference between `Metric.finish` of the mean
    plus one standard error and of the mean minus one standard error.

    Args:
        metric: The metric.
        total: Sum of the values that the metric averages.
        squares: Sum of the squares of these values.
        samples: Number of samples.
        baseline: Result of `baseline_mean`.

    Returns:
        The standard error. None if it is not finite, and for metrics such as accuracy
        (`Metric.is_share`), whose error is binomial.
    """
    if metric.is_share:
        return None
    mean = total / samples
    error = math.sqrt(max(squares / samples - mean**2, 0.0) / samples)
    low, high = (metric.finish(mean + step, baseline) for step in (-error, error))
    half_width = abs(high - low) / 2
    return half_width if math.isfinite(half_width) else None


PILOT_STEPS = 50
"""Number of steps after which the speed of a run counts as known. Before that, training is
interrupted repeatedly to check the speed, first after a single step, so that a slow run does not
exceed its budget of training seconds."""
PILOT_DIVISOR = 8
"""Divisor that sets when the speed is checked next: after 1 / PILOT_DIVISOR of the samples that fit
into the budget or after twice the samples so far, whichever is more, but at most after PILOT_STEPS
steps."""
EARLY_SHARE, LATE_SHARE = 0.98, 1.02
"""Shares of the budget at which the last evaluation is scheduled: with `best_at_budget` just before
the end of the budget, otherwise just after it. They allow for small changes of the speed."""
MAX_LATENESS = 1.5
"""Multiple of the budget of training seconds. An evaluation that is expected after that time is
moved to the end of the budget. With `best_at_budget`, so is every evaluation after the end."""


def run(
    spec: RunSpec,
    dataset: Dataset,
    trainer: BaseTrainer,
    world: DistributedContext,
    ledger: Ledger,
    *,
    resume: RunState | None = None,
) -> Iterator[Evaluation]:
    """Train, and yield every evaluation; the last one has `stop` or `failure` set.

    Collective: all ranks must run it. All ranks decide alike, because they decide from numbers that
    are equal on all ranks. To end a run early, close the generator on all ranks after the same
    evaluation.

    With `best_at_budget`, the trainer ends with the weights of the last evaluation within the
    budget of training seconds, even if another evaluation follows; `best_value` belongs to these
    weights.

    Args:
        spec: The run spec.
        dataset: Data to train and evaluate on.
        trainer: Model in training.
        world: The group of workers.
        ledger: Seconds of this worker by phase. In a resumed run, the caller has started it from
            `resume.ledger`.
        resume: State of a resumed run after its last evaluation; the caller has also called
            `BaseTrainer.restore`. None for a new run.
    """
    samples, index, train_seconds = 0, 0, 0.0
    if resume:
        samples, index, train_seconds = resume.samples, resume.index, resume.train_s
    steps = training_steps(spec, dataset, world, samples)
    rule = _stop_rule(spec, trainer.metric, resume.evaluations if resume else ())
    baseline = baseline_mean(trainer.metric, dataset, dataset.validation)
    recording = Recording(spec, trainer, world, dataset) if spec.record_steps else None
    eval_interval = spec.eval_every_samples or dataset.num_train_samples
    samples_total = math.ceil(spec.epochs * dataset.num_train_samples)
    parts = _rank_seconds(world.gather(_ledger_seconds(ledger, trainer)))  # also a barrier
    ledger.enter("compile")
    trainer.warm_up(*warm_up_steps(spec, dataset, world, samples))
    is_speed_unknown = not (resume or recording)
    has_ranks = world.num_workers > 1 and (spec.record_steps or not spec.exchange_gradients)
    weights = BudgetWeights(trainer, spec.objective, ledger)
    if rule.best_value is not None:
        weights.keep()
    while True:
        goal = min((samples // eval_interval + 1) * eval_interval, samples_total)
        if train_seconds:
            goal = _next_evaluation_samples(goal, samples, train_seconds, spec)
        if recording:
            recording.begin()
        # The driver's command to continue reaches the ranks at different times. At this barrier
        # they wait, without counting training time, until all of them have received it.
        _wait_for_all(world)
        ledger.enter("train")
        if is_speed_unknown:
            interval = _train_first(steps, goal, spec, trainer, world, ledger)
        else:
            interval = _train(steps, goal - samples, trainer, ledger)
        is_speed_unknown = False
        _wait_for_all(world)
        ledger.enter("eval")
        recorded = recording.end(interval.steps) if recording else {}
        samples += interval.samples
        validation = _validate(interval, dataset, trainer, world, baseline)
        ledger.enter("report")
        ledgers = world.gather(_ledger_seconds(ledger, trainer))
        snapshot = merge_ranks([dict(zip(_NAMES, row, strict=True)) for row in ledgers])
        before, parts = parts, _rank_seconds(ledgers)
        interval_s = snapshot["train"] - train_seconds
        train_seconds = snapshot["train"]
        is_finished = samples >= samples_total
        stop = rule.update(value=validation.value, train_s=train_seconds, finished=is_finished)
        if weights.is_at_budget:
            within = _samples_within_budget(samples, train_seconds, spec)
            if within < samples + spec.global_batch_size:
                stop = stop or StopReason.MAX_TRAIN_SECONDS
        failed = not validation.is_finite
        weights.update(train_seconds, is_last=bool(stop or failed))
        yield Evaluation(
            index=index,
            epoch=samples / dataset.num_train_samples,
            samples=samples,
            train_s=train_seconds,
            train_loss=validation.train_loss,
            value=validation.value,
            learning_rate=interval.steps[-1].learning_rate,
            samples_per_s=interval.samples / max(interval_s, 1e-9),
            ledger=snapshot,
            best_value=rule.best_value,
            time_to_target_s=rule.time_to_target_s,
            stop=None if failed else stop,
            failure=Failure.NAN if failed else None,
            value_error=validation.error,
            rank_s=None if spec.exchange_gradients else validation.rank_s,
            rank_parts=tuple(map(tuple, (parts - before).tolist())) if has_ranks else None,
            input_s=snapshot["input"] if recording else None,
            skipped_steps=trainer.skipped_steps() if spec.precision == "fp16" else None,
            **recorded,
        )
        if stop or failed:
            return
        index += 1


def _stop_rule(spec: RunSpec, metric: Metric, earlier: Sequence[Evaluation]) -> StopRule:
    """Return the stop rule of a run after its `earlier` evaluations."""
    judged = {"metric": metric.name, "direction": metric.direction}
    return StopRule(
        spec.objective.model_copy(update=judged),
        values=[evaluation.value for evaluation in earlier],
        train_seconds=[evaluation.train_s for evaluation in earlier],
    )


@dataclass
class Interval:
    """Training of one worker between two evaluations."""

    steps: list[Step]
    samples: int
    """Number of samples that all workers together have processed."""
    loss: float
    """Weighted loss of this worker, summed over the steps."""
    seconds: float
    """Training seconds of this worker."""

    def extend(self, further: "Interval") -> None:
        """Append the training that directly followed this interval."""
        self.steps = [*self.steps, *further.steps]
        self.samples += further.samples
        self.loss += further.loss
        self.seconds += further.seconds


def _train(
    steps: Iterator[tuple[Step, int]], num_samples: int, trainer: BaseTrainer, ledger: Ledger
) -> Interval:
    """Train until all workers together have processed at least `num_samples` further samples."""
    chunk, samples = take_until(steps, num_samples)
    began = ledger.seconds("train")
    loss = trainer.train(chunk)
    return Interval(chunk, samples, loss, ledger.seconds("train") - began)


def _train_first(
    steps: Iterator[tuple[Step, int]],
    goal: int,
    spec: RunSpec,
    trainer: BaseTrainer,
    world: DistributedContext,
    ledger: Ledger,
) -> Interval:
    """Train the first interval of a run, whose speed is still unknown.

    The speed is checked after one step and then repeatedly (see PILOT_STEPS). The interval ends
    after `goal` samples of all workers, or earlier if an evaluation there would be too late.
    Collective: all ranks must call it.
    """
    pilot, cut = spec.global_batch_size, goal
    interval = _train(steps, min(goal, pilot), trainer, ledger)
    while pilot and interval.samples < cut:
        seen = interval.samples
        spent_s = max(float(row[0]) for row in world.gather([ledger.snapshot()["train"]]))
        room = _samples_within_budget(seen, spent_s, spec)
        cut = _next_evaluation_samples(goal, seen, spent_s, spec)
        if room <= seen:
            break
        smallest, largest = 2 * seen, PILOT_STEPS * spec.global_batch_size
        pilot = 0 if seen >= largest else min(max(smallest, room // PILOT_DIVISOR), largest)
        end = min(cut, pilot) if pilot else cut
        interval.extend(_train(steps, end - seen, trainer, ledger))
    return interval


@dataclass(frozen=True)
class Validation:
    """Result of an evaluation on the validation split, the same on all ranks."""

    value: float
    """Value of the metric."""
    error: float | None
    """Standard error of `value`, see `value_error`."""
    train_loss: float
    """Mean loss over the steps since the last evaluation."""
    rank_s: tuple[float, ...]
    """Training seconds of each worker since the last evaluation."""
    is_finite: bool
    """Whether the training loss and the validation loss are finite. If the last update made weights
    NaN, only the validation loss shows it: each training loss precedes the update of its step."""


def _validate(
    interval: Interval,
    dataset: Dataset,
    trainer: BaseTrainer,
    world: DistributedContext,
    baseline: float,
) -> Validation:
    """Evaluate the model on the validation split, of which each worker evaluates some rows.

    Collective: all ranks must call it.

    Args:
        interval: Training of this worker since the last evaluation.
        baseline: Result of `baseline_mean` for the validation split.
    """
    metric = trainer.metric
    totals = trainer.evaluate("validation", _own_rows(len(dataset.validation), world))
    sums_of_rank = [totals.value, totals.squares, float(totals.samples), totals.loss]
    rows = world.gather([interval.loss, *sums_of_rank, interval.seconds])
    sums = np.sum(rows, axis=0)
    if metric.is_mean:
        value = metric.finish(float(sums[1] / sums[3]), baseline)
        error = value_error(metric, sums[1], sums[2], sums[3], baseline)
    else:
        value, error = _measure_whole_split(metric, totals, dataset.validation, world)
    train_loss = float(sums[0]) / len(interval.steps)
    is_finite = all(map(math.isfinite, (train_loss, sums[4])))
    rank_s = tuple(float(row[-1]) for row in rows)
    return Validation(value, error, train_loss, rank_s, is_finite)


class BudgetWeights:
    """Keeps the weights of the last evaluation within the budget of training seconds.

    It does nothing unless the objective is `best_at_budget`.
    """

    def __init__(self, trainer: BaseTrainer, objective: Objective, ledger: Ledger) -> None:
        self._trainer, self._ledger = trainer, ledger
        self._budget_s = objective.max_train_seconds
        self.is_at_budget = objective.kind == BUDGET
        """Whether the objective is `best_at_budget`, so that weights are kept."""
        self._weights: bytes | None = None

    def keep(self) -> None:
        """Keep the current weights."""
        if self.is_at_budget:
            self._weights = self._trainer.save()

    def update(self, train_s: float, *, is_last: bool) -> None:
        """Keep the current weights after an evaluation within the budget; after a later evaluation,
        load the weights that were kept.

        Args:
            train_s: Training seconds of the run until the evaluation.
            is_last: Whether the run ends with this evaluation. Then the current weights stay in the
                model and need not be kept.
        """
        if self.is_at_budget and train_s > self._budget_s:
            if self._weights is not None:
                self._trainer.load(self._weights)
        elif self.is_at_budget and not is_last:
            self._ledger.enter("checkpoint")
            self.keep()
            self._ledger.enter("report")


def _next_evaluation_samples(goal: int, samples: int, train_seconds: float, spec: RunSpec) -> int:
    """Return the number of samples at which the next evaluation comes: `goal`, or fewer if `goal`
    would be too late (see MAX_LATENESS).

    Args:
        goal: Number of samples at which the next evaluation is due.
        samples: Number of samples of all workers so far.
        train_seconds: Training seconds so far.
    """
    fitting = max(_samples_within_budget(samples, train_seconds, spec), samples + 1)
    is_late = spec.objective.kind == BUDGET or goal > MAX_LATENESS * fitting
    return min(goal, fitting) if is_late else goal


def _samples_within_budget(samples: int, train_seconds: float, spec: RunSpec) -> int:
    """Return how many samples in all, including those so far, the run can process within its budget
    of training seconds at its speed so far.

    With `best_at_budget`, results after the end of the budget do not count, so the number is chosen
    for an evaluation just before the end. With a target, the run ends with its first evaluation
    after the end, so the number is chosen for one just after it.
    """
    share = EARLY_SHARE if spec.objective.kind == BUDGET else LATE_SHARE
    budget = share * spec.objective.max_train_seconds
    return int(min(samples * budget / max(train_seconds, 1e-9), 2.0**62))


def evaluate_test_split(dataset: Dataset, trainer: BaseTrainer, world: DistributedContext) -> float:
    """Return the metric on the test split, of which each worker evaluates some rows.

    Collective: all ranks must call it.
    """
    split, metric = dataset.test, trainer.metric
    totals = trainer.evaluate("test", _own_rows(len(split), world))
    if not metric.is_mean:
        return _measure_whole_split(metric, totals, split, world)[0]
    sums = np.sum(world.gather([totals.value, float(totals.samples)]), axis=0)
    return metric.finish(float(sums[0] / sums[1]), baseline_mean(metric, dataset, split))


def _measure_whole_split(
    metric: Metric, totals: Totals, split: Split, world: DistributedContext
) -> tuple[float, float | None]:
    """Return the value and the standard error, on a whole split, of a metric that is not a mean.

    Collective: all ranks must call it.
    """
    return measure(metric, np.asarray(split.labels), _gather_predictions(totals.answers, world))


def _gather_predictions(answers: np.ndarray | None, world: DistributedContext) -> np.ndarray:
    """Return the predictions of all workers in the order of the split's rows, shape (N, ...).

    The workers may have different numbers of rows. If there are fewer rows than workers, some
    workers have none, and their `answers` may be None.
    """
    local = np.zeros(0) if answers is None else answers
    width = local.shape[1] if local.ndim == 2 else 0
    numbers, widths = np.array(world.gather([float(len(local)), float(width)]), int).T
    shape = (numbers.max(), widths.max()) if width or widths.any() else (numbers.max(),)
    padded = np.zeros(shape)
    if len(local):
        padded[: len(local)] = local
    rows = world.gather(padded.ravel().tolist())
    gathered = np.concatenate(
        [np.array(row).reshape(shape)[:n] for row, n in zip(rows, numbers, strict=True)]
    )
    return gathered if len(shape) == 2 else gathered.astype(int)


def _own_rows(num_samples: int, world: DistributedContext) -> slice:
    """Return the rows of a split that this worker evaluates."""
    return shard(num_samples, rank=world.rank, num_workers=world.num_workers)


def _wait_for_all(world: DistributedContext) -> None:
    """Wait until all ranks have reached this call."""
    world.gather([0.0])


_NAMES = (*WORKER_PHASES, *CPU_NAMES, "input")
"""Keys of the ledger whose seconds the ranks exchange, and `input` for the seconds of waiting for
data."""


def _ledger_seconds(ledger: Ledger, trainer: BaseTrainer) -> list[float]:
    """Return the seconds of this worker for each key of _NAMES, in that order."""
    snapshot = ledger.snapshot() | {"input": trainer.input_seconds()}
    return [snapshot[name] for name in _NAMES]


def _rank_seconds(rows: list[list[float]]) -> np.ndarray:
    """Return, for each rank, the cumulative seconds whose increase between two evaluations is
    `Evaluation.rank_parts`. `rows` contains the seconds of each rank, in the order of _NAMES."""
    return np.array(rows)[:, [_NAMES.index(name) for name in (*CPU_NAMES, "input")]]


class Recording:
    """Combines the measurements of all workers, for runs that record steps (`record_steps`)."""

    def __init__(
        self, spec: RunSpec, trainer: BaseTrainer, world: DistributedContext, dataset: Dataset
    ) -> None:
        self._trainer, self._world = trainer, world
        is_text = dataset.task == "language_modelling"
        self._tokens = math.prod(dataset.train.labels.shape[1:]) if is_text else None
        self._global_batch = spec.global_batch_size
        self._gpus = [GpuLoad(index) for index in world.gpus]
        self._bytes = bytes_exchanged(spec, trainer.num_parameters)

    def begin(self) -> None:
        """Start to measure the GPU load; call before `BaseTrainer.train`, while no training time is
        counted yet."""
        for gpu in self._gpus:
            gpu.begin()

    def end(self, steps: list[Step]) -> dict[str, Any]:
        """Return the values of those fields of an `Evaluation` that only runs with `record_steps`
        have, keyed by field name.

        They describe the last call of `BaseTrainer.train` and are equal on all ranks. Collective:
        all ranks must call it.

        Args:
            steps: Steps of that call.
        """
        shares = [share for gpu in self._gpus if (share := gpu.share()) is not None]
        share = sum(shares) / len(shares) if shares else None
        memory = self._trainer.memory_peak_bytes()
        log, num = self._trainer.step_log(), len(steps)
        samples = [float(step.num_samples) for step in steps]
        row = [_or_nan(share), _or_nan(memory), *log.seconds, *samples, *log.part_squares]
        rows = np.array(self._world.gather(row))
        shares, memories = (column[~np.isnan(column)] for column in rows[:, :2].T)
        seconds, counts, parts = np.split(rows[:, 2:], [num, 2 * num], axis=1)
        slowest = seconds.max(axis=0)  # NaN if NaN on any rank
        is_whole = counts.sum(axis=0) == self._global_batch
        return {
            "steps": StepTimes.of(slowest[is_whole].tolist(), slowest[~is_whole].tolist()),
            "evenness": evenness(seconds),
            "memory_peak_bytes": int(memories.max()) if len(memories) else None,
            "gpu_utilization": float(shares.mean()) if len(shares) else None,
            "bytes_exchanged_per_step": self._bytes,
            "flops_per_sample": self._trainer.flops_per_sample,
            "tokens_per_sample": self._tokens,
            "noise_scale": _noise(parts, log.whole_squares, counts),
        }


def evenness(seconds: np.ndarray) -> float | None:
    """Return the total step time of the fastest worker divided by that of the slowest worker.

    Args:
        seconds: Step times in seconds, shape (workers, steps). Steps for which the time of any
            worker is NaN are left out.

    Returns:
        The ratio, at most 1; None for a single worker, or without steps.
    """
    known = seconds[:, ~np.isnan(seconds).any(axis=0)].sum(axis=1)
    return float(known.min() / known.max()) if len(known) > 1 and known.max() > 0 else None


def _noise(parts: np.ndarray, wholes: list[float], counts: np.ndarray) -> NoiseSums | None:
    """Return sums over the steps' estimates of the gradient noise; None without an estimate.

    Args:
        parts: `StepLog.part_squares` of all ranks, shape (ranks, steps).
        wholes: `StepLog.whole_squares` of one rank, one number per step.
        counts: Number of samples of each rank, shape (ranks, steps).
    """
    terms = [
        terms_of_parts(part.tolist(), whole, [int(size) for size in count])
        for part, whole, count in zip(parts.T, wholes, counts.T, strict=bool(wholes))
        if math.isfinite(whole)  # otherwise the step was skipped in fp16
    ]
    return NoiseSums.of([estimate for estimate in terms if estimate is not None])


def _or_nan(value: float | None) -> float:
    """Return a number, or NaN for None, so that ranks can exchange it."""
    return math.nan if value is None else value
