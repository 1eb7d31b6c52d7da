"""Objective of a run (metric, target and budget), its stopping rule and its score.

The score is a number that the search minimizes.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raybench.spec.dataset_spec import Task
from raybench.spec.documents import Document, PositiveFloat, PositiveInt
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import ACCURACY, METRICS, Direction, Metric, find_metric, named_metric
from raybench.spec.text import short

TIME: Final = "time_to_target"
BUDGET: Final = "best_at_budget"


def _kind(value: object) -> object:
    if value == "accuracy_per_second":
        raise ValueError(
            "accuracy divided by seconds is refused, because 40 % in 10 s would beat 93 % in "
            f"200 s; use {TIME} with a target, or {BUDGET}"
        )
    if value not in (TIME, BUDGET):
        raise ValueError(f"must be {TIME} or {BUDGET}")
    return value


class Objective(Document):
    """Metric, target and budget of a run."""

    kind: Annotated[Literal["time_to_target", "best_at_budget"], BeforeValidator(_kind)] = TIME
    """What a search optimizes: the training seconds to the target (`time_to_target`), or the metric
    after at most `max_train_seconds` (`best_at_budget`)."""
    metric: str | None = None
    """Metric on the validation split: accuracy, top5_accuracy, f1 and average_precision (macro
    averages), balanced_accuracy, roc_auc, loss, perplexity, rmse, r2, mean_absolute_error, or the
    workload's own metric. The default is the workload's own metric if it has one, else accuracy,
    rmse or loss, depending on the task."""
    direction: Direction | None = None
    """Whether higher (`max`) or lower (`min`) values are better; only needed for metrics that your
    own training loop reports."""
    is_share: bool | None = None
    """Whether the metric lies between 0 and 1 and is shown in percent; only needed for metrics that
    your own training loop reports."""
    metric_pattern: str | None = None
    """Regular expression whose first group is the metric in the output of a command, such as
    `accuracy=(\\S+)`. Groups named `train_s`, `samples` and `test` are also read. By default,
    the command must print lines of JSON."""
    target: float | None = None
    """Value of the metric to reach; an accuracy is a fraction: 0.98, not 98. In a search, `auto`
    lets reference runs set the target."""
    baseline_value: float | None = None
    """Value of the metric for a constant prediction, such as always the most frequent class; by
    default computed from the labels."""
    hold: Annotated[PositiveInt, Field(le=1000)] = 1
    """Number of consecutive evaluations that must reach the target; the time to target is that of
    the first of these evaluations."""
    max_train_seconds: PositiveFloat = 60.0
    """Maximum training seconds; a run ends at the first evaluation after this time. In a search,
    `auto` lets a reference run set this limit."""

    @field_validator("metric_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is not a valid regular expression ({error})") from None
        if groups < 1:
            raise ValueError("needs a group around the number, such as accuracy=(\\S+)")
        return pattern

    @model_validator(mode="after")
    def _target_given(self) -> "Objective":
        if self.kind == TIME and self.target is None:
            raise ValueError(f"{TIME} needs a target, for example target: 0.95")
        if self.metric is not None and (problem := _share_problem(self.judged_by, self.target)):
            raise ValueError(problem)
        return self

    @property
    def judged_by(self) -> Metric:
        """Metric that the keys of this objective define; accuracy if `metric` is not set."""
        if self.metric is None:
            return ACCURACY
        return named_metric(self.metric, self.direction or "max", is_share=bool(self.is_share))


def _share_problem(metric: Metric, target: float | None) -> str | None:
    """Return a message if the target of a metric from 0 to 1 lies outside this range, else None."""
    if not metric.is_share or target is None or 0 < target <= 1:
        return None
    return (
        f"the target of {metric.name} is a fraction above 0, at most 1: 0.98, not 98 "
        f"(found {target:g})"
    )


def naming(metric: Metric) -> dict[str, object]:
    """Return the keys of an objective that describe a metric: metric (its name), direction and
    is_share."""
    is_share = None if metric.name in METRICS else metric.is_share
    return {"metric": metric.name, "direction": metric.direction, "is_share": is_share}


def resolved(
    objective: Objective, *, task: Task, custom: Metric | None, baseline_value: float | None
) -> Objective:
    """Return the objective with its metric, direction and baseline value set.

    Args:
        objective: Objective as given in the file.
        task: Task of the dataset.
        custom: Metric that the workload defines, if any.
        baseline_value: Metric of a constant prediction, computed from the labels.

    Raises:
        UserError: The metric does not exist for the task, keys contradict the metric, or a constant
            prediction already reaches the target.
    """
    metric = find_metric(objective.metric, task=task, custom=custom)
    is_max, target = metric.direction == "max", objective.target
    for key in ("direction", "is_share"):
        own_value = getattr(metric, key)
        if getattr(objective, key) not in (None, own_value):
            raise UserError(
                f"objective.{key}: metric {metric.name} has {key} {short(own_value)}; leave the "
                "key out.",
                ErrorCode.CONFLICT,
            )
    if objective.baseline_value is not None:
        baseline_value = objective.baseline_value
    if target is not None:
        if problem := _share_problem(metric, target):
            raise UserError(f"objective.target: {problem}.", ErrorCode.INVALID_VALUE)
        if baseline_value is not None and metric.gap(target, baseline_value) <= 0:
            raise UserError(
                f"objective.target: {target:g} is not better than the baseline, whose "
                f"{metric.words} is {baseline_value:.6g} (of a constant prediction); set a "
                f"{'higher' if is_max else 'lower'} target.",
                ErrorCode.INVALID_VALUE,
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
    """Return the training seconds to the first of `hold` consecutive evaluations that reach the
    target.

    Args:
        values: Metric value at each evaluation of a run, first to last.
        train_seconds: Training seconds until each evaluation.
        target: Value of the metric to reach.
        hold: Number of consecutive evaluations that must reach the target.
        metric: Metric, whose direction decides which values reach the target.

    Returns:
        Seconds, or None if the target is not reached.
    """
    num_consecutive = 0
    for index, value in enumerate(values):
        num_consecutive = num_consecutive + 1 if metric.reaches(value, target) else 0
        if num_consecutive == hold:
            return train_seconds[index - hold + 1]
    return None


class StopReason(StrEnum):
    """Reason why a run that did not fail has ended."""

    TARGET = "target"
    """The target was reached."""
    MAX_TRAIN_SECONDS = "max_train_seconds"
    """The run had trained for `max_train_seconds` of the objective."""
    EPOCHS = "epochs"
    """All epochs were done."""
    SCHEDULER = "scheduler"
    """The search expected the trial to be slower than the best."""
    CAP = "cap"
    """The run could no longer win: it exceeded the cutoff of its search or confirmation."""
    TIME_BUDGET = "time_budget"
    """The time budget of the study ended."""
    INTERRUPTED = "interrupted"
    """The user or a signal ended the study."""


class StopRule:
    """Stopping rule of a run, which is updated with every evaluation.

    Args:
        objective: Objective of the run.
        values: For a resumed run, the metric of each evaluation before the interruption.
        train_seconds: Training seconds until each of the evaluations in `values`.
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

    def update(self, *, value: float, train_s: float, finished: bool) -> StopReason | None:
        """Add an evaluation and return the reason to stop, or None to continue.

        Args:
            value: Metric of the evaluation.
            train_s: Training seconds until the evaluation.
            finished: Whether all epochs are done.
        """
        self._values.append(value)
        self._seconds.append(train_s)
        if self._objective.kind == TIME and self.time_to_target_s is not None:
            return StopReason.TARGET
        if train_s >= self._objective.max_train_seconds:
            return StopReason.MAX_TRAIN_SECONDS
        return StopReason.EPOCHS if finished else None

    @property
    def time_to_target_s(self) -> float | None:
        """Training seconds to the target; None if there is no target, or if it was not reached
        within `max_train_seconds`."""
        target, hold = self._objective.target, self._objective.hold
        if target is None:
            return None
        curve = self._values, self._seconds
        reached = time_to_target(*curve, target=target, hold=hold, metric=self._metric)
        late = reached is not None and reached > self._objective.max_train_seconds
        return None if late else reached

    @property
    def best_value(self) -> float | None:
        """Value of the metric by which the run is judged so far; None before the first evaluation.

        With `time_to_target`, it is the best value. With `best_at_budget`, it is the last value
        within the budget, because the best of several values would be biased upward.
        """
        if self._objective.kind != BUDGET:
            return self._metric.best(self._values)
        timed = zip(self._seconds, self._values, strict=True)
        values = [value for seconds, value in timed if seconds <= self._objective.max_train_seconds]
        return self._metric.best(values[-1:])


MISS_WEIGHT = 2.0
"""Maximum penalty for missing the target: such a run scores at most this much above
log(max_train_seconds), the worst score of a run that reaches the target."""
MIN_SECONDS = 1e-3
"""Lower bound of times in a score, in seconds, because log(0) is undefined."""
MOST_UNKNOWN = 20.0
"""Upper limit of `shortfall` if the baseline is unknown: the asinh of a loss of 240 million."""
MARGIN_WITH_TEST_SPLIT = 3.0
"""Minimum distance of an automatic target from the baseline, in standard errors, if the winner is
checked on a test split. In a search on pure noise, the best evaluation exceeds the baseline by 2.5
to 4 standard errors."""
MARGIN_WITHOUT_TEST_SPLIT = 4.0
"""Minimum distance of an automatic target from the baseline, in standard errors, if there is no
test split."""
ONE_SIDED = 1.645
"""One-sided 95 % quantile of the normal distribution: with this many standard errors, chance
exceeds a bound in 5 % of cases."""
_FREQUENCIES, _MEAN = "always predicting the class frequencies", "always predicting the mean"
GUESSES = {
    "accuracy": "always predicting the most frequent class",
    "top5_accuracy": "always predicting the five most frequent classes",
    "f1": "always predicting the most frequent class",
    "balanced_accuracy": "always predicting the most frequent class",
    "roc_auc": _FREQUENCIES,
    "average_precision": _FREQUENCIES,
    "loss": _FREQUENCIES,
    "perplexity": _FREQUENCIES,
    "mean_absolute_error": "always predicting the median",
    "rmse": _MEAN,
    "r2": _MEAN,
}
"""Descriptions of the constant predictions from which baselines are computed, keyed by metric
name."""
PART_OF_GAP = 0.01
"""Negligible difference of a metric that does not lie between 0 and 1, as a fraction of the
difference between its value and the baseline."""


@dataclass(frozen=True)
class Baseline:
    """Metric of the best constant prediction on a split, and how far chance can improve on it.

    All runs are evaluated on the same rows, so new seeds do not average out the luck of a model
    whose predictions happen to fit these rows. Predictions that deviate from the constant
    prediction by d gain by chance at most z standard errors, which are proportional to d, but lose
    a term proportional to d squared. The net gain is therefore at most `z**2 * square`. If
    deviating costs nothing, as with equally frequent classes, it is at most `z * error` (binomial).
    """

    value: float
    """Metric of the constant prediction on the split."""
    rows: int
    """Number of rows of the split."""
    error: float | None = None
    """Binomial standard error of the metric; None if the metric is not a share."""
    square: float | None = None
    """Factor of `z**2` in the bound of the net gain; None if unknown, or if this bound does not
    hold."""
    level: float | None = None
    """Metric of the constant prediction on the training labels, from which the bound is computed;
    None to compute the bound from `value`. It is set if classes may be equally frequent, because
    chance then decides which class is the most frequent in the split."""

    def beyond(self, metric: Metric, errors: float = ONE_SIDED) -> float | None:
        """Return the best value of the metric that can be explained by chance alone.

        Args:
            metric: The metric.
            errors: Number z of standard errors that chance may contribute.

        Returns:
            Value in the unit of the metric; None if the effect of chance is unknown.
        """
        margins = [] if self.error is None else [errors * self.error]
        margins += [] if self.square is None else [errors**2 * self.square]
        if not margins:
            return None
        value = (self.value if self.level is None else self.level) + metric.sign * min(margins)
        return min(max(value, 0.0), 1.0) if metric.is_share else value

    def document(self) -> dict[str, Any]:
        """Return the baseline as plain data for `study.yaml`."""
        return asdict(self)


def share_error(share: float, rows: int) -> float:
    """Return the binomial standard error of a share measured on `rows` rows."""
    return math.sqrt(max(share * (1.0 - share), 0.0) / rows)


def search_score(
    objective: Objective,
    *,
    time_to_target_s: float | None,
    best_value: float | None,
    baseline_value: float | None,
) -> float:
    """Return the score of a run, which the search minimizes.

    With `time_to_target`, the score is log T if the target is reached after T seconds, at most
    T_max = `max_train_seconds`. Otherwise, it is
    log T_max + 2 min(1, gap(target, best) / gap(target, baseline)). Thus, every run that reaches
    the target has a better score than every run that does not, and runs that miss the target are
    ordered by how close they came to it. With `best_at_budget`, the score is `shortfall`.

    Args:
        objective: Objective of the run.
        time_to_target_s: Training seconds to the target; None if the target is not reached.
        best_value: Best value of the metric; None, for a run without a valid evaluation, gives the
            worst score.
        baseline_value: Metric of a constant prediction, used if the objective does not set the
            baseline value; None if unknown.
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
        missing = 1.0 - 1.0 / (1.0 + max(missing, 0.0))  # the worst possible value is unknown
    # A run that reached the target for too few consecutive evaluations (`hold`) is also a miss,
    # although its gap to the target is negative.
    return ceiling + MISS_WEIGHT * min(max(missing, 0.0), 1.0)


def _gap_to_baseline(metric: Metric, target: float, baseline_value: float | None) -> float:
    """Return the distance between baseline and target in the unit of the metric.

    If the baseline is unknown, it is assumed to be the worst possible value of a metric that lies
    between 0 and 1, and 0 for other metrics.
    """
    if baseline_value is None and not metric.is_share:
        return abs(target) or 1.0
    if baseline_value is None:
        baseline_value = 0.0 if metric.direction == "max" else 1.0
    return max(metric.gap(target, baseline_value), 1e-9)


def shortfall(metric: Metric, value: float | None, baseline_value: float | None) -> float:
    """Convert a value of the metric to a score to minimize; None gets the worst score.

    For a metric that lies between 0 and 1, the score is the distance to the best possible value.
    For other metrics, it is the value (negated if higher is better), limited to about twice the
    baseline, because how far a loss diverged carries no information. If the baseline is unknown,
    the score of such a metric is the asinh of the value (for large values, about its logarithm),
    limited to MOST_UNKNOWN.
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
    """Return the score of a failed run (out of memory, NaN)."""
    return search_score(
        objective, time_to_target_s=None, best_value=None, baseline_value=baseline_value
    )


def baseline_value_of(objective: Objective, num_classes: int | None) -> float | None:
    """Return the baseline value of an objective.

    If the objective does not set it, return 1 / `num_classes` for accuracy and None for other
    metrics.
    """
    if objective.baseline_value is not None or objective.judged_by != ACCURACY or not num_classes:
        return objective.baseline_value
    return 1.0 / num_classes


def small_difference(
    metric: Metric, value: float, baseline_value: float | None, *, points: float = 0.01
) -> float:
    """Return the largest difference from a metric value that counts as negligible.

    Args:
        metric: The metric.
        value: Value of the metric.
        baseline_value: Metric of a constant prediction; None if unknown.
        points: Result for a metric that lies between 0 and 1; 0.01 is one percentage point. For
            other metrics, the result is 1 % of the difference between value and baseline, or 1 % of
            the value if the baseline is unknown.
    """
    if metric.is_share:
        return points
    return PART_OF_GAP * abs(value if baseline_value is None else value - baseline_value)
