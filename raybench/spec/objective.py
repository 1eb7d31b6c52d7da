"""Objective of a run: metric, target and budget, when it ends, and its score.

The score is one number for the search, the less the better.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raybench.spec.dataset_spec import Task
from raybench.spec.documents import Document, PositiveFloat, PositiveInt
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY, METRICS, Direction, Metric, find_metric, named_metric

TIME: Final = "time_to_target"
BUDGET: Final = "best_at_budget"


def _kind(given: object) -> object:
    if given == "accuracy_per_second":
        raise ValueError(
            "accuracy divided by seconds is refused, because 40 % in 10 s would beat 93 % in "
            f"200 s; use {TIME} with a target, or {BUDGET}"
        )
    if given not in (TIME, BUDGET):
        raise ValueError(f"must be {TIME} or {BUDGET}")
    return given


class Objective(Document):
    """Objective: what a run is judged by, and when it may end."""

    kind: Annotated[Literal["time_to_target", "best_at_budget"], BeforeValidator(_kind)] = TIME
    """`time_to_target` (train seconds to the target) or `best_at_budget`."""
    metric: str | None = None
    """Metric on the validation set: accuracy, top5_accuracy, loss, perplexity, rmse, r2,
    mean_absolute_error, or the workload's own; by default that of the task."""
    direction: Direction | None = None
    """Whether more of the metric is better (`max`, `min`); known of all but a workload's own, which
    says it, and those that a training loop of your own reports."""
    is_share: bool | None = None
    """Whether a workload's own metric lies in 0..1 and is shown in per cent; the workload says
    it, and of all others it is known."""
    metric_pattern: str | None = None
    """Regular expression that finds the metric in a line that a command prints, as its first group:
    `accuracy=([0-9.]+)`; groups named `train_s`, `samples` and `test` are read too. By default such
    a line is JSON."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Value of the metric to reach; of an accuracy as a fraction: 0.98, not 98."""
    baseline_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Value of an answer that does not look at the inputs; by default from the labels."""
    hold: Annotated[PositiveInt, Field(le=1000)] = 1
    """Evaluations in a row at or beyond the target; the time of the first one counts."""
    max_train_seconds: PositiveFloat = 60.0
    """Seconds on the training clock after which a run ends (at the next evaluation)."""

    @field_validator("metric_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression ({error})") from None
        if groups < 1:
            raise ValueError("needs a group around the number, such as accuracy=([0-9.]+)")
        return pattern

    @model_validator(mode="after")
    def _target_given(self) -> "Objective":
        if self.kind == TIME and self.target is None:
            raise ValueError(f"{TIME} needs a target, for example target: 0.95")
        is_share = self.metric is not None and self.judged_by.is_share
        if is_share and self.target is not None and not 0 < self.target <= 1:
            raise ValueError(
                f"the target of {self.metric} is a fraction above 0, at most 1: 0.98, not 98 "
                f"(found {self.target:g})"
            )
        return self

    @property
    def judged_by(self) -> Metric:
        """The metric, as far as it is known without the workload: accuracy where none is named."""
        if self.metric is None:
            return ACCURACY
        return named_metric(self.metric, self.direction or "max", is_share=bool(self.is_share))


def naming(metric: Metric) -> dict[str, object]:
    """Return the keys of an objective that name a metric; `is_share` of a workload's own alone."""
    is_share = None if metric.name in METRICS else metric.is_share
    return {"metric": metric.name, "direction": metric.direction, "is_share": is_share}


def resolved(
    objective: Objective, *, task: Task, own: Metric | None, baseline_value: float | None
) -> Objective:
    """Return the objective with its metric, direction and baseline value named.

    `own` is the workload's metric, `baseline_value` what the labels say. UserError for a metric
    that the task does not have, and for a target that the baseline reaches.
    """
    metric = find_metric(objective.metric, task=task, own=own)
    is_max, target = metric.direction == "max", objective.target
    if objective.direction not in (None, metric.direction):
        more = "more" if is_max else "less"
        raise UserError(
            f"objective.direction: {metric.name} is better the {more} it is; leave it out."
        )
    if objective.is_share not in (None, metric.is_share):
        is_share = "a" if metric.is_share else "no"
        raise UserError(f"objective.is_share: {metric.name} is {is_share} share; leave it out.")
    if objective.baseline_value is not None:
        baseline_value = objective.baseline_value
    if target is not None:
        if metric.is_share and not 0 < target <= 1:
            raise UserError(
                f"objective.target: of {metric.name} it is a fraction above 0, at most 1: 0.98, "
                f"not 98 (found {target:g})."
            )
        if baseline_value is not None and metric.gap(target, baseline_value) <= 0:
            raise UserError(
                f"objective.target: {target:g} is not better than the baseline, whose "
                f"{metric.words} is {baseline_value:.6g} (an answer that does not look at the "
                f"inputs); name a {'higher' if is_max else 'lower'} one."
            )
    return objective.model_copy(update=naming(metric) | {"baseline_value": baseline_value})


def time_to_target(
    values: Sequence[float],
    train_seconds: Sequence[float],
    *,
    target: float,
    hold: int = 1,
    metric: Metric = ACCURACY,
) -> float | None:
    """Train seconds at the first of `hold` evaluations in a row that reach the target.

    None if that never happened. The sequences are one run's evaluations, in order.
    """
    row = 0
    for index, value in enumerate(values):
        row = row + 1 if metric.reaches(value, target) else 0
        if row == hold:
            return train_seconds[index - hold + 1]
    return None


class StopRule:
    """Follows one run's evaluations and names the reason to end, if there is one.

    A continued run begins with the `values` and `train_seconds` of its evaluations so far.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        values: Sequence[float] = (),
        train_seconds: Sequence[float] = (),
    ) -> None:
        self._objective, self._metric = objective, objective.judged_by
        self._values, self._seconds = list(values), list(train_seconds)

    def update(
        self, *, value: float, train_s: float, finished: bool
    ) -> Literal["target", "max_train_seconds", "epochs"] | None:
        """Take one evaluation; `finished` says that all epochs are done."""
        self._values.append(value)
        self._seconds.append(train_s)
        if self._objective.kind == TIME and self.time_to_target_s is not None:
            return "target"
        if train_s >= self._objective.max_train_seconds:
            return "max_train_seconds"
        return "epochs" if finished else None

    @property
    def time_to_target_s(self) -> float | None:
        """Train seconds to the target so far; None if not reached or no target is given."""
        target, hold = self._objective.target, self._objective.hold
        if target is None:
            return None
        curve = self._values, self._seconds
        reached = time_to_target(*curve, target=target, hold=hold, metric=self._metric)
        late = reached is not None and reached > self._objective.max_train_seconds
        return None if late else reached

    @property
    def best_value(self) -> float | None:
        """The value that the run is judged by so far; None before the first evaluation.

        The best one. With `best_at_budget` that of the last evaluation within the budget, whose
        weights are kept: the best of many is luck, and the more evaluations, the more of it.
        """
        if self._objective.kind != BUDGET:
            return self._metric.best(self._values)
        timed = zip(self._seconds, self._values, strict=True)
        within = [one for seconds, one in timed if seconds <= self._objective.max_train_seconds]
        return self._metric.best(within[-1:])


MISS_WEIGHT = 2.0
"""lambda: how far the worst miss stands above log(max_train_seconds)."""
MIN_SECONDS = 1e-3
"""Times below this count as this (log of 0 does not exist)."""
MOST_UNKNOWN = 20.0
"""The worst `shortfall` where the baseline is unknown: that of a value of 240 million."""
BEST_OF_MANY = 3.0
"""Standard errors above the baseline that a target of ours lies, where a test split judges the
winner once more: the best of a search's evaluations of noise is 2.5 to 4 above."""
BEST_OF_ALL = 4.0
"""Standard errors above the baseline that a target of ours lies where there is no test split."""
ONE_SIDED = 1.645
"""Standard errors above the baseline that luck gets to in 5 of 100."""
_FREQUENCIES, _MEAN = "always answering how frequent classes are", "always answering the mean"
GUESSES = {
    "accuracy": "always answering the most frequent class",
    "top5_accuracy": "always naming the five most frequent classes",
    "loss": _FREQUENCIES,
    "perplexity": _FREQUENCIES,
    "mean_absolute_error": "always answering the median",
    "rmse": _MEAN,
    "r2": _MEAN,
}
"""The baseline of a metric, for a sentence."""
PART_OF_GAP = 0.01
"""Size of a point of metrics that are no shares: a hundredth of the gap to the baseline."""


@dataclass(frozen=True)
class Baseline:
    """Value that the best answer without a look at the inputs reaches on a split's rows, and how
    far above it models get on as many rows where there is nothing to learn.

    All runs share these rows, so new seeds do not help against their luck. A model of noise whose
    answers differ from the baseline's by d gains z standard errors, proportional to d, and loses
    what is proportional to d squared: at best `z**2 * square`. Where d costs nothing, as between
    equally frequent classes, the gain is at most `z * error` (binomial).
    """

    value: float
    rows: int
    error: float | None = None
    """Standard error over the rows, where the value is a share."""
    square: float | None = None
    """None where it is not known, or does not bound the gain."""
    level: float | None = None
    """The value by the training labels, where classes may be equally frequent: which of them leads
    among these rows is luck too."""

    def beyond(self, metric: Metric, errors: float = ONE_SIDED) -> float | None:
        """Return the value that noise does not get beyond with so many standard errors of luck."""
        known = [] if self.error is None else [errors * self.error]
        known += [] if self.square is None else [errors**2 * self.square]
        if not known:
            return None
        value = (self.value if self.level is None else self.level) + metric.sign * min(known)
        return min(max(value, 0.0), 1.0) if metric.is_share else value

    def document(self) -> dict[str, Any]:
        """Return it for `study.yaml`."""
        return asdict(self)


def share_error(share: float, rows: int) -> float:
    """Return the standard error of a share that was measured on so many rows (binomial)."""
    return math.sqrt(max(share * (1.0 - share), 0.0) / rows)


def search_score(
    objective: Objective,
    *,
    time_to_target_s: float | None,
    best_value: float | None,
    baseline_value: float | None,
) -> float:
    """Return the number the search minimises; comparable over all runs of a study.

    time_to_target: log T if the target was reached within `max_train_seconds`, else
    log T_max + 2 gap(A*, best) / gap(A*, baseline), at most 2, so that every reached run beats
    every missed one and the searcher still sees a slope. best_at_budget: `shortfall`.
    `best_value` None (nothing evaluated, out of memory, NaN) scores worst. `baseline_value` stands
    in where the objective has none; None is unknown.
    """
    metric = objective.judged_by
    if objective.baseline_value is not None:
        baseline_value = objective.baseline_value
    if objective.kind == BUDGET:
        return shortfall(metric, best_value, baseline_value)
    assert objective.target is not None
    ceiling = math.log(objective.max_train_seconds)
    if time_to_target_s is not None and time_to_target_s <= objective.max_train_seconds:
        return min(math.log(max(time_to_target_s, MIN_SECONDS)), ceiling)
    if best_value is None or math.isnan(best_value):
        return ceiling + MISS_WEIGHT
    width = _gap_to_baseline(metric, objective.target, baseline_value)
    missing = metric.gap(objective.target, best_value) / width
    if baseline_value is None and not metric.is_share:
        missing = 1.0 - 1.0 / (1.0 + max(missing, 0.0))  # what is as bad as can be is unknown
    # The curve may touch the target without holding it: still a miss, so never below 0.
    return ceiling + MISS_WEIGHT * min(max(missing, 0.0), 1.0)


def _gap_to_baseline(metric: Metric, target: float, baseline_value: float | None) -> float:
    """Return what the baseline lacks to the target; where it is unknown, what the worst share
    lacks, and of others as much as the target itself: half of a miss is due there."""
    if baseline_value is None and not metric.is_share:
        return abs(target) or 1.0
    if baseline_value is None:
        baseline_value = 0.0 if metric.direction == "max" else 1.0
    return max(metric.gap(target, baseline_value), 1e-9)


def shortfall(metric: Metric, value: float | None, baseline_value: float | None) -> float:
    """Return what a value lacks, the less the better; None is as bad as a value can count.

    Of shares what is missing to 1, or where less is better all there is above 0. Of others the
    value itself, its sign turned where more is better, and no worse than twice as far from 0 as
    the baseline is: a loss that has burst says no more than that. Where the baseline is unknown its
    asinh, about the logarithm of large values, and at most 20.
    """
    worst = 1.0 if metric.is_share else MOST_UNKNOWN
    if baseline_value is not None and not metric.is_share:
        worst = max(-metric.sign * baseline_value, 0.0) + max(abs(baseline_value), 1.0)
    if value is None or math.isnan(value):
        return worst
    if metric.is_share:
        return abs((1.0 if metric.direction == "max" else 0.0) - value)
    lack = -metric.sign * value
    return min(lack if baseline_value is not None else math.asinh(lack), worst)


def worst_score(objective: Objective, *, baseline_value: float | None = None) -> float:
    """Return the score of a run that failed (out of memory, NaN)."""
    return search_score(
        objective, time_to_target_s=None, best_value=None, baseline_value=baseline_value
    )


def baseline_value_of(objective: Objective, num_classes: int | None) -> float | None:
    """Return the baseline value of an objective; of accuracy 1 / classes where it says none.

    None for other metrics.
    """
    if objective.baseline_value is not None or objective.judged_by != ACCURACY or not num_classes:
        return objective.baseline_value
    return 1.0 / num_classes


def small_difference(
    metric: Metric, value: float, baseline_value: float | None, *, points: float = 0.01
) -> float:
    """Return a difference of a metric near `value` that says little: `points` of a share.

    Of others 1 % of the gap between baseline and `value`; of `value` where that is unknown.
    """
    if metric.is_share:
        return points
    return PART_OF_GAP * abs(value if baseline_value is None else value - baseline_value)
