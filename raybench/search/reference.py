"""Reference runs: train a typical configuration to set the target, training limit and evaluation
interval of a study.

The reference configuration is the first configuration of `search.first`. Without one, it is the
first optimizer of the space at its default learning rate (for an optimizer from a library, at the
middle of the searched range). The seeds of reference runs differ from those of all trials.

- `target: auto`: three concurrent runs train for as long as a trial may. With a time budget, they
  train for at most a fifth of it in total; if that is less than FEW_S seconds per run, there are
  only as many runs as can run at the same time.
  - The target is the median of the values reached early enough to leave time for a search
    (`early_s`), minus half a percentage point (or 1 % of the gap to the baseline, unless the metric
    is a proportion). It is always better than chance.
  - The median run (or the best, if the median run missed the target) counts as a trial. If a study
    has a time budget and a given target, its only reference run counts as a trial too.
- `max_train_seconds: auto`: four times the time to target of the reference run.
- `eval_every_samples` not set: about twenty evaluations until the reference run reaches the target.
  Evaluations take at most about a fifth of the training time.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raybench.results.records import read_records
from raybench.runs.lifecycle import SingleRun, run_in_parallel
from raybench.search.preflight import GROUP_KEYS
from raybench.search.sampling.default_rates import rate_factor, typical_values
from raybench.search.sampling.earlier import rejudged
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import (
    BUDGET,
    MARGIN_WITH_TEST_SPLIT,
    MARGIN_WITHOUT_TEST_SPLIT,
    TIME,
    Baseline,
    StopReason,
    StopRule,
    small_difference,
)
from raybench.spec.run import RunSpec, describe, flat
from raybench.spec.space import Space, combinations, known_values
from raybench.spec.study import EVAL_INTERVAL, NUM_REFERENCE_RUNS, StudySpec
from raybench.stats.record import Evaluation, Role, RunRecord

SEEDS_FROM = 2000
"""Offset between the seed of the search and the seeds of reference runs."""
FEW_S = 10.0
"""Seconds per reference run. If the time budget leaves less, there are only as many reference runs
as can run at the same time."""
PARTS_OF_EPOCH = 8
FEWEST_SAMPLES = 512
TYPICAL_BUDGET_S = 600.0
"""A reference run is evaluated PARTS_OF_EPOCH times per epoch. With a time budget below this number
of seconds, it is evaluated proportionally more often, but at most once per FEWEST_SAMPLES
samples."""
TARGET_MARGIN = 0.005
"""Difference between the median value of the reference runs and the target, if the metric is a
proportion: half a percentage point."""
EVALUATIONS = 20
"""Number of evaluations that the reference run should need to reach the target."""
EVALUATION_SHARE = 0.2
"""Approximate largest ratio of evaluation time to training time."""
FEWEST_EVALUATIONS = 4
"""Smallest number of evaluations within the training limit, since a trial ends at an evaluation."""
PATIENCE = 4.0
"""Training limit of a trial as a multiple of the reference run's time to target."""
REFERENCE_SHARE = 0.2
"""Largest fraction of the time budget that all reference runs together may take."""
NUM_AFFORDABLE_TRIALS = 20
"""Number of trials that should fit into the time budget."""
SEARCH_SHARE = 0.5
"""Fraction of the remaining time that is planned for the search; the rest is for the confirmation
and for starting workers."""
EARLIEST_SHARE = 0.25
"""Smallest fraction of a reference run's training time whose values set the target."""
LATEST_SHARE = 0.5
"""Largest fraction of a reference run's training time whose values set the target, if a time limit
ended the run, since the metric may still have been improving."""
DIGITS = 3
"""Number of decimals of the target if the metric is a proportion: tenths of a percentage point."""


@dataclass(frozen=True)
class ReferenceRun:
    """Record and learning curve of a reference run."""

    record: RunRecord
    curve: list[Evaluation]

    @property
    def values(self) -> list[float]:
        """Metric value at each evaluation."""
        return [point.value for point in self.curve]

    def first_at(self, target: float | None) -> Evaluation | None:
        """Return the first evaluation that reached the target; None if no evaluation did, or if
        there is no target."""
        metric = self.record.spec.objective.judged_by
        reaching = (p for p in self.curve if target is not None and metric.reaches(p.value, target))
        return next(reaching, None)

    def samples_to(self, target: float | None) -> float:
        """Return the number of training samples to the target.

        The result is twice the total of the run if it missed the target, and the total if there is
        no target.
        """
        if target is None:
            return float(self.record.samples)
        first = self.first_at(target)
        return float(2 * self.record.samples if first is None else first.samples)

    def until(self, seconds: float, min_count: int) -> list[float]:
        """Return the metric values in the first `seconds` of training, and at least the first
        `min_count` values."""
        number = sum(point.train_s <= seconds for point in self.curve)
        return self.values[: max(number, min_count)]

    @property
    def evaluation_samples(self) -> float:
        """Number of samples that could be trained in the time that one evaluation takes."""
        ledger = self.record.ledger
        speed = self.record.samples / max(ledger["train"], 1e-9)
        return speed * ledger["eval"] / max(len(self.curve), 1)


def set_by_reference(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    *,
    at_once: Callable[[RunSpec], int],
    baseline_value: float | None,
    baselines: Mapping[str, Baseline | None],
    num_train_samples: int,
    has_room: Callable[[RunSpec], bool] = lambda spec: True,
) -> tuple[StudySpec, list[str]] | None:
    """Train the reference runs, and set the `auto` keys of a study from their results.

    Args:
        study: The study.
        space: Search space of the study.
        single_run: Trains and records the reference runs.
        at_once: Function that returns how many runs with a given spec can run on the cluster at the
            same time.
        baseline_value: Metric value of a constant prediction; None if unknown.
        baselines: Baselines (metric value of a constant prediction, with its sampling error), keyed
            by split; None if unknown.
        num_train_samples: Number of training samples.
        has_room: Function that returns whether the workers of a run fit on the cluster.

    Returns:
        The study with its settings, and one sentence per setting; None if the user or the time
        budget ended the runs.

    Raises:
        UserError: A key cannot be set, because the reference runs failed or learned nothing.
    """
    deadline, budget = single_run.deadline, study.search.time_budget_s
    eval_interval = num_train_samples // PARTS_OF_EPOCH
    eval_interval = max(
        int(eval_interval * min(1.0, (budget or TYPICAL_BUDGET_S) / TYPICAL_BUDGET_S)),
        FEWEST_SAMPLES,
    )
    run = partial(_train, study, space, single_run, eval_interval, at_once, has_room)
    if study.needs_target:
        runs = run(number=NUM_REFERENCE_RUNS, factor=1.0)
    else:
        runs = run(number=1, factor=rate_factor(study))
        # The raised learning rate may have been too high: try the default rate.
        if runs and runs[0].record.failure and not deadline.over:
            runs = run(number=1, factor=1.0)
    good = [reference for reference in runs if reference.curve and reference.record.failure is None]
    if deadline.over:
        return None
    if not good:
        return _without_reference(study, runs[0].record, eval_interval)
    sentences: list[str] = []
    room_s = room_for(deadline.left_s, at_once(good[0].record.spec))
    if study.needs_target:
        errors = MARGIN_WITHOUT_TEST_SPLIT if baselines["test"] is None else MARGIN_WITH_TEST_SPLIT
        base = baselines["validation"]
        study, sentence = set_target(
            study, good, baseline_value, room_s=room_s, baseline=base, errors=errors
        )
        sentences.append(sentence)
    median_run = sorted(good, key=lambda reference: reference.samples_to(study.objective.target))[
        len(good) // 2
    ]
    if "max_train_seconds" in study.auto and study.objective.kind == TIME:
        study, sentence = set_seconds(study, median_run)
        sentences.append(sentence)
    if EVAL_INTERVAL in study.auto:
        study, sentence = set_eval_interval(study, median_run, num_train_samples)
        sentences.append(sentence)
    if "target" in study.auto or budget is not None:
        trials = [_as_trial(study, reference, baseline_value) for reference in good]
        chosen = good.index(median_run)
        if trials[chosen].time_to_target_s is None:
            chosen = min(range(len(good)), key=lambda index: trials[index].score)
        _count_as_trial(good[chosen], trials[chosen], single_run)
    return study.model_copy(update={"is_set": True}), sentences


def _train(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    eval_interval: int,
    at_once: Callable[[RunSpec], int],
    has_room: Callable[[RunSpec], bool],
    *,
    number: int,
    factor: float,
) -> list[ReferenceRun]:
    """Train up to `number` reference runs concurrently; return all that have a record.

    Fewer runs train if the time budget is short. `eval_interval` is the number of samples between
    two evaluations, if the study does not set it, and `factor` is a factor on the default learning
    rate. For the other arguments, see `set_by_reference`.
    """
    deadline, budget = single_run.deadline, study.search.time_budget_s
    spec = reference_spec(study, space, factor=factor, has_room=has_room)
    if EVAL_INTERVAL in study.auto:
        spec = spec.model_copy(update={EVAL_INTERVAL: eval_interval})
    slots = at_once(spec)
    share_s = math.inf
    if budget is not None:
        share_s = max(min(REFERENCE_SHARE * budget, deadline.left_s / 3), 0.1)
    if share_s / math.ceil(number / slots) < FEW_S:
        number = min(number, slots)
    limit_s = min(spec.objective.max_train_seconds, share_s / math.ceil(number / slots))
    objective = spec.objective.model_copy(update={"max_train_seconds": limit_s})
    spec = spec.model_copy(update={"objective": objective})
    single_run.progress.begin(Role.REFERENCE, number)
    records: dict[int, RunRecord] = {}

    def train(index: int) -> None:
        seed = (study.search.seed + SEEDS_FROM + index) % 2**32
        seeded = spec.model_copy(update={"seed": seed})
        records[index] = single_run.train(seeded, f"reference{index}", Role.REFERENCE)

    jobs = [partial(train, index) for index in range(number)]
    run_in_parallel(jobs, slots=slots, deadline=deadline)
    curves = read_records(single_run.store.folder).curves
    return [
        ReferenceRun(record, curves.get(record.trial, [])) for _, record in sorted(records.items())
    ]


def _as_trial(study: StudySpec, reference: ReferenceRun, baseline_value: float | None) -> RunRecord:
    """Return the record that a reference run would have as a trial."""
    changes: dict[str, Any] = {"objective": study.objective}
    if EVAL_INTERVAL in study.auto and EVAL_INTERVAL in study.fixed:
        changes[EVAL_INTERVAL] = study.fixed[EVAL_INTERVAL]
    record = replace(reference.record, spec=reference.record.spec.model_copy(update=changes))
    return rejudged(record, reference.curve, study.objective, baseline_value=baseline_value)


def _count_as_trial(reference: ReferenceRun, record: RunRecord, single_run: SingleRun) -> None:
    """Record a reference run a second time, as a trial."""
    for point in reference.curve:
        single_run.append(point.line(record.trial, role=Role.TRIAL, spec=record.spec))
    single_run.append(record.line())
    single_run.saved.finish(record)


def reference_spec(
    study: StudySpec,
    space: Space,
    *,
    factor: float = 1.0,
    has_room: Callable[[RunSpec], bool] = lambda spec: True,
) -> RunSpec:
    """Return the run spec of the reference runs.

    Its configuration is the first of `search.first`, or a typical one of the space that fits on the
    cluster. It may train for as long as a trial; it has no target if reference runs are to set it.

    Args:
        study: The study.
        space: Search space of the study.
        factor: Factor on the default learning rate.
        has_room: Function that returns whether the workers of a run fit on the cluster.
    """
    given = flat(study.search.first[0]) if study.search.first else None
    values = typical_values(study, space, given=given, factor=factor)
    objective = study.objective
    if study.needs_target:
        objective = objective.model_copy(update={"kind": BUDGET, "target": None, "hold": 1})
    spec = study.run_spec(values)
    if not has_room(spec):
        others = combinations(space, study.fixed, GROUP_KEYS)
        specs = (
            study.run_spec(values | {k: other[k] for k in other if k in space}) for other in others
        )
        spec = next(filter(has_room, specs), spec)
    return spec.model_copy(update={"objective": objective})


def _without_reference(
    study: StudySpec, record: RunRecord, eval_interval: int
) -> tuple[StudySpec, list[str]]:
    """Return a study whose reference runs failed, and a sentence about its evaluation interval.

    The evaluation interval stays that of the failed reference run.

    Raises:
        UserError: Another key is `auto`, so it has no value.
    """
    unset_keys = [key for key in study.auto if key != EVAL_INTERVAL]
    reason = f"the reference run failed ({record.failure}: {record.message})"
    if unset_keys:
        raise UserError(
            f"{unset_keys[0]}: auto: {reason}; set a value instead.", ErrorCode.NO_RESULT
        )
    sentence = f"evaluated every {eval_interval:,} samples: {reason}"
    return study.with_auto_values({EVAL_INTERVAL: eval_interval}), [sentence]


def with_objective(study: StudySpec, **changes: Any) -> StudySpec:
    """Return a copy of a study with the given keys of its objective changed."""
    return study.model_copy(update={"objective": study.objective.model_copy(update=changes)})


def room_for(left_s: float, slots: int) -> float:
    """Return how many seconds a trial may train so that NUM_AFFORDABLE_TRIALS of them fit into the
    search.

    Args:
        left_s: Remaining seconds of the time budget.
        slots: Number of concurrent trials.
    """
    return SEARCH_SHARE * max(left_s, 0.0) * slots / NUM_AFFORDABLE_TRIALS


def early_s(run: ReferenceRun, room_s: float) -> float:
    """Return the length of the early part of a reference run in seconds; its values set the target.

    This part is so short that the search has time for many trials of about the same length.

    Args:
        run: The reference run.
        room_s: Training time in seconds that the search can spend per trial.
    """
    length = run.curve[-1].train_s
    is_cut = run.record.stop != StopReason.EPOCHS  # a time limit ended the run
    return max(EARLIEST_SHARE * length, min(room_s, LATEST_SHARE * length if is_cut else length))


def target_from(
    values: list[float],
    baseline_value: float | None,
    metric: Metric = ACCURACY,
    *,
    by_chance: float | None = None,
) -> float:
    """Return a target derived from the values that reference runs reached.

    The target is the median value, made easier by half a percentage point if the metric is a
    proportion, else by 1 % of the gap between median and baseline. It is rounded by at most a tenth
    of that margin.

    Args:
        values: Metric value of each reference run.
        baseline_value: Metric value of a constant prediction; None if unknown.
        metric: The metric.
        by_chance: Best value that can be reached by chance; None if unknown. The target is at least
            as good.

    Raises:
        UserError: The median is not finite, or `by_chance` is unknown and the median is hardly
            better than the baseline.
    """
    median = statistics.median(values)
    margin = small_difference(metric, median, baseline_value, points=TARGET_MARGIN)
    gap = math.inf if baseline_value is None else metric.gap(median, baseline_value)
    min_gap = (
        2 * TARGET_MARGIN
        if metric.is_share
        else small_difference(metric, baseline_value or 0.0, None)
    )
    if (by_chance is None and gap <= min_gap) or not math.isfinite(median):
        how = f"{median:.1%}" if metric.is_share else f"{metric.words} {median:.4g}"
        raise UserError(
            f"target: auto: the reference runs reached {how}, hardly "
            f"{'above' if metric.direction == 'max' else 'below'} the baseline; "
            "increase objective.max_train_seconds, or set a target.",
            ErrorCode.NO_RESULT,
        )
    target = median - metric.sign * margin
    if by_chance is not None and metric.reaches(by_chance, target):
        target, margin = by_chance, abs(by_chance - (baseline_value or 0.0)) / 10
    digits = DIGITS
    if not metric.is_share and margin > 0:
        digits = 1 - math.floor(math.log10(margin))
    return round(target, digits)


def held(values: Sequence[float], hold: int, metric: Metric = ACCURACY) -> float | None:
    """Return the best value that `hold` consecutive evaluations all reached; None if there are no
    `hold` consecutive evaluations without NaN."""
    signed = [metric.sign * value for value in values]
    windows = [signed[at : at + hold] for at in range(len(signed) - hold + 1)]
    worst = [min(window) for window in windows if not any(map(math.isnan, window))]
    return metric.sign * max(worst) if worst else None


def _hold_words(hold: int) -> str:
    return f" held for {hold} evaluations" if hold > 1 else ""


def set_target(
    study: StudySpec,
    runs: list[ReferenceRun],
    baseline_value: float | None,
    *,
    room_s: float = math.inf,
    baseline: Baseline | None = None,
    errors: float = MARGIN_WITH_TEST_SPLIT,
) -> tuple[StudySpec, str]:
    """Return the study with its target, and a sentence saying how the target was set.

    The target comes from the early values of the runs, or from their final values if the early ones
    are not above chance.

    Args:
        study: The study.
        runs: Reference runs.
        baseline_value: Metric value of a constant prediction; None if unknown.
        room_s: Training time in seconds that the search can spend per trial.
        baseline: Baseline on the validation set, whose sampling error bounds what chance can reach;
            None if unknown.
        errors: A value must beat the baseline by more than this many standard errors to count as
            better than chance.
    """
    metric, hold = study.objective.judged_by, study.objective.hold
    by_chance = None if baseline is None else baseline.beyond(metric, errors)
    early = [held(run.until(early_s(run, room_s), hold), hold, metric) for run in runs]
    is_early = _is_enough(early, by_chance, baseline_value, metric)
    best_values = early if is_early else [held(run.values, hold, metric) for run in runs]
    values = [value for value in best_values if value is not None]
    if len(values) < len(best_values):
        raise UserError(
            f"target: auto: a reference run has no {metric.words}{_hold_words(hold)}; increase "
            "objective.max_train_seconds, or set a target.",
            ErrorCode.NO_RESULT,
        )
    target = target_from(values, baseline_value, metric, by_chance=by_chance)
    if baseline is not None and target != target_from(
        values, baseline_value, metric, by_chance=baseline.value
    ):
        reached = ", ".join(metric.shown(value) for value in values)
        how = (
            f"the best value that chance may reach on {baseline.rows:,} validation rows, given the "
            f"baseline of {baseline.value:.4g}; {describe(runs[0].record.spec)} reached "
            f"{reached}{_hold_words(hold)}, which may be chance: more validation rows would show it"
        )
        return with_objective(study, target=target), f"target {target} (auto: {how})"
    within_s = statistics.median(early_s(run, room_s) for run in runs) if is_early else None
    how = _median_words(runs[0], values, study, baseline_value, within_s)
    ends = [metric.best([v for v in run.values if not math.isnan(v)]) for run in runs]
    later_gaps = [metric.gap(end, target) for end in ends if end is not None]
    tail = ""
    if baseline_value is not None and statistics.median(later_gaps) > metric.gap(
        target, baseline_value
    ):
        best = ", ".join(metric.shown(end) for end in ends)
        tail = (
            f"; it later reached {best}, so the target rewards fast starts: set a higher one, or "
            "objective.kind: best_at_budget, if the final value matters"
        )
    return with_objective(study, target=target), f"target {target} (auto: {how}){tail}"


def _median_words(
    run: ReferenceRun,
    values: list[float],
    study: StudySpec,
    baseline_value: float | None,
    within_s: float | None,
) -> str:
    """Return words that explain how the target follows from the values of the reference runs.

    The runs reached `values` within the first `within_s` seconds of training; None stands for the
    whole run.
    """
    metric, hold = study.objective.judged_by, study.objective.hold
    form, off = ".4f", "less half a point"
    if not metric.is_share:
        whole = "it" if baseline_value is None else "its gap to the baseline"
        form, off = ".6g", f"and 1 % of {whole} worse"
    when = ""
    if within_s is not None:
        when = f" within {within_s:.2g} s of training, so that trials may be faster"
    return (
        f"median of {', '.join(f'{value:{form}}' for value in values)}, best validation "
        f"{metric.words}{_hold_words(hold)} of {describe(run.record.spec)}{when}, {off}"
    )


def _is_enough(
    values: list[float | None],
    by_chance: float | None,
    baseline_value: float | None,
    metric: Metric,
) -> bool:
    """Return whether the median of the reference runs' values is better than chance.

    If the best value that can be reached by chance is unknown (`by_chance` is None), the baseline,
    improved by a small margin, is used instead.
    """
    reached = [value for value in values if value is not None]
    if len(reached) < len(values):
        return False
    median = statistics.median(reached)
    if by_chance is None and baseline_value is not None:
        by_chance = baseline_value + metric.sign * small_difference(
            metric, baseline_value, None, points=2 * TARGET_MARGIN
        )
    return by_chance is None or metric.gap(median, by_chance) > 0


def set_seconds(study: StudySpec, run: ReferenceRun) -> tuple[StudySpec, str]:
    """Return the study with its training limit, and a sentence saying how it was set."""
    record, objective = run.record, study.objective
    train_s = record.ledger["train"]
    train_seconds = [point.train_s for point in run.curve]
    reached = StopRule(objective, values=run.values, train_seconds=train_seconds).time_to_target_s
    seconds = PATIENCE * (train_s if reached is None else reached)
    if study.search.time_budget_s is not None:
        seconds = min(seconds, study.search.time_budget_s / 3)
    seconds = max(_two_digits(seconds), 0.1)
    what = (
        f"missed the target in {train_s:.2g} s"
        if reached is None
        else f"took {reached:.2g} s to the target"
    )
    how = f"trials train for at most {seconds:g} s (auto: {describe(record.spec)} {what})"
    return with_objective(study, max_train_seconds=seconds), how


def set_eval_interval(
    study: StudySpec, run: ReferenceRun, num_train_samples: int
) -> tuple[StudySpec, str]:
    """Return the study with its evaluation interval, and a sentence saying how it was set."""
    target = study.objective.target
    samples = run.samples_to(target)
    epochs = float(known_values(study.fixed, {})["epochs"])
    limit = int(epochs * num_train_samples) // (study.objective.hold + 1)
    speed = run.record.samples / max(run.record.ledger["train"], 1e-9)
    run_samples = speed * study.objective.max_train_seconds
    limit = min(limit, max(1, int(run_samples / FEWEST_EVALUATIONS)))
    wanted = max(samples / EVALUATIONS, run.evaluation_samples / EVALUATION_SHARE)
    eval_interval = max(1, min(round(wanted), limit))
    is_reached = run.first_at(target) is not None
    counted = samples if is_reached else min(run_samples, epochs * num_train_samples)
    num_evaluations = max(1, round(counted / eval_interval))
    times = "once" if num_evaluations == 1 else f"{num_evaluations} times"
    how = f"evaluated every {eval_interval:,} samples (about {times} "
    how += "to the target" if is_reached else "in a run"
    if target is not None and not is_reached:
        metric = study.objective.judged_by
        best = metric.shown(run.record.best_value)
        how += (
            f"; the reference missed the target with a best {metric.words} of {best}, so trials "
            "may need more max_train_seconds, or another target"
        )
    fixed = study.fixed | {EVAL_INTERVAL: eval_interval}
    return study.model_copy(update={"fixed": fixed}), f"{how})"


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
