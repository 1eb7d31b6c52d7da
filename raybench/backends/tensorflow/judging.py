"""What outputs are worth, sample by sample: losses and metrics. Mirrors torch/judging.py."""

import tensorflow as tf

from raybench.core.metric import Metric, find_metric
from raybench.core.spec import RunSpec
from raybench.data.dataset import IGNORED, Dataset
from raybench.workloads.base import Workload, missing_hook, refuse_label_smoothing

Mixed = tuple[tf.Tensor, ...]
"""Labels of the samples that others are mixed with, and what the loss by the own label and that by
the other's count (N,); or nothing where none are mixed."""
BEST = 5
"""Answers of which one must be right for `correct_of_5`."""


class Judge:
    """The loss and the metric of a run."""

    def __init__(self, spec: RunSpec, workload: Workload, dataset: Dataset) -> None:
        refuse_label_smoothing(spec, workload)
        self._workload, self._smoothing = workload, spec.label_smoothing
        self.metric = find_metric(spec.objective.metric, task=workload.task, own=workload.metric)
        """What `values` are averaged for."""
        self._scale = 1.0 if dataset.label_scale is None else dataset.label_scale

    def training_losses(self, outputs: tf.Tensor, labels: tf.Tensor, mixed: Mixed) -> tf.Tensor:
        """Return the loss of each training sample (N,), float32; its weight is not in it."""
        losses = sample_losses(self._workload, outputs, labels, self._smoothing)
        if not mixed:
            return losses
        others, own, rest = mixed
        other = sample_losses(self._workload, outputs, others, self._smoothing)
        return own * losses + rest * other

    def losses_and_values(
        self, outputs: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss of each sample (N,) and what the metric averages (N,), both float32."""
        losses = sample_losses(self._workload, outputs, labels)
        values = sample_values(
            self._workload, self.metric, outputs, labels, losses=losses, scale=self._scale
        )
        return losses, values


def sample_losses(
    workload: Workload, outputs: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0
) -> tf.Tensor:
    """Return the loss of each sample (N,), float32.

    `smoothing`: share of a label that is spread over all classes, in cross entropies.
    """
    if workload.keras_loss is not None:
        loss = workload.keras_loss(outputs, labels)
    elif workload.task == "regression":
        loss = _mean(tf.square(_errors(outputs, labels)))
    elif workload.task == "language_modelling":
        classes = tf.where(labels == IGNORED, tf.zeros_like(labels), labels)
        loss = _mean_of_counted(_cross_entropy(outputs, classes, smoothing), labels)
    else:
        loss = _cross_entropy(outputs, labels, smoothing)
    return tf.cast(loss, tf.float32)


def sample_values(
    workload: Workload,
    metric: Metric,
    outputs: tf.Tensor,
    labels: tf.Tensor,
    *,
    losses: tf.Tensor,
    scale: "tf.Tensor | float",
) -> tf.Tensor:
    """Return what `metric` averages, of each sample (N,), float32.

    `scale` is that of the labels, which brings errors into their own unit.
    """
    kind = metric.per_sample
    if kind == "own":
        if workload.keras_metric is None:
            raise missing_hook(workload, metric, "keras_metric")
        values = workload.keras_metric(outputs, labels)
    elif kind == "loss":
        values = losses
    elif kind == "squared_error":
        values = _mean(tf.square(_errors(outputs, labels) * scale))
    elif kind == "absolute_error":
        values = _mean(tf.abs(_errors(outputs, labels) * scale))
    elif kind == "correct":
        values = _correct(workload, outputs, labels)
    else:  # correct_of_5
        most = tf.math.top_k(tf.cast(outputs, tf.float32), min(BEST, outputs.shape[-1]))
        best = tf.cast(most.indices, labels.dtype)
        values = _share(tf.reduce_any(best == labels[..., None], axis=-1), labels)
    return tf.cast(values, tf.float32)


def _correct(workload: Workload, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    if workload.keras_correct is not None:
        return workload.keras_correct(outputs, labels)
    return _share(tf.argmax(outputs, axis=-1, output_type=labels.dtype) == labels, labels)


def _cross_entropy(outputs: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
    logits = tf.cast(outputs, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
    return (1 - smoothing) * losses + smoothing * spread


def _share(hits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1 or 0 of each sample (N,), or the share of its tokens that are hit."""
    hits = tf.cast(hits, tf.float32)
    return hits if labels.shape.rank == 1 else _mean_of_counted(hits, labels)


def _mean_of_counted(values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the mean over the tokens of each sample that count (N,); 0 where none does."""
    counted = tf.cast(labels != IGNORED, values.dtype)
    return tf.reduce_sum(values * counted, 1) / tf.maximum(tf.reduce_sum(counted, 1), 1)


def _errors(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return outputs - labels in the labels' shape: (N, 1) outputs are (N,) beside such labels."""
    found = tf.reshape(tf.cast(outputs, tf.float32), tf.shape(labels))
    return found - tf.cast(labels, tf.float32)


def _mean(values: tf.Tensor) -> tf.Tensor:
    """Return the mean over the outputs of each sample (N,)."""
    return values if values.shape.rank == 1 else tf.reduce_mean(values, axis=1)
