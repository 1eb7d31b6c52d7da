"""Batch normalisation in Keras as torch computes it. Mirrors torch/sync_batch_norm.py."""

from typing import Any

import keras
import tensorflow as tf

from raybench.backends.tensorflow.internals import all_layers, no_new_gradients

STATISTICS = ("moving_mean", "moving_variance")


class BatchNorm(keras.layers.BatchNormalization):
    """Keras's layer, whose running variance is the unbiased one of each batch, as torch's.

    Keras keeps the biased one: of a batch of 16 samples and a last map of one pixel it is a
    sixteenth smaller. In TensorFlow's fused kernel, which Keras does not use. `synchronized` is
    Keras's own: over the samples of all workers.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """Return (N, H, W, C), normalised over the batch in training."""
        del mask
        if not training or not self.trainable:
            return self._fused(inputs, self.moving_mean, self.moving_variance)[0]
        if self.synchronized:
            return super().call(inputs, training=True)
        outputs, mean, variance = self._fused(inputs, None, None)
        self._keep(mean, variance)
        return outputs

    def _fused(
        self, inputs: tf.Tensor, mean: keras.Variable | None, variance: keras.Variable | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return outputs, and of a batch (mean None) its mean and unbiased variance."""
        kept = [
            None if one is None else tf.convert_to_tensor(one.value) for one in (mean, variance)
        ]
        outputs, of_batch, spread = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma.value),
            tf.convert_to_tensor(self.beta.value),
            *kept,
            epsilon=self.epsilon,
            is_training=mean is None,
        )
        return outputs, of_batch, spread

    def _keep(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        for running, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            running.assign(running * self.momentum + new * (1.0 - self.momentum))


class AveragedStatistics:
    """The mean over workers of the moving means and variances; to be called by all at once.

    Training does not read them: each worker keeps those of its own samples until the model is
    evaluated and saved. Other variables that forward changes are each worker's own; rank 0's are
    saved.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._variables = [one for one in model.non_trainable_variables if one.name in STATISTICS]
        self._traced = tf.function(lambda: strategy.run(self._average))

    def __call__(self) -> None:
        """Give every worker and replica the means."""
        if self._variables and self._strategy.num_replicas_in_sync > 1:
            self._traced()

    def _average(self) -> None:
        """Traced, in replica context."""
        own = [tf.identity(one.value) for one in self._variables]
        context = tf.distribute.get_replica_context()
        with no_new_gradients():
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, own)
        for variable, mean in zip(self._variables, means, strict=True):
            variable.assign(mean)


def synchronise(model: keras.Model) -> None:
    """Let every batch normalisation take the samples of all workers."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
