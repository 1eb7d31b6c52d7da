"""The same initial weights for both frameworks, and the way between their layouts."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.workloads.layer_shapes import Shape, output_shapes, parameter_shapes
from raybench.workloads.layers import (
    CausalAttention,
    Conv,
    Dense,
    DepthwiseConv,
    Embedding,
    Flatten,
    GroupNorm,
    Layer,
    LayerNorm,
    MeanEmbedding,
    Positions,
    Residual,
)

Array = npt.NDArray[Any]
Weights = list[Array]


def initial_weights(layers: Sequence[Layer], input_shape: Shape, seed: int) -> Weights:
    """Return the weights of all layers in torch's layout and order, float32.

    Of convolutions and dense layers torch's own default distribution, for both frameworks:
    uniform within 1 / sqrt(fan in), biases too. Norms begin as 1 and 0. The vectors of tokens and
    places are normal, with a length of about 1.
    """
    rng = np.random.default_rng(seed)
    return list(_drawn(layers, input_shape, rng))


def _drawn(
    layers: Sequence[Layer], input_shape: Shape, rng: np.random.Generator
) -> Iterator[Array]:
    befores = [tuple(input_shape), *output_shapes(layers, input_shape)]
    for layer, before in zip(layers, befores, strict=False):
        shapes = parameter_shapes([layer], before)
        match layer:
            case Residual(inner):
                yield from _drawn(inner, before, rng)
            case GroupNorm() | LayerNorm():
                weight, bias = shapes
                yield np.ones(weight, np.float32)
                yield np.zeros(bias, np.float32)
            case Embedding() | MeanEmbedding() | Positions():
                deviation = 1 / math.sqrt(shapes[0][-1])
                yield rng.normal(0, deviation, shapes[0]).astype(np.float32)
            case _:
                bound = 0.0
                for shape in shapes:
                    if len(shape) > 1:  # a bias keeps the bound of the weight before it
                        bound = 1 / math.sqrt(math.prod(shape[1:]))
                    yield rng.uniform(-bound, bound, shape).astype(np.float32)


def to_keras_layout(layers: Sequence[Layer], input_shape: Shape, weights: Weights) -> Weights:
    """Reorder weights from torch's layout to that of Keras, channels last.

    | layer | torch | Keras |
    |---|---|---|
    | Conv | (out, in, h, w) | (h, w, in, out) |
    | DepthwiseConv | (in * multiplier, 1, h, w) | (h, w, in, multiplier) |
    | Dense, CausalAttention | (out, in) | (in, out) |
    | Dense after Flatten | inputs ordered (C, H, W) | inputs ordered (H, W, C) |

    All others are the same in both.
    """
    return list(_turned(layers, tuple(input_shape), iter(weights)))


def _turned(
    layers: Sequence[Layer], input_shape: Shape, weights: Iterator[Array]
) -> Iterator[Array]:
    befores = [input_shape, *output_shapes(layers, input_shape)]
    flattened: Shape = ()
    """The image whose values, in each framework's order, the vector before a layer has."""
    for layer, before in zip(layers, befores, strict=False):
        if isinstance(layer, Residual):
            yield from _turned(layer.layers, before, weights)
            continue
        if isinstance(layer, Flatten) and len(before) == 3:
            flattened = before
        for shape in parameter_shapes([layer], before):
            weight = next(weights)
            assert weight.shape == shape
            yield np.ascontiguousarray(_in_keras(layer, weight, before[-1], flattened))
        if isinstance(layer, Dense):
            flattened = ()


def _in_keras(layer: Layer, weight: Array, channels: int, flattened: Shape) -> Array:
    """Return one weight or bias of a layer that is given so many `channels`."""
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
