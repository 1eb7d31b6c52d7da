"""Metrics: name, direction, and computation from samples.

Most metrics are a function of a mean over the samples; RMSE, for example, is the square root of the
mean squared error. Other metrics, such as ROC AUC, are computed from the predictions for all
samples of a split (`data.split_metrics`), which are collected from all workers. In both cases, the
result does not depend on how samples are distributed over workers.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

Direction = Literal["max", "min"]
PerSample = Literal[
    "correct",
    "correct_of_5",
    "loss",
    "squared_error",
    "absolute_error",
    "own",
    "prediction",
    "probabilities",
]
"""Value that is computed for each sample. These values are averaged over the samples:

- `correct`, `correct_of_5`: 1 if the label is the top prediction (one of the top five), else 0,
- `loss`: the loss without label smoothing,
- `squared_error`, `absolute_error`: error in the original unit of the labels, averaged over the
  outputs if a label is a vector,
- `own`: the result of the workload's own method.

These values are collected from all samples instead:

- `prediction`: the predicted class,
- `probabilities`: the probability of each class.
"""
METRIC_NAME = r"^\w(.{0,78}\S)?$"
"""Pattern of a metric's name, which becomes part of column names: one line of up to 80 characters
that begins with a letter, a digit or `_`. Names that libraries print are allowed, such as `val/acc`
and `metrics/mAP50-95(B)`."""
ROUNDING = 2.0**-22
"""Relative tolerance for reaching a target: two rounding steps of float32, in which frameworks
compute metrics. In float32, 190 correct predictions out of 200 are 0.94999999."""
Finish = Callable[[float, float], float]
"""Function (model mean, constant mean) -> metric. The model mean is the mean over the samples of
the value `per_sample`. The constant mean, which only R² uses, is the same mean for a model that
always predicts the mean label."""


def _mean(mean: float, _constant_mean: float) -> float:
    return mean


def _root(mean: float, _constant_mean: float) -> float:
    return math.sqrt(mean) if mean >= 0 else math.nan


def _explained(mean: float, constant_mean: float) -> float:
    return 1.0 - mean / constant_mean if constant_mean > 0 else math.nan


def _exponential(mean: float, _constant_mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True)
class Metric:
    """A metric, shipped with raybench or defined by a workload.

    Example:
        >>> dice = raybench.Metric(name="dice", direction="max", is_share=True)
        >>> dice.reaches(0.91, target=0.9), dice.shown(0.91)
        (True, '91.0 %')
    """

    name: str
    """Name in columns, tables and axis labels; see `METRIC_NAME`."""
    direction: Direction
    """Whether higher (`max`) or lower (`min`) values are better."""
    per_sample: PerSample = "own"
    """Value that is computed for each sample and then averaged or collected."""
    finish: Finish = field(default=_mean, compare=False)
    """Function that converts the mean over the samples to the metric."""
    is_share: bool = False
    """Whether the metric lies between 0 and 1 and is shown in percent."""
    tasks: tuple[Task, ...] = ("classification", "regression", "language_modelling")
    """Tasks for which the metric is defined."""

    @property
    def is_mean(self) -> bool:
        """Whether the metric is a function of a mean over the samples."""
        return self.per_sample not in ("prediction", "probabilities")

    @property
    def best_column(self) -> str:
        """Name of the column for the best value of a run, such as `best_accuracy`."""
        return f"best_{self.name}"

    @property
    def test_column(self) -> str:
        """Name of the column for the value of a run on the test split, such as `test_accuracy`."""
        return f"test_{self.name}"

    @property
    def words(self) -> str:
        """Name in sentences, such as `mean absolute error`; for most metrics, `name` itself."""
        return WORDS.get(self.name, self.name)

    @property
    def sign(self) -> int:
        """1 if higher values are better, else -1; the metric times this sign is maximized."""
        return 1 if self.direction == "max" else -1

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value reaches the target, up to the rounding of float32; False for
        NaN."""
        return self.gap(target, value) <= 0

    def gap(self, target: float, value: float) -> float:
        """Return the distance of a value from the target, in the unit of the metric: positive if
        the value is worse, negative if it is better, 0 within the rounding of float32."""
        gap = self.sign * (target - value)
        return 0.0 if abs(gap) <= ROUNDING * abs(target) else gap

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of several values, ignoring NaN; None if there is no other value."""
        numbers = [value for value in values if not math.isnan(value)]
        return (max if self.direction == "max" else min)(numbers, default=None)

    @property
    def axis_words(self) -> str:
        """Axis label of a figure, such as `validation accuracy [%]` or `validation RMSE`."""
        return f"validation {self.words}" + (" [%]" if self.is_share else "")

    @property
    def superlative(self) -> str:
        """Phrase that describes the best run, such as `most accurate` or `best RMSE`."""
        return "most accurate" if self.name == "accuracy" else f"best {self.words}"

    def shown(self, value: float | None, digits: int = 1) -> str:
        """Return a value of the metric as text, such as `97.3 %` or `0.4312`; `none` for None and
        NaN."""
        if value is None or math.isnan(value):
            return "none"
        return f"{100 * value:.{digits}f} %" if self.is_share else f"{value:.{digits + 3}g}"


WORDS = {  # names in sentences, if they differ from `Metric.name`
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "rmse": "RMSE",
    "r2": "R²",
    "top5_accuracy": "top-5 accuracy",
    "mean_absolute_error": "mean absolute error",
}
_WITH_CLASSES: tuple[Task, ...] = ("classification", "language_modelling")
_CLASSIFICATION: tuple[Task, ...] = ("classification",)
_REGRESSION: tuple[Task, ...] = ("regression",)
_SHIPPED = (
    Metric("accuracy", "max", "correct", is_share=True, tasks=_WITH_CLASSES),
    Metric("top5_accuracy", "max", "correct_of_5", is_share=True, tasks=_WITH_CLASSES),
    Metric("f1", "max", "prediction", is_share=True, tasks=_CLASSIFICATION),
    Metric("balanced_accuracy", "max", "prediction", is_share=True, tasks=_CLASSIFICATION),
    Metric("roc_auc", "max", "probabilities", is_share=True, tasks=_CLASSIFICATION),
    Metric("average_precision", "max", "probabilities", is_share=True, tasks=_CLASSIFICATION),
    Metric("loss", "min", "loss"),
    Metric("perplexity", "min", "loss", _exponential, tasks=_WITH_CLASSES),
    Metric("rmse", "min", "squared_error", _root, tasks=_REGRESSION),
    Metric("mean_absolute_error", "min", "absolute_error", tasks=_REGRESSION),
    Metric("r2", "max", "squared_error", _explained, tasks=_REGRESSION),
)
METRICS = {metric.name: metric for metric in _SHIPPED}
"""Metrics that are shipped with raybench, keyed by name."""
DEFAULTS: dict[Task, str] = {
    "classification": "accuracy",
    "regression": "rmse",
    "language_modelling": "loss",
}
"""Default metrics by task."""
OTHER_METRIC_NAMES = {
    "mae": "mean_absolute_error",
    "top5": "top5_accuracy",
    "r_squared": "r2",
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "f1_macro": "f1",
}
"""Names of shipped metrics in METRICS, keyed by the names that other tools use for them."""
ACCURACY = METRICS["accuracy"]


def find_metric(
    name: str | None, *, task: Task = "classification", custom: Metric | None = None
) -> Metric:
    """Return a metric by name.

    Args:
        name: Name of the metric; by default the name of `custom`, or the default of the task.
        task: Task of the dataset.
        custom: Metric that the workload defines, if any.

    Raises:
        UserError: The name is unknown, or the metric is not defined for the task.
    """
    if custom is not None and not re.fullmatch(METRIC_NAME, custom.name):
        raise UserError(
            f"The workload's metric has the invalid name '{custom.name}'; use one line of at most "
            "80 characters that begins with a letter.",
            ErrorCode.INVALID_VALUE,
        )
    if custom is not None and name in (None, custom.name):
        return custom
    name = DEFAULTS[task] if name is None else OTHER_METRIC_NAMES.get(name, name)
    if name not in METRICS:
        names = [*METRICS, *OTHER_METRIC_NAMES, *([custom.name] if custom else [])]
        raise UserError(
            f"objective.metric: unknown metric '{name}'; {did_you_mean(name, names)}",
            ErrorCode.UNKNOWN_NAME,
        )
    metric = METRICS[name]
    if task not in metric.tasks:
        fitting = ", ".join(metric.name for metric in METRICS.values() if task in metric.tasks)
        raise UserError(
            f"objective.metric: {name} is not for {task.replace('_', ' ')}; use one of {fitting}.",
            ErrorCode.CONFLICT,
        )
    return metric


def named_metric(name: str, direction: Direction, *, is_share: bool = False) -> Metric:
    """Return the shipped metric called `name`; if there is none, a new metric with the given name,
    direction and `is_share`."""
    if name in METRICS:
        return METRICS[name]
    return Metric(name=name, direction=direction, is_share=is_share)
