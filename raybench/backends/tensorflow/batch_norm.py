"""Batch normalisation in Keras as torch computes it. Mirrors torch/sync_batch_norm.py."""

from typing import Any

import keras
import tensorflow as tf

from raybench.backends.tensorflow.internals import all_layers, no_new_gradients

STATISTICS = ("moving_mean", "moving_variance")
SENT = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Types that TensorFlow adds up over workers."""


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
    """The mean over workers of the moving means and variances, and rank 0's of other variables that
    forward may change (a codebook, a queue); to be called by all at once.

    Training does not read the means: each worker keeps those of its own samples until the model is
    evaluated and saved.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # Without the random streams, which are each worker's own.
        changing = [one for one in model.non_trainable_weights if one.dtype in SENT]
        self._variables = [one for one in changing if one.name in STATISTICS]
        self._others = [one for one in changing if one.name not in STATISTICS]
        self._traced = tf.function(lambda: strategy.run(self._average))

    def __call__(self) -> None:
        """Give every worker and replica the means, and what is rank 0's."""
        if self._variables + self._others and self._strategy.num_replicas_in_sync > 1:
            self._traced()

    def _average(self) -> None:
        """Traced, in replica context."""
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        own = [tf.identity(one.value) for one in self._variables]
        firsts = [tf.where(is_first, one.value, tf.zeros_like(one.value)) for one in self._others]
        with no_new_gradients():
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, own) if own else []
            sums = [context.all_reduce(tf.distribute.ReduceOp.SUM, one) for one in firsts]
        for variable, value in zip(self._variables + self._others, [*means, *sums], strict=True):
            variable.assign(value)


def synchronise(model: keras.Model) -> None:
    """Let every batch normalisation take the samples of all workers."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
