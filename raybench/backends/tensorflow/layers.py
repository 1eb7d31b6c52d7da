"""A workload's layers as Keras layers. Mirrors torch/layers.py."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from raybench.workloads import layers as description
from raybench.workloads.layer_shapes import Shape, output_shapes
from raybench.workloads.layers import Layer

NORM_EPSILON = 1e-5
"""Added to the variance by norms."""


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[keras.layers.Layer]:
    """Return one Keras layer a layer, for images (N, H, W, C), vectors or tokens."""
    befores = [input_shape, *output_shapes(layers, input_shape)]
    return [_module(layer, before) for layer, before in zip(layers, befores, strict=False)]


def input_type(layers: Sequence[Layer]) -> str | None:
    """Return the type of what the first layer takes; None is the usual one of numbers."""
    is_embedded = isinstance(layers[0], description.Embedding | description.MeanEmbedding)
    return "int64" if is_embedded else None


class MeanEmbedding(keras.layers.Layer):
    """The mean of the tokens' vectors, padding left out; 0 of padding alone."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(vocabulary, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return (N, size) of (N, tokens)."""
        counts = tf.cast(inputs != 0, self.compute_dtype)[..., None]
        vectors = tf.gather(tf.cast(self.weight, self.compute_dtype), inputs)
        number = tf.maximum(tf.reduce_sum(counts, axis=1), 1)
        return tf.reduce_sum(vectors * counts, axis=1) / number


class Positions(keras.layers.Layer):
    """Adds a learnt vector for each place."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(tokens, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Take and return (N, tokens, size)."""
        return inputs + tf.cast(self.weight, inputs.dtype)


class CausalAttention(keras.layers.Layer):
    """Softmax attention to the tokens before and the token itself."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.joined = keras.layers.Dense(3 * size)
        self.last = keras.layers.Dense(size)
        for dense in (self.joined, self.last):
            dense.build((None, None, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Take and return (N, tokens, size)."""
        count, tokens, size = tf.shape(inputs)[0], inputs.shape[1], inputs.shape[2]
        width = size // self._heads
        joined = tf.reshape(self.joined(inputs), (count, tokens, 3, self._heads, width))
        queries, keys, values = tf.unstack(tf.transpose(joined, (2, 0, 3, 1, 4)))
        scores = tf.matmul(queries * width**-0.5, keys, transpose_b=True)
        is_before = tf.linalg.band_part(tf.ones((tokens, tokens), tf.bool), -1, 0)
        shares = tf.nn.softmax(tf.where(is_before, scores, scores.dtype.min))
        means = tf.transpose(tf.matmul(shares, values), (0, 2, 1, 3))
        return self.last(tf.reshape(means, (count, tokens, size)))


class Residual(keras.layers.Layer):
    """What comes in plus what the layers make of it."""

    def __init__(self, layers: Sequence[Layer], before: Shape) -> None:
        super().__init__()
        self.layers = build_layers(layers, before)
        shapes = [before, *output_shapes(layers, before)]
        for layer, shape in zip(self.layers, shapes, strict=False):
            layer.build((None, *shape))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the sum, of the inputs' shape."""
        outputs = inputs
        for layer in self.layers:
            outputs = layer(outputs)
        return inputs + outputs


def _module(layer: Layer, before: Shape) -> keras.layers.Layer:
    match layer:
        case description.Conv(filters, kernel, padding):
            return keras.layers.Conv2D(filters, kernel, padding=padding)
        case description.DepthwiseConv(multiplier, kernel, padding):
            return keras.layers.DepthwiseConv2D(
                kernel, depth_multiplier=multiplier, padding=padding
            )
        case description.MaxPool(size):
            return keras.layers.MaxPooling2D(size)
        case description.ReLU():
            return keras.layers.ReLU()
        case description.Flatten():
            return keras.layers.Flatten()
        case description.Dense(units):
            return keras.layers.Dense(units)
        case description.Dropout(rate):
            return keras.layers.Dropout(rate)
        case description.GELU():
            return keras.layers.Activation("gelu")
        case description.GroupNorm(groups):
            return keras.layers.GroupNormalization(groups, epsilon=NORM_EPSILON)
        case description.LayerNorm():
            return keras.layers.LayerNormalization(epsilon=NORM_EPSILON)
        case description.GlobalAveragePool() if len(before) == 3:
            return keras.layers.GlobalAveragePooling2D()
        case description.GlobalAveragePool():
            return keras.layers.GlobalAveragePooling1D()
        case description.Embedding(vocabulary, size):
            return keras.layers.Embedding(vocabulary, size)
        case description.MeanEmbedding(vocabulary, size):
            return MeanEmbedding(vocabulary, size)
        case description.Positions():
            return Positions(*before)
        case description.CausalAttention(heads):
            return CausalAttention(before[-1], heads)
        case description.Residual(layers):
            return Residual(layers, before)
