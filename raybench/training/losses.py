"""Losses and metrics of each sample, in the operations of a framework."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

from raybench.data.dataset import Dataset
from raybench.models.base import (
    Hook,
    Workload,
    missing_hook,
    no_label_smoothing,
    refuse_label_smoothing,
)
from raybench.spec.metric import Metric, find_metric
from raybench.spec.run import RunSpec

Tensor = Any
"""A tensor of either framework."""
BEST = 5
"""Answers of which one must be right for `correct_of_5`."""


class BaseLosses:
    """The loss and the metric of a run; a framework's own has the operations.

    `_mean` is over the outputs of each sample (N,), `_mean_of_counted` over the tokens of each that
    count, 0 where none does. The others are in the labels' shape: `_errors` outputs - labels, where
    (N, 1) outputs are (N,) beside such, the `_cross_entropy` of each label, and `_hits`, whether
    its output is among the `most` largest.
    """

    PREFIX: ClassVar[str]
    """Prefix of the names of a workload's hooks."""
    _floats: Any
    _mean: Any
    _mean_of_counted: Any
    _errors: Any
    _cross_entropy: Any
    _hits: Any

    def __init__(
        self, workload: Workload, metric: Metric, *, scale: Tensor = 1.0, smoothing: float = 0.0
    ) -> None:
        """`scale` of the labels brings errors into their own unit; `smoothing` is the share of a
        label that is spread over all classes, in cross entropies of training."""
        self._workload, self._scale, self._smoothing = workload, scale, smoothing
        self.metric = metric
        """Metric that `values` are averaged for."""
        self._of_model: Hook | None = None

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        workload: Workload,
        dataset: Dataset,
        on_device: Callable[[Any], Tensor] = lambda scale: scale,
    ) -> Self:
        """Return that of a run."""
        refuse_label_smoothing(spec, workload)
        metric = find_metric(spec.objective.metric, task=workload.task, own=workload.metric)
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        return cls(workload, metric, scale=on_device(scale), smoothing=spec.label_smoothing)

    def take(self, of_model: Hook | None) -> None:
        """Use the loss that the model brings with it; for workloads without one of their own.

        Raises:
            UserError: `label_smoothing` is set, which such a loss does not use.
        """
        if of_model is not None:
            self._of_model = of_model
            if self._smoothing:
                raise no_label_smoothing(self._smoothing, self._workload)

    def training_losses(self, outputs: Tensor, labels: Tensor, mixed: Any) -> Tensor:
        """Return the loss of each training sample (N,), float32; its weight is not in it.

        `mixed`: labels of the samples that others are mixed with, and what the loss by the own
        label and that by the other's count (N,); nothing where none are mixed.
        """
        losses = self.losses(outputs, labels, self._smoothing)
        if not mixed:
            return losses
        others, own, rest = mixed
        return own * losses + rest * self.losses(outputs, others, self._smoothing)

    def losses_and_values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample (N,) and what the metric averages (N,), both float32."""
        losses = self.losses(outputs, labels)
        return losses, self.values(outputs, labels, losses)

    def hook(self, name: str) -> Any:
        """Return the workload's own function of that name for this framework, in place of a loss
        that of its model; None without."""
        own = getattr(self._workload, f"{self.PREFIX}_{name}")
        return self._of_model if own is None and name == "loss" else own

    def losses(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each sample (N,), float32."""
        own = self.hook("loss")
        if own is not None:
            return self._floats(own(outputs, labels))
        if self._workload.task == "regression":
            return self._floats(self._mean(_square(self._errors(outputs, labels))))
        losses = self._cross_entropy(outputs, labels, smoothing)
        return self._floats(self._of_samples(losses, labels))

    def values(self, outputs: Tensor, labels: Tensor, losses: Tensor) -> Tensor:
        """Return what the metric averages, of each sample (N,), float32."""
        kind, own, correct = self.metric.per_sample, self.hook("metric"), self.hook("correct")
        if kind == "own":
            if own is None:
                raise missing_hook(self._workload, self.metric, f"{self.PREFIX}_metric")
            values = own(outputs, labels)
        elif kind == "loss":
            values = losses
        elif kind == "squared_error":
            values = self._mean(_square(self._errors(outputs, labels) * self._scale))
        elif kind == "absolute_error":
            values = self._mean(abs(self._errors(outputs, labels) * self._scale))
        elif kind == "correct" and correct is not None:
            values = correct(outputs, labels)
        else:
            hits = self._hits(outputs, labels, 1 if kind == "correct" else BEST)
            values = self._of_samples(self._floats(hits), labels)
        return self._floats(values)

    def _of_samples(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return (N,) of what is of samples already, or of the tokens of each."""
        return values if len(labels.shape) == 1 else self._mean_of_counted(values, labels)


def _square(values: Tensor) -> Tensor:
    return values * values
