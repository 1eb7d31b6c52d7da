"""Layers of networks that both frameworks can build: their shapes and initial weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raybench.spec.errors import ErrorCode, UserError

Padding = Literal["same", "valid"]


class Layer:
    """Base class for descriptions of layers, from which both frameworks build them."""


@dataclass(frozen=True)
class Conv(Layer):
    """2-D convolution with bias, stride 1 and a square kernel."""

    filters: int
    kernel: int = 3
    padding: Padding = "same"


@dataclass(frozen=True)
class DepthwiseConv(Layer):
    """2-D depthwise convolution with bias, stride 1 and a square kernel."""

    multiplier: int
    """Number of filters per input channel."""
    kernel: int = 3
    padding: Padding = "same"


@dataclass(frozen=True)
class MaxPool(Layer):
    """Max pooling over squares of `size` pixels with stride `size`, without padding."""

    size: int = 2


@dataclass(frozen=True)
class ReLU(Layer):
    """Rectified linear unit, max(0, x)."""


@dataclass(frozen=True)
class Flatten(Layer):
    """Flattens an image into a vector, in the order (C, H, W) in torch and (H, W, C) in Keras."""


@dataclass(frozen=True)
class Dense(Layer):
    """Fully connected layer with bias, applied to a vector or to the vector of each token."""

    units: int


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets each value to zero with probability `rate` during training."""

    rate: float


@dataclass(frozen=True)
class GELU(Layer):
    """Gaussian error linear unit: x times the CDF of the standard normal distribution at x."""


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Group normalization of an image's channels, with a weight and a bias per channel.

    Unlike batch normalization, it does not depend on the other samples of a batch.
    """

    groups: int


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Layer normalization of a vector, or of the vector of each token, with a weight and a bias per
    feature."""


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """Mean of each channel over the pixels of an image, or of each feature over the tokens of a
    text."""


@dataclass(frozen=True)
class Embedding(Layer):
    """Learned vector for each token id."""

    vocabulary: int
    size: int


@dataclass(frozen=True)
class MeanEmbedding(Layer):
    """Mean of the learned vectors of all token ids of a text, ignoring padding (id 0)."""

    vocabulary: int
    size: int


@dataclass(frozen=True)
class Positions(Layer):
    """Adds a learned vector for each position to the vectors of the tokens."""


@dataclass(frozen=True)
class CausalAttention(Layer):
    """Multi-head self-attention in which a token attends only to itself and to earlier tokens."""

    heads: int


@dataclass(frozen=True)
class Residual(Layer):
    """Adds the input of `layers` to their output, which must have the same shape."""

    layers: tuple[Layer, ...]


Shape = tuple[int, ...]
"""Shape of one sample: (H, W, C) for an image, (features,) for a vector, (tokens,) for token ids,
or (tokens, features) for one vector per token."""


def output_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shape of one sample after each layer.

    Raises:
        UserError: The images are so small that no pixels are left after a layer.
    """
    shapes: list[Shape] = []
    shape = tuple(input_shape)
    for position, layer in enumerate(layers, start=1):
        shape = _output_shape(layer, shape)
        if min(shape) < 1:
            raise UserError(
                f"Inputs of shape {tuple(input_shape)} are too small: no pixels are left after "
                f"layer {position} ({layer}); set a larger dataset.image_size.",
                ErrorCode.INVALID_MODEL,
            )
        shapes.append(shape)
    return shapes


def parameter_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shapes of all weights and biases in torch's layout, in the order of the layers.

    C is the number of input channels, k the kernel size.

    | layer | shape of the weight | bias |
    |---|---|---|
    | Conv | (filters, C, k, k) | (filters,) |
    | DepthwiseConv | (C * multiplier, 1, k, k) | (C * multiplier,) |
    | Dense | (units, features) | (units,) |
    | GroupNorm, LayerNorm | (features,) | (features,) |
    | Embedding, MeanEmbedding | (vocabulary, size) | none |
    | Positions | (tokens, size) | none |

    CausalAttention has the weights and biases of two Dense layers. The first computes queries, keys
    and values together, and the second computes the output.
    """
    shapes: list[Shape] = []
    for layer, in_shape in _with_inputs(layers, input_shape):
        features = in_shape[-1]
        match layer:
            case Conv(filters, kernel):
                shapes += [(filters, features, kernel, kernel), (filters,)]
            case DepthwiseConv(multiplier, kernel):
                channels = features * multiplier
                shapes += [(channels, 1, kernel, kernel), (channels,)]
            case Dense(units):
                shapes += [(units, features), (units,)]
            case GroupNorm() | LayerNorm():
                shapes += [(features,), (features,)]
            case Embedding(vocabulary, size) | MeanEmbedding(vocabulary, size):
                shapes += [(vocabulary, size)]
            case Positions():
                shapes += [in_shape]
            case CausalAttention():
                shapes += [(3 * features, features), (3 * features,)]
                shapes += [(features, features), (features,)]
    return shapes


def _with_inputs(layers: Sequence[Layer], input_shape: Shape) -> Iterator[tuple[Layer, Shape]]:
    """Yield each layer with its input shape; a Residual is replaced by the layers inside it."""
    shapes = [tuple(input_shape), *output_shapes(layers, input_shape)]
    for layer, shape in zip(layers, shapes, strict=False):
        if isinstance(layer, Residual):
            yield from _with_inputs(layer.layers, shape)
        else:
            yield layer, shape


def num_parameters(layers: Sequence[Layer], input_shape: Shape) -> int:
    """Return the number of parameters (weights and biases) of a network."""
    return sum(math.prod(shape) for shape in parameter_shapes(layers, input_shape))


def _output_shape(layer: Layer, shape: Shape) -> Shape:
    match layer:
        case Flatten():
            return (math.prod(shape),)
        case Dense(units):
            return (*shape[:-1], units)
        case GlobalAveragePool():
            return shape[-1:]
        case Embedding(_, size):
            return (*shape, size)
        case MeanEmbedding(_, size):
            return (size,)
        case MaxPool(size):
            return (shape[0] // size, shape[1] // size, shape[2])
        case Conv(filters, kernel, padding):
            return (*_convolved(shape, kernel, padding), filters)
        case DepthwiseConv(multiplier, kernel, padding):
            return (*_convolved(shape, kernel, padding), shape[2] * multiplier)
    return shape


def _convolved(shape: Shape, kernel: int, padding: Padding) -> tuple[int, int]:
    num_removed = 0 if padding == "same" else kernel - 1
    return shape[0] - num_removed, shape[1] - num_removed


Array = npt.NDArray[Any]
Weights = list[Array]
"""Weights and biases of a network, in the order of `parameter_shapes`."""


def initial_weights(layers: Sequence[Layer], input_shape: Shape, seed: int) -> Weights:
    """Return the initial weights and biases of all layers in torch's layout, float32.

    They are the same in both frameworks. Weights and biases of convolutions, dense layers and
    attention are uniform within ±1 / sqrt(fan in), torch's default for convolutions and dense
    layers. Normalization layers start with weight 1 and bias 0. Embeddings and positions are
    normally distributed vectors of length about 1.
    """
    rng = np.random.default_rng(seed)
    weights: Weights = []
    for layer, in_shape in _with_inputs(layers, input_shape):
        shapes = parameter_shapes([layer], in_shape)
        match layer:
            case GroupNorm() | LayerNorm():
                weights += [np.ones(shapes[0], np.float32), np.zeros(shapes[1], np.float32)]
            case Embedding() | MeanEmbedding() | Positions():
                deviation = 1 / math.sqrt(shapes[0][-1])
                weights.append(rng.normal(0, deviation, shapes[0]).astype(np.float32))
            case _:
                bound = 0.0
                for shape in shapes:
                    if len(shape) > 1:  # a bias has the same bound as its weight, which precedes it
                        bound = 1 / math.sqrt(math.prod(shape[1:]))
                    weights.append(rng.uniform(-bound, bound, shape).astype(np.float32))
    return weights


def to_keras_layout(layers: Sequence[Layer], input_shape: Shape, weights: Weights) -> Weights:
    """Convert weights from torch's layout to the layout of Keras, in which channels come last.

    | layer | torch | Keras |
    |---|---|---|
    | Conv | (out, in, h, w) | (h, w, in, out) |
    | DepthwiseConv | (in * multiplier, 1, h, w) | (h, w, in, multiplier) |
    | Dense, CausalAttention | (out, in) | (in, out) |
    | Dense after Flatten | inputs ordered (C, H, W) | inputs ordered (H, W, C) |

    All other layers have the same layout in both frameworks.
    """
    remaining, converted = iter(weights), Weights()
    flattened: Shape = ()
    """Shape (H, W, C) of the image that was flattened before the next Dense layer; () if there was
    none."""
    for layer, in_shape in _with_inputs(layers, input_shape):
        if isinstance(layer, Flatten) and len(in_shape) == 3:
            flattened = in_shape
        for shape in parameter_shapes([layer], in_shape):
            weight = next(remaining)
            assert weight.shape == shape
            keras_weight = _in_keras_layout(layer, weight, in_shape[-1], flattened)
            converted.append(np.ascontiguousarray(keras_weight))
        if isinstance(layer, Dense):
            flattened = ()
    return converted


def _in_keras_layout(layer: Layer, weight: Array, channels: int, flattened: Shape) -> Array:
    """Convert a weight or bias of a layer from torch's layout to the layout of Keras.

    `channels` is the number of channels (or features) of the layer's input. `flattened` is the
    shape (H, W, C) of the image that was flattened before a Dense layer, or () if there was none.
    """
    match layer:
        case Conv() if weight.ndim > 1:
            return weight.transpose(2, 3, 1, 0)
        case DepthwiseConv(multiplier, kernel) if weight.ndim > 1:
            split = weight.reshape(channels, multiplier, kernel, kernel)
            return split.transpose(2, 3, 0, 1)
        case Dense(units) if weight.ndim > 1 and flattened:
            height, width, channels = flattened
            split = weight.reshape(units, channels, height, width)
            return split.transpose(2, 3, 1, 0).reshape(-1, units)
        case Dense() | CausalAttention() if weight.ndim > 1:
            return weight.T
    return weight
