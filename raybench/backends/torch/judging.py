"""What outputs are worth, sample by sample: losses and metrics. Mirrors tensorflow/judging.py."""

import torch
from torch import Tensor
from torch.nn import functional

from raybench.core.metric import Metric, find_metric
from raybench.core.spec import RunSpec
from raybench.data.dataset import IGNORED, Dataset
from raybench.workloads.base import Workload, missing_hook, refuse_label_smoothing

Mixed = tuple[Tensor, Tensor, Tensor]
"""Labels of the samples that others are mixed with, and what the loss by the own label and that by
the other's count (N,)."""
BEST = 5
"""Answers of which one must be right for `correct_of_5`."""


class Judge:
    """The loss and the metric of a run, on the device of a worker."""

    def __init__(
        self, spec: RunSpec, workload: Workload, dataset: Dataset, device: torch.device
    ) -> None:
        refuse_label_smoothing(spec, workload)
        self._workload, self._smoothing = workload, spec.label_smoothing
        self.metric = find_metric(spec.objective.metric, task=workload.task, own=workload.metric)
        """What `values` are averaged for."""
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        self._scale = torch.as_tensor(scale, dtype=torch.float32, device=device)

    def training_losses(self, outputs: Tensor, labels: Tensor, mixed: Mixed | None) -> Tensor:
        """Return the loss of each training sample (N,), float32; its weight is not in it."""
        losses = sample_losses(self._workload, outputs, labels, self._smoothing)
        if mixed is None:
            return losses
        others, own, rest = mixed
        other = sample_losses(self._workload, outputs, others, self._smoothing)
        return own * losses + rest * other

    def losses_and_values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample (N,) and what the metric averages (N,), both float32."""
        losses = sample_losses(self._workload, outputs, labels)
        values = sample_values(
            self._workload, self.metric, outputs, labels, losses=losses, scale=self._scale
        )
        return losses, values


def sample_losses(
    workload: Workload, outputs: Tensor, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the loss of each sample (N,), float32.

    `smoothing`: share of a label that is spread over all classes, in cross entropies.
    """
    if workload.torch_loss is not None:
        loss: Tensor = workload.torch_loss(outputs, labels)
    elif workload.task == "regression":
        loss = _mean(torch.square(_errors(outputs, labels)))
    elif workload.task == "language_modelling":
        losses = functional.cross_entropy(
            outputs.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
        loss = _mean_of_counted(losses.reshape(labels.shape), labels)
    else:
        loss = functional.cross_entropy(
            outputs.float(), labels, reduction="none", label_smoothing=smoothing
        )
    return loss.float()


def sample_values(
    workload: Workload,
    metric: Metric,
    outputs: Tensor,
    labels: Tensor,
    *,
    losses: Tensor,
    scale: Tensor,
) -> Tensor:
    """Return what `metric` averages, of each sample (N,), float32.

    `scale` is that of the labels, which brings errors into their own unit.
    """
    kind = metric.per_sample
    if kind == "own":
        if workload.torch_metric is None:
            raise missing_hook(workload, metric, "torch_metric")
        values: Tensor = workload.torch_metric(outputs, labels)
    elif kind == "loss":
        values = losses
    elif kind == "squared_error":
        values = _mean(torch.square(_errors(outputs, labels) * scale))
    elif kind == "absolute_error":
        values = _mean(torch.abs(_errors(outputs, labels) * scale))
    elif kind == "correct":
        values = _correct(workload, outputs, labels)
    else:  # correct_of_5
        best = outputs.topk(min(BEST, outputs.shape[-1]), dim=-1).indices
        values = _share((best == labels.unsqueeze(-1)).any(dim=-1), labels)
    return values.float()


def _correct(workload: Workload, outputs: Tensor, labels: Tensor) -> Tensor:
    if workload.torch_correct is not None:
        correct: Tensor = workload.torch_correct(outputs, labels)
        return correct
    return _share(outputs.argmax(dim=-1) == labels, labels)


def _share(hits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 or 0 of each sample (N,), or the share of its tokens that are hit."""
    return hits if labels.ndim == 1 else _mean_of_counted(hits.float(), labels)


def _mean_of_counted(values: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over the tokens of each sample that count (N,); 0 where none does."""
    counted = labels != IGNORED
    return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def _errors(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return outputs - labels in the labels' shape: (N, 1) outputs are (N,) beside such labels."""
    return outputs.float().reshape(labels.shape) - labels.float()


def _mean(values: Tensor) -> Tensor:
    """Return the mean over the outputs of each sample (N,)."""
    return values if values.ndim == 1 else values.mean(dim=1)
