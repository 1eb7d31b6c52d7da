"""Per-sample losses and metrics, for any framework."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

from raybench.data.dataset import Dataset
from raybench.models.base import Workload, missing_hook, refuse_label_smoothing
from raybench.spec.metric import Metric, find_metric
from raybench.spec.run import RunSpec

Tensor = Any
"""A tensor of either framework."""
BEST = 5
"""For the metric value `correct_of_5`: number of most likely classes among which the label must be.
"""


class BaseLosses:
    """Base class that computes the loss and the metric of a run for each sample.

    Each backend has a subclass `Losses`, which provides the operations of the framework.
    """

    PREFIX: ClassVar[str]
    """Prefix of the names of a workload's hooks, `torch` or `keras`, as in `torch_loss`."""
    _floats: Any
    """Method that converts a tensor to float32."""
    _mean: Any
    """Method that averages the values of each sample; returns shape (N,)."""
    _mean_of_counted: Any
    """Method that averages the values of each sample's tokens, without tokens whose label is
    IGNORED; returns shape (N,), with 0 for a sample without counted tokens."""
    _errors: Any
    """Method that returns outputs - labels, in the shape of the labels; for labels (N,) it also
    accepts outputs (N, 1)."""
    _cross_entropy: Any
    """Method that returns the cross-entropy for each label."""
    _hits: Any
    """Method that returns for each label whether it is among the `most` largest outputs."""

    def __init__(
        self, workload: Workload, metric: Metric, *, scale: Tensor = 1.0, smoothing: float = 0.0
    ) -> None:
        """Create losses for a workload.

        Args:
            workload: Workload with the task, the number of classes and the user's hooks.
            metric: Metric of the run.
            scale: Factor that converts errors of scaled labels to the unit of the original labels.
            smoothing: Label smoothing: share of each label that is spread over all classes in
                training.
        """
        self.workload, self._scale, self._smoothing = workload, scale, smoothing
        self.metric = metric
        """Metric of the run."""

    @classmethod
    def for_run(
        cls,
        spec: RunSpec,
        workload: Workload,
        dataset: Dataset,
        on_device: Callable[[Any], Tensor] = lambda scale: scale,
    ) -> Self:
        """Create the losses of a run.

        Args:
            spec: The run spec.
            workload: Workload of the run.
            dataset: Dataset of the run.
            on_device: Function that moves the scale of the labels to the device.
        """
        refuse_label_smoothing(spec, workload)
        metric = find_metric(spec.objective.metric, task=workload.task, custom=workload.metric)
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        return cls(workload, metric, scale=on_device(scale), smoothing=spec.label_smoothing)

    def training_losses(self, outputs: Tensor, labels: Tensor, mixed: Any) -> Tensor:
        """Return the loss of each training sample, shape (N,), float32.

        The losses are not multiplied by the weights of the samples, except with mixup.

        Args:
            outputs: Outputs of the model.
            labels: Labels of the samples.
            mixed: With mixup: the labels of the sample that was mixed into each sample, the weights
                (N,) of the losses for `labels`, and the weights (N,) of the losses for the other
                labels. Otherwise empty or None.
        """
        losses = self.losses(outputs, labels, self._smoothing)
        if not mixed:
            return losses
        second_labels, weights, second_weights = mixed
        second_losses = self.losses(outputs, second_labels, self._smoothing)
        return weights * losses + second_weights * second_losses

    def losses_and_values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample, and its value for the metric (see `values`); both have
        shape (N,) and are float32."""
        losses = self.losses(outputs, labels)
        return losses, self.values(outputs, labels, losses)

    def hook(self, name: str) -> Any:
        """Return the workload's hook `name`, such as `loss`, for this framework, or None."""
        return getattr(self.workload, f"{self.PREFIX}_{name}")

    def losses(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each sample, shape (N,), float32."""
        hook = self.hook("loss")
        if hook is not None:
            return self._floats(hook(outputs, labels))
        if self.workload.task == "regression":
            return self._floats(self._mean(_square(self._errors(outputs, labels))))
        losses = self._cross_entropy(outputs, labels, smoothing)
        return self._floats(self._mean_over_tokens(losses, labels))

    def values(self, outputs: Tensor, labels: Tensor, losses: Tensor) -> Tensor:
        """Return the per-sample values that the metric averages, shape (N,), float32.

        If the metric is not a mean over samples, return the outputs.
        """
        if not self.metric.is_mean:
            return self._floats(outputs)
        per_sample, hook = self.metric.per_sample, self.hook("metric")
        if per_sample == "own":
            if hook is None:
                raise missing_hook(self.workload, self.metric, f"{self.PREFIX}_metric")
            values = hook(outputs, labels)
        elif per_sample == "loss":
            values = losses
        elif per_sample == "squared_error":
            values = self._mean(_square(self._errors(outputs, labels) * self._scale))
        elif per_sample == "absolute_error":
            values = self._mean(abs(self._errors(outputs, labels) * self._scale))
        else:
            hits = self._hits(outputs, labels, 1 if per_sample == "correct" else BEST)
            values = self._mean_over_tokens(self._floats(hits), labels)
        return self._floats(values)

    def _mean_over_tokens(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return one value per sample, shape (N,); values of tokens are averaged."""
        return values if len(labels.shape) == 1 else self._mean_of_counted(values, labels)


def _square(values: Tensor) -> Tensor:
    return values * values
