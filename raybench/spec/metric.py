"""Metrics: a metric's name, its direction, and how it comes from samples.

A metric is a number for each sample, averaged over a split and finished: RMSE is the root of the
mean of squared errors. So it does not depend on which worker evaluates which samples.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from raybench.spec.dataset_spec import Task
from raybench.spec.errors import UserError, did_you_mean

Direction = Literal["max", "min"]
PerSample = Literal["correct", "correct_of_5", "loss", "squared_error", "absolute_error", "own"]
"""Value of a sample that is averaged: 1 where the answer is right (of five answers, where one of
them is), the loss without label smoothing, the error's square or size in the labels' own unit (the
mean over a vector's numbers), or what the workload's own hook returns."""
METRIC_NAME = r"^\w(.{0,78}\S)?$"
"""Form of a metric's name, as libraries print it (`val/acc`, `metrics/mAP50-95(B)`): one line
of 80 characters at most that begins with a letter, a digit or `_`. It names columns."""
ROUNDING = 2.0**-22
"""Distance from the target within which a value is at it, relative to the target: two steps of
float32, in which frameworks compute metrics. The mean of 190 right answers of 200 is 0.94999999
there."""
Finish = Callable[[float, float], float]
"""(mean over the samples, mean of the same for the labels' own mean as the answer) -> metric."""


def _mean(mean: float, _of_mean: float) -> float:
    return mean


def _root(mean: float, _of_mean: float) -> float:
    return math.sqrt(mean) if mean >= 0 else math.nan


def _explained(mean: float, of_mean: float) -> float:
    return 1.0 - mean / of_mean if of_mean > 0 else math.nan


def _exponential(mean: float, _of_mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True)
class Metric:
    """A metric; a workload may have one of its own: `Metric(name="f", direction="max")`."""

    name: str
    """For columns, tables and axes (`METRIC_NAME`)."""
    direction: Direction
    """Whether more is better."""
    per_sample: PerSample = "own"
    """Quantity that is averaged over the samples."""
    finish: Finish = field(default=_mean, compare=False)
    """Makes the metric of the mean."""
    is_share: bool = False
    """Whether it lies in 0..1 and is shown in per cent."""
    tasks: tuple[Task, ...] = ("classification", "regression", "language_modelling")
    """Tasks that it can be had of."""

    @property
    def best_column(self) -> str:
        """Column of a run's best value: `best_accuracy`."""
        return f"best_{self.name}"

    @property
    def test_column(self) -> str:
        """Column of the value on the test split: `test_accuracy`."""
        return f"test_{self.name}"

    @property
    def words(self) -> str:
        """For a sentence: `mean absolute error`; any that is not ours as it is called."""
        return WORDS.get(self.name, self.name)

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is: `sign * value` is what may only grow."""
        return 1 if self.direction == "max" else -1

    def reaches(self, value: float, target: float) -> bool:
        """Whether `value` is at the target, to the rounding of float32, or beyond; never where it
        is NaN. Wherever a value is compared with a target, this or `gap` does it."""
        return self.gap(target, value) <= 0

    def gap(self, target: float, value: float) -> float:
        """Distance of `value` from the target; negative beyond it, 0 within float32's rounding."""
        gap = self.sign * (target - value)
        return 0.0 if abs(gap) <= ROUNDING * abs(target) else gap

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best value, NaN left out; None where there is none."""
        known = [value for value in values if not math.isnan(value)]
        return (max if self.direction == "max" else min)(known, default=None)

    @property
    def axis_words(self) -> str:
        """For the axis of a figure: `validation accuracy [%]`, `validation RMSE`."""
        return f"validation {self.words}" + (" [%]" if self.is_share else "")

    @property
    def superlative(self) -> str:
        """Superlative of the best of several: `most accurate`, `best RMSE`."""
        return "most accurate" if self.name == "accuracy" else f"best {self.words}"

    def shown(self, value: float | None, digits: int = 1) -> str:
        """Return a value for a table or a sentence: `97.3 %`, `0.4312`; `none` for None."""
        if value is None or math.isnan(value):
            return "none"
        return f"{100 * value:.{digits}f} %" if self.is_share else f"{value:.{digits + 3}g}"


WORDS = {
    "rmse": "RMSE",
    "r2": "R²",
    "top5_accuracy": "top-5 accuracy",
    "mean_absolute_error": "mean absolute error",
}
_OF_CLASSES: tuple[Task, ...] = ("classification", "language_modelling")
_OF_NUMBERS: tuple[Task, ...] = ("regression",)
_SHIPPED = (
    Metric("accuracy", "max", "correct", is_share=True, tasks=_OF_CLASSES),
    Metric("top5_accuracy", "max", "correct_of_5", is_share=True, tasks=_OF_CLASSES),
    Metric("loss", "min", "loss"),
    Metric("perplexity", "min", "loss", _exponential, tasks=_OF_CLASSES),
    Metric("rmse", "min", "squared_error", _root, tasks=_OF_NUMBERS),
    Metric("mean_absolute_error", "min", "absolute_error", tasks=_OF_NUMBERS),
    Metric("r2", "max", "squared_error", _explained, tasks=_OF_NUMBERS),
)
METRICS = {one.name: one for one in _SHIPPED}
"""The metrics that come with raybench, by name."""
DEFAULTS: dict[Task, str] = {
    "classification": "accuracy",
    "regression": "rmse",
    "language_modelling": "loss",
}
"""The metric of a task where a file names none."""
OTHER_METRIC_NAMES = {"mae": "mean_absolute_error", "top5": "top5_accuracy", "r_squared": "r2"}
ACCURACY = METRICS["accuracy"]


def find_metric(
    name: str | None, *, task: Task = "classification", own: Metric | None = None
) -> Metric:
    """Return the metric of that name; `own` is the workload's, which none takes first.

    None without an own one is the task's default. UserError for an unknown name, and for
    a metric that the task does not have.
    """
    if own is not None and not re.fullmatch(METRIC_NAME, own.name):
        raise UserError(
            f"The workload's metric is called '{own.name}'; give it a name of one line, 80 "
            "characters at most, that begins with a letter."
        )
    if own is not None and name in (None, own.name):
        return own
    name = DEFAULTS[task] if name is None else OTHER_METRIC_NAMES.get(name, name)
    if name not in METRICS:
        known = [*METRICS, *OTHER_METRIC_NAMES, *([own.name] if own else [])]
        raise UserError(f"objective.metric: unknown metric '{name}'; {did_you_mean(name, known)}")
    found = METRICS[name]
    if task not in found.tasks:
        fitting = ", ".join(one.name for one in METRICS.values() if task in one.tasks)
        raise UserError(
            f"objective.metric: {name} is not of {task.replace('_', ' ')}; choose one of {fitting}."
        )
    return found


def named_metric(name: str, direction: Direction, *, is_share: bool = False) -> Metric:
    """Return the metric of a record: a known one, or a user's own, of which these are known."""
    if name in METRICS:
        return METRICS[name]
    return Metric(name=name, direction=direction, is_share=is_share)
