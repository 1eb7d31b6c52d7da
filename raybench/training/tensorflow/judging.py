"""The operations of losses and metrics in TensorFlow. Mirrors torch/judging.py."""

import tensorflow as tf

from raybench.data.dataset import IGNORED
from raybench.training import judging

Mixed = tuple[tf.Tensor, ...]
"""Labels of the samples that others are mixed with, and what the loss by the own label and that by
the other's count (N,); or nothing where none are mixed."""


class Judge(judging.Judge):
    """The loss and the metric of a run."""

    PREFIX = "keras"

    def floats(self, values: tf.Tensor) -> tf.Tensor:
        """Return float32."""
        return tf.cast(values, tf.float32)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Return the mean over the outputs of each sample (N,)."""
        return values if values.shape.rank == 1 else tf.reduce_mean(values, axis=1)

    def mean_of_counted(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the mean over the tokens of each sample that count (N,); 0 where none does."""
        counted = tf.cast(labels != IGNORED, values.dtype)
        return tf.reduce_sum(values * counted, 1) / tf.maximum(tf.reduce_sum(counted, 1), 1)

    def errors(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return outputs - labels in the labels' shape: (N, 1) outputs are (N,) beside such."""
        found = tf.reshape(tf.cast(outputs, tf.float32), tf.shape(labels))
        return found - tf.cast(labels, tf.float32)

    def cross_entropy(self, outputs: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
        """Return that of each label, in the labels' shape."""
        if labels.shape.rank > 1:
            labels = tf.where(labels == IGNORED, tf.zeros_like(labels), labels)
        logits = tf.cast(outputs, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not smoothing:
            return losses
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
        return (1 - smoothing) * losses + smoothing * spread

    def hits(self, outputs: tf.Tensor, labels: tf.Tensor, most: int) -> tf.Tensor:
        """Whether the label's output is among the `most` largest, in the labels' shape."""
        if most == 1:
            return tf.argmax(outputs, axis=-1, output_type=labels.dtype) == labels
        found = tf.math.top_k(tf.cast(outputs, tf.float32), min(most, outputs.shape[-1]))
        best = tf.cast(found.indices, labels.dtype)
        return tf.reduce_any(best == labels[..., None], axis=-1)
