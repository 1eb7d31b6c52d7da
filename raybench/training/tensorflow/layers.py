"""Layers of a workload as Keras layers, and batch normalization that behaves as in torch.

Mirrors torch/layers.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from raybench.models import layers as description
from raybench.models.layers import Layer, Shape, output_shapes
from raybench.training.tensorflow.internals import all_layers, unregister_new_gradient_functions

NORM_EPSILON = 1e-5
"""Epsilon that normalization layers add to the variance."""


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[keras.layers.Layer]:
    """Build a Keras layer for each layer.

    Args:
        layers: Descriptions of the layers.
        input_shape: Shape of an input without the batch axis; for images (H, W, C).
    """
    befores = [input_shape, *output_shapes(layers, input_shape)]
    pairs = zip(layers, befores, strict=False)
    return [_LAYERS[type(layer)](layer, before) for layer, before in pairs]


def input_type(layers: Sequence[Layer]) -> str | None:
    """Return the type of the model's inputs: `int64` for tokens, None for Keras's default."""
    is_embedded = isinstance(layers[0], description.Embedding | description.MeanEmbedding)
    return "int64" if is_embedded else None


class KerasMeanEmbedding(keras.layers.Layer):
    """Mean of the embeddings of a text's tokens, without padding tokens; 0 if all are padding."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(vocabulary, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return outputs of shape (N, size) for inputs of shape (N, tokens)."""
        counts = tf.cast(inputs != 0, self.compute_dtype)[..., None]
        vectors = tf.gather(tf.cast(self.weight, self.compute_dtype), inputs)
        number = tf.maximum(tf.reduce_sum(counts, axis=1), 1)
        return tf.reduce_sum(vectors * counts, axis=1) / number


class KerasPositions(keras.layers.Layer):
    """Adds a learned vector to each position of a sequence."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(tokens, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return inputs of shape (N, tokens, size) plus the vectors, in the same shape."""
        return inputs + tf.cast(self.weight, inputs.dtype)


class KerasCausalAttention(keras.layers.Layer):
    """Causal self-attention: each token attends to itself and to earlier tokens."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.joined = keras.layers.Dense(3 * size)
        self.last = keras.layers.Dense(size)
        for dense in (self.joined, self.last):
            dense.build((None, None, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return outputs in the shape of the inputs, (N, tokens, size)."""
        count, tokens, size = tf.shape(inputs)[0], inputs.shape[1], inputs.shape[2]
        width = size // self._heads
        joined = tf.reshape(self.joined(inputs), (count, tokens, 3, self._heads, width))
        queries, keys, values = tf.unstack(tf.transpose(joined, (2, 0, 3, 1, 4)))
        scores = tf.matmul(queries * width**-0.5, keys, transpose_b=True)
        is_before = tf.linalg.band_part(tf.ones((tokens, tokens), tf.bool), -1, 0)
        shares = tf.nn.softmax(tf.where(is_before, scores, scores.dtype.min))
        means = tf.transpose(tf.matmul(shares, values), (0, 2, 1, 3))
        return self.last(tf.reshape(means, (count, tokens, size)))


class KerasResidual(keras.layers.Layer):
    """Residual connection: adds the input of some layers to their output."""

    def __init__(self, layers: Sequence[Layer], before: Shape) -> None:
        super().__init__()
        self.layers = build_layers(layers, before)
        shapes = [before, *output_shapes(layers, before)]
        for layer, shape in zip(self.layers, shapes, strict=False):
            layer.build((None, *shape))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the sum, in the shape of the inputs."""
        outputs = inputs
        for layer in self.layers:
            outputs = layer(outputs)
        return inputs + outputs


_LAYERS: dict[type[Any], Callable[[Any, Shape], keras.layers.Layer]] = {
    description.Conv: lambda layer, before: keras.layers.Conv2D(
        layer.filters, layer.kernel, padding=layer.padding
    ),
    description.DepthwiseConv: lambda layer, before: keras.layers.DepthwiseConv2D(
        layer.kernel, depth_multiplier=layer.multiplier, padding=layer.padding
    ),
    description.MaxPool: lambda layer, before: keras.layers.MaxPooling2D(layer.size),
    description.ReLU: lambda layer, before: keras.layers.ReLU(),
    description.Flatten: lambda layer, before: keras.layers.Flatten(),
    description.Dense: lambda layer, before: keras.layers.Dense(layer.units),
    description.Dropout: lambda layer, before: keras.layers.Dropout(layer.rate),
    description.GELU: lambda layer, before: keras.layers.Activation("gelu"),
    description.GroupNorm: lambda layer, before: keras.layers.GroupNormalization(
        layer.groups, epsilon=NORM_EPSILON
    ),
    description.LayerNorm: lambda layer, before: keras.layers.LayerNormalization(
        epsilon=NORM_EPSILON
    ),
    description.GlobalAveragePool: lambda layer, before: (
        keras.layers.GlobalAveragePooling2D()
        if len(before) == 3
        else keras.layers.GlobalAveragePooling1D()
    ),
    description.Embedding: lambda layer, before: keras.layers.Embedding(
        layer.vocabulary, layer.size
    ),
    description.MeanEmbedding: lambda layer, before: KerasMeanEmbedding(
        layer.vocabulary, layer.size
    ),
    description.Positions: lambda layer, before: KerasPositions(*before),
    description.CausalAttention: lambda layer, before: KerasCausalAttention(
        before[-1], layer.heads
    ),
    description.Residual: lambda layer, before: KerasResidual(layer.layers, before),
}
"""Function that builds the Keras layer of a layer for an input shape, by class of the layer."""


STATISTICS = ("moving_mean", "moving_variance")
"""Names of the variables with the moving statistics of batch normalization."""
SENT = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Types that TensorFlow can sum over workers."""


class BatchNorm(keras.layers.BatchNormalization):
    """Batch normalization with an unbiased moving variance, as in torch.

    The moving variance of Keras is biased: for 16 samples and a feature map of one pixel, it is
    smaller by one sixteenth. Unlike Keras's layer, this one uses TensorFlow's fused kernel. With
    `synchronized`, where the statistics are those of all workers, training is left to Keras.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """Normalize inputs of shape (N, H, W, C), in training with the statistics of the batch,
        otherwise with the moving statistics."""
        del mask
        if not training or not self.trainable:
            return self._fused(inputs, self.moving_mean, self.moving_variance)[0]
        if self.synchronized:
            return super().call(inputs, training=True)
        outputs, mean, variance = self._fused(inputs, None, None)
        self._update_moving_statistics(mean, variance)
        return outputs

    def _fused(
        self, inputs: tf.Tensor, mean: keras.Variable | None, variance: keras.Variable | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Run the fused kernel.

        Args:
            inputs: Inputs of shape (N, H, W, C).
            mean: Mean with which the inputs are normalized; None to use that of the batch.
            variance: Variance, as `mean`.

        Returns:
            The outputs, and mean and unbiased variance of the batch.
        """
        statistics = [
            None if statistic is None else tf.convert_to_tensor(statistic.value)
            for statistic in (mean, variance)
        ]
        outputs, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma.value),
            tf.convert_to_tensor(self.beta.value),
            *statistics,
            epsilon=self.epsilon,
            is_training=mean is None,
        )
        return outputs, batch_mean, batch_variance

    def _update_moving_statistics(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Update the moving statistics with those of a batch."""
        for running, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            running.assign(running * self.momentum + new * (1.0 - self.momentum))


class AveragedStatistics:
    """Function that makes variables equal on all workers that a forward pass may have changed.

    The moving means and variances of batch normalization are averaged over the workers; other
    variables, such as a codebook or a queue, are copied from rank 0. Training does not read the
    moving statistics, so this is needed only before the model is evaluated or saved. Collective:
    all workers must call it.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # `non_trainable_weights` leaves out random states, which must differ between workers.
        changing = [variable for variable in model.non_trainable_weights if variable.dtype in SENT]
        self._variables = [variable for variable in changing if variable.name in STATISTICS]
        self._others = [variable for variable in changing if variable.name not in STATISTICS]
        self._traced = tf.function(lambda: strategy.run(self._average))

    def __call__(self) -> None:
        """Update the variables of every worker and replica."""
        if self._variables + self._others and self._strategy.num_replicas_in_sync > 1:
            self._traced()

    def _average(self) -> None:
        """Traced, in replica context: update the variables of one replica."""
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        own_values = [tf.identity(variable.value) for variable in self._variables]
        firsts = [
            tf.where(is_first, variable.value, tf.zeros_like(variable.value))
            for variable in self._others
        ]
        with unregister_new_gradient_functions():
            means = (
                context.all_reduce(tf.distribute.ReduceOp.MEAN, own_values) if own_values else []
            )
            sums = [context.all_reduce(tf.distribute.ReduceOp.SUM, first) for first in firsts]
        for variable, value in zip(self._variables + self._others, [*means, *sums], strict=True):
            variable.assign(value)


def synchronize(model: keras.Model) -> None:
    """Make every batch normalization layer of a model use the samples of all workers."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
