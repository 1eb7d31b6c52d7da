"""What a run is judged by: metric, target and budget, and when it ends by itself."""

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from raybench.core.dataset_spec import Task
from raybench.core.documents import Document, PositiveFloat, PositiveInt
from raybench.core.errors import UserError
from raybench.core.metric import ACCURACY, METRICS, Direction, Metric, find_metric, named_metric

TIME: Final = "time_to_target"
BUDGET: Final = "best_at_budget"
LIMITS = {"rmse": 0.0, "mean_absolute_error": 0.0, "r2": 1.0}
"""What no model gets beyond, of the metrics of errors."""
OTHER_KINDS = {"time_to_accuracy": TIME, "accuracy_at_budget": BUDGET}
"""Older names of the kinds, which stay valid."""


def _kind(given: object) -> object:
    kind = OTHER_KINDS.get(str(given), given)
    if kind == "accuracy_per_second":
        raise ValueError(
            "accuracy divided by seconds is refused, because 40 % in 10 s would beat 93 % in "
            f"200 s; use {TIME} with a target, or {BUDGET}"
        )
    if kind not in (TIME, BUDGET):
        raise ValueError(f"must be {TIME} or {BUDGET}")
    return kind


class Objective(Document):
    """What a run is judged by, and when it may end."""

    kind: Annotated[Literal["time_to_target", "best_at_budget"], BeforeValidator(_kind)] = TIME
    """`time_to_target` (train seconds to the target) or `best_at_budget`; `time_to_accuracy` and
    `accuracy_at_budget` are older names of them."""
    metric: str | None = None
    """Metric on the validation set: accuracy, top5_accuracy, loss, perplexity, rmse, r2,
    mean_absolute_error, or the workload's own; none is the usual one of the task."""
    direction: Direction | None = None
    """Whether more of the metric is better; known of all but a workload's own, which says it."""
    is_share: bool | None = None
    """Whether a workload's own metric lies in 0..1 and is shown in per cent; the workload says
    it, and of all others it is known."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Value of the metric to reach; of an accuracy as a fraction: 0.98, not 98."""
    chance: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """What an answer that does not look at the inputs reaches; told from the labels where it is
    not given."""
    hold: Annotated[PositiveInt, Field(le=1000)] = 1
    """Evaluations in a row at or beyond the target; the time of the first one counts."""
    max_train_seconds: PositiveFloat = 60.0
    """Seconds on the training clock after which a run ends (at the next evaluation)."""

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
    objective: Objective, *, task: Task, own: Metric | None, chance: float | None
) -> Objective:
    """Return the objective with its metric, direction and chance level named.

    `own` is the workload's metric, `chance` what is told from the labels. UserError for a metric
    that the task does not have, and for a target that chance reaches.
    """
    metric = find_metric(objective.metric, task=task, own=own)
    if objective.direction not in (None, metric.direction):
        raise UserError(
            f"objective.direction: {metric.name} is better {_more(metric)}; leave it out."
        )
    if objective.is_share not in (None, metric.is_share):
        raise UserError(
            f"objective.is_share: {metric.name} is {'a' if metric.is_share else 'no'} share; leave "
            "it out."
        )
    named = naming(metric)
    chance = objective.chance if objective.chance is not None else chance
    target = objective.target
    if metric.is_share and target is not None and not 0 < target <= 1:
        raise UserError(
            f"objective.target: of {metric.name} it is a fraction above 0, at most 1: 0.98, not 98 "
            f"(found {target:g})."
        )
    limit = LIMITS.get(metric.name)
    if target is not None and limit is not None and metric.gap(limit, target) <= 0:
        raise UserError(
            f"objective.target: {target:g} cannot be reached: {metric.words} is "
            f"{'below' if metric.direction == 'max' else 'above'} {limit:g}; name another."
        )
    if target is not None and chance is not None and metric.gap(target, chance) <= 0:
        raise UserError(
            f"objective.target: {target:g} is not better than chance, whose {metric.words} is "
            f"{chance:.6g} (an answer that does not look at the inputs); name a "
            f"{'higher' if metric.direction == 'max' else 'lower'} one."
        )
    return objective.model_copy(update=named | {"chance": chance})


def _more(metric: Metric) -> str:
    return "the more it is" if metric.direction == "max" else "the less it is"


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
    """Follows one run's evaluations and names the reason to end, if there is one."""

    def __init__(
        self,
        objective: Objective,
        *,
        values: Sequence[float] = (),
        train_seconds: Sequence[float] = (),
    ) -> None:
        """Begin a run, or continue one after the evaluations that are given, in order."""
        self._objective = objective
        self._metric = objective.judged_by
        self._values = list(values)
        self._seconds = list(train_seconds)

    def update(
        self, *, value: float, train_s: float, finished: bool
    ) -> Literal["target", "max_train_seconds", "epochs"] | None:
        """Take one evaluation; `finished` says that all epochs are done."""
        objective = self._objective
        self._values.append(value)
        self._seconds.append(train_s)
        if objective.kind == TIME and self.time_to_target_s is not None:
            return "target"
        if train_s >= objective.max_train_seconds:
            return "max_train_seconds"
        return "epochs" if finished else None

    @property
    def time_to_target_s(self) -> float | None:
        """Train seconds to the target so far; None if not reached or no target is given."""
        if self._objective.target is None:
            return None
        reached = time_to_target(
            self._values,
            self._seconds,
            target=self._objective.target,
            hold=self._objective.hold,
            metric=self._metric,
        )
        late = reached is not None and reached > self._objective.max_train_seconds
        return None if late else reached

    @property
    def best_value(self) -> float | None:
        """The value that the run is judged by so far; None before the first evaluation.

        The best one. With `best_at_budget` that of the last evaluation within the budget, which is
        what the weights have that are kept: the best of many is luck, more of it the more
        evaluations a fast configuration has. One that comes later has trained for longer than
        others may.
        """
        if self._objective.kind != BUDGET:
            return self._metric.best(self._values)
        timed = zip(self._seconds, self._values, strict=True)
        within = [one for seconds, one in timed if seconds <= self._objective.max_train_seconds]
        return self._metric.best(within[-1:])


def is_finite(*values: float) -> bool:
    """Whether no value is NaN or infinite."""
    return all(math.isfinite(value) for value in values)
