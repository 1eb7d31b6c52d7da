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
"""Number of top answers, one of which must be correct for `correct_of_5`."""


class BaseLosses:
    """Base class of a run's loss and metric; each backend has a subclass `Losses`, which provides
    the operations of the framework.

    `_mean` averages each sample's values to (N,). `_mean_of_counted` averages over each sample's
    tokens whose label is not IGNORED (0 if there are none). The others return one value per label:
    `_errors` returns outputs - labels and accepts (N, 1) outputs for (N,) labels; `_cross_entropy`
    returns the loss; `_hits` returns whether the label is among the `most` largest outputs.
    """

    PREFIX: ClassVar[str]
    """Prefix of a workload's hooks, as in `torch_loss`: `torch` or `keras`."""
    _floats: Any
    _mean: Any
    _mean_of_counted: Any
    _errors: Any
    _cross_entropy: Any
    _hits: Any

    def __init__(
        self, workload: Workload, metric: Metric, *, scale: Tensor = 1.0, smoothing: float = 0.0
    ) -> None:
        """Create losses for a workload.

        Args:
            workload: Workload with the task, the number of classes and the user's hooks.
            metric: Metric of the run.
            scale: Factor that converts errors to the unit of the labels.
            smoothing: Label smoothing, the share of a label spread over all classes in training.
        """
        self.workload, self._scale, self._smoothing = workload, scale, smoothing
        self.metric = metric
        """Metric that averages the `values`."""

    @classmethod
    def for_run(
        cls,
        spec: RunSpec,
        workload: Workload,
        dataset: Dataset,
        on_device: Callable[[Any], Tensor] = lambda scale: scale,
    ) -> Self:
        """Return the losses of a run; `on_device` moves the label scale to the device."""
        refuse_label_smoothing(spec, workload)
        metric = find_metric(spec.objective.metric, task=workload.task, custom=workload.metric)
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        return cls(workload, metric, scale=on_device(scale), smoothing=spec.label_smoothing)

    def training_losses(self, outputs: Tensor, labels: Tensor, mixed: Any) -> Tensor:
        """Return the unweighted loss of each training sample, (N,) float32.

        Args:
            outputs: Outputs of the model.
            labels: Labels of the samples.
            mixed: With mixup, the labels of the second sample in each mix, the weights (N,) of the
                losses for `labels`, and those for the second labels; otherwise empty or None.
        """
        losses = self.losses(outputs, labels, self._smoothing)
        if not mixed:
            return losses
        second_labels, weights, second_weights = mixed
        second_losses = self.losses(outputs, second_labels, self._smoothing)
        return weights * losses + second_weights * second_losses

    def losses_and_values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample (N,) and its value for the metric (N,), both float32."""
        losses = self.losses(outputs, labels)
        return losses, self.values(outputs, labels, losses)

    def hook(self, name: str) -> Any:
        """Return the workload's hook of that name for this framework, or None."""
        return getattr(self.workload, f"{self.PREFIX}_{name}")

    def losses(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each sample (N,), float32."""
        hook = self.hook("loss")
        if hook is not None:
            return self._floats(hook(outputs, labels))
        if self.workload.task == "regression":
            return self._floats(self._mean(_square(self._errors(outputs, labels))))
        losses = self._cross_entropy(outputs, labels, smoothing)
        return self._floats(self._of_samples(losses, labels))

    def values(self, outputs: Tensor, labels: Tensor, losses: Tensor) -> Tensor:
        """Return the value of each sample that the metric averages, (N,) float32; if the metric is
        not a mean, the outputs."""
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
            values = self._of_samples(self._floats(hits), labels)
        return self._floats(values)

    def _of_samples(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return one value per sample (N,); values of tokens are averaged over the sample."""
        return values if len(labels.shape) == 1 else self._mean_of_counted(values, labels)


def _square(values: Tensor) -> Tensor:
    return values * values
