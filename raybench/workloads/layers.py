"""One description of a network for both frameworks: its layers, their shapes and sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raybench.core.errors import UserError

Padding = Literal["same", "valid"]
Shape = tuple[int, ...]
"""Of one sample: (H, W, C) of an image, (features,) of a vector."""


@dataclass(frozen=True)
class Conv:
    """2-D convolution with bias, stride 1, square kernel."""

    filters: int
    kernel: int = 3
    padding: Padding = "same"


@dataclass(frozen=True)
class DepthwiseConv:
    """Every input channel has `multiplier` filters of its own; with bias, stride 1."""

    multiplier: int
    kernel: int = 3
    padding: Padding = "same"


@dataclass(frozen=True)
class MaxPool:
    """Maximum over squares of `size`, which is the stride too; a rest at the border is dropped."""

    size: int = 2


@dataclass(frozen=True)
class ReLU:
    """max(0, x)."""


@dataclass(frozen=True)
class Flatten:
    """An image into a vector, in each framework's own order of axes."""


@dataclass(frozen=True)
class Dense:
    """Fully connected, with bias."""

    units: int


@dataclass(frozen=True)
class Dropout:
    """Sets a share `rate` of the values to zero in training."""

    rate: float


Layer = Conv | DepthwiseConv | MaxPool | ReLU | Flatten | Dense | Dropout


def output_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shape of one sample after each layer.

    An image too small for the layers, or a layer that cannot take the shape before it, is a
    UserError.
    """
    shapes: list[Shape] = []
    shape = tuple(input_shape)
    for position, layer in enumerate(layers, start=1):
        shape = _output_shape(layer, shape, f"layer {position} ({layer})")
        if min(shape) < 1:
            raise UserError(
                f"Inputs of shape {tuple(input_shape)} are too small: nothing is left after layer "
                f"{position} ({layer}); set a larger dataset.image_size."
            )
        shapes.append(shape)
    return shapes


def parameter_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shapes of all weights and biases in torch's layout, in layer order.

    Conv (filters, C, k, k), DepthwiseConv (C * multiplier, 1, k, k), Dense (units, features);
    each is followed by its bias (outputs,).
    """
    shapes: list[Shape] = []
    befores = [tuple(input_shape), *output_shapes(layers, input_shape)]
    for layer, before in zip(layers, befores, strict=False):
        match layer:
            case Conv(filters, kernel):
                shapes += [(filters, before[-1], kernel, kernel), (filters,)]
            case DepthwiseConv(multiplier, kernel):
                channels = before[-1] * multiplier
                shapes += [(channels, 1, kernel, kernel), (channels,)]
            case Dense(units):
                shapes += [(units, before[0]), (units,)]
    return shapes


def num_parameters(layers: Sequence[Layer], input_shape: Shape) -> int:
    """Weights and biases together."""
    return sum(math.prod(shape) for shape in parameter_shapes(layers, input_shape))


def _output_shape(layer: Layer, shape: Shape, where: str) -> Shape:
    match layer:
        case ReLU() | Dropout():
            return shape
        case Flatten():
            return (math.prod(shape),)
        case Dense(units):
            if len(shape) != 1:
                raise UserError(f"{where} needs a vector, not {shape}; put Flatten() before it.")
            return (units,)
    if len(shape) != 3:
        raise UserError(f"{where} needs an image (H, W, C), not {shape}.")
    height, width, channels = shape
    match layer:
        case MaxPool(size):
            return (height // size, width // size, channels)
        case Conv(filters, kernel, padding):
            return (*_convolved(height, width, kernel, padding), filters)
        case DepthwiseConv(multiplier, kernel, padding):
            return (*_convolved(height, width, kernel, padding), channels * multiplier)


def _convolved(height: int, width: int, kernel: int, padding: Padding) -> tuple[int, int]:
    lost = 0 if padding == "same" else kernel - 1
    return height - lost, width - lost
