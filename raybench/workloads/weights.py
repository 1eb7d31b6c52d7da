"""The same initial weights for both frameworks, and the way between their layouts."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.workloads.layers import (
    Conv,
    Dense,
    DepthwiseConv,
    Dropout,
    Flatten,
    Layer,
    ReLU,
    Shape,
    output_shapes,
    parameter_shapes,
)

Array = npt.NDArray[Any]
Weights = list[Array]


def initial_weights(layers: Sequence[Layer], input_shape: Shape, seed: int) -> Weights:
    """Return weight, bias, weight, bias, ... in torch's layout, float32.

    Torch's own default distribution, for both frameworks: uniform within 1 / sqrt(fan in),
    biases too.
    """
    rng = np.random.default_rng(seed)
    weights: Weights = []
    bound = 0.0
    for shape in parameter_shapes(layers, input_shape):
        if len(shape) > 1:  # a bias keeps the bound of the weight before it
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        weights.append(rng.uniform(-bound, bound, shape).astype(np.float32))
    return weights


def to_keras_layout(layers: Sequence[Layer], input_shape: Shape, weights: Weights) -> Weights:
    """Reorder weights from torch's layout to that of Keras, channels last.

    | layer | torch | Keras |
    |---|---|---|
    | Conv | (out, in, h, w) | (h, w, in, out) |
    | DepthwiseConv | (in * multiplier, 1, h, w) | (h, w, in, multiplier) |
    | Dense | (out, in) | (in, out) |
    | Dense after Flatten | inputs ordered (C, H, W) | inputs ordered (H, W, C) |
    """
    result: Weights = []
    for layer, before, weight, bias in _by_layer(layers, input_shape, weights):
        match layer:
            case Conv():
                weight = weight.transpose(2, 3, 1, 0)
            case DepthwiseConv(multiplier, kernel):
                split = weight.reshape(before[-1], multiplier, kernel, kernel)
                weight = split.transpose(2, 3, 0, 1)
            case Dense(units):
                height, width, channels = before
                split = weight.reshape(units, channels, height, width)
                weight = split.transpose(2, 3, 1, 0).reshape(-1, units)
        result += [np.ascontiguousarray(weight), bias]
    return result


def _by_layer(
    layers: Sequence[Layer], input_shape: Shape, weights: Weights
) -> list[tuple[Layer, Shape, Array, Array]]:
    """Return (layer, what it sees, weight, bias) of each layer that has weights.

    What a Dense layer sees is given as an image too: the one that was flattened, whose order
    of axes the frameworks differ in, or (1, 1, features) where it was a vector already.
    """
    result: list[tuple[Layer, Shape, Array, Array]] = []
    pairs = zip(weights[::2], weights[1::2], strict=True)
    seen = _as_image(input_shape)
    for layer, after in zip(layers, output_shapes(layers, input_shape), strict=True):
        if isinstance(layer, Conv | DepthwiseConv | Dense):
            result.append((layer, seen, *next(pairs)))
        if not isinstance(layer, Flatten | ReLU | Dropout):
            seen = _as_image(after)
    return result


def _as_image(shape: Shape) -> Shape:
    return shape if len(shape) == 3 else (1, 1, *shape)
