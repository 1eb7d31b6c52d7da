"""The shapes that layers make of a sample, and those of their weights."""

import math
from collections.abc import Sequence

from raybench.core.errors import UserError
from raybench.workloads.layers import (
    GELU,
    CausalAttention,
    Conv,
    Dense,
    DepthwiseConv,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePool,
    GroupNorm,
    Layer,
    LayerNorm,
    MaxPool,
    MeanEmbedding,
    Padding,
    Positions,
    ReLU,
    Residual,
)

Shape = tuple[int, ...]
"""Of one sample: (H, W, C) of an image, (features,) of a vector, (tokens,) of token ids,
(tokens, features) of what is known of each token."""


def output_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shape of one sample after each layer.

    An image too small for the layers, or a layer that cannot take the shape before it, is a
    UserError.
    """
    shapes: list[Shape] = []
    shape, turned = tuple(input_shape), False
    for position, layer in enumerate(layers, start=1):
        where, before = f"layer {position} ({layer})", shape
        if turned and isinstance(layer, LayerNorm | Residual):
            raise UserError(
                f"{where} cannot take an image as Flatten() leaves it, which the frameworks do in "
                "different orders; put Dense before it."
            )
        shape = _output_shape(layer, before, where)
        if min(shape) < 1:
            raise UserError(
                f"Inputs of shape {tuple(input_shape)} are too small: nothing is left after "
                f"{where}; set a larger dataset.image_size."
            )
        if isinstance(layer, Flatten | Dense):
            turned = len(before) == 3
        shapes.append(shape)
    return shapes


def parameter_shapes(layers: Sequence[Layer], input_shape: Shape) -> list[Shape]:
    """Return the shapes of all weights and biases in torch's layout, in layer order.

    Conv (filters, C, k, k), DepthwiseConv (C * multiplier, 1, k, k), Dense (units, features),
    norms (features,), each followed by its bias (outputs,); embeddings (vocabulary, size) and
    positions (tokens, size) have none. Attention is the Dense of queries, keys and values, side
    by side, and that of its outputs.
    """
    shapes: list[Shape] = []
    befores = [tuple(input_shape), *output_shapes(layers, input_shape)]
    for layer, before in zip(layers, befores, strict=False):
        features = before[-1]
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
                shapes += [before]
            case CausalAttention():
                shapes += [(3 * features, features), (3 * features,)]
                shapes += [(features, features), (features,)]
            case Residual(inner):
                shapes += parameter_shapes(inner, before)
    return shapes


def num_parameters(layers: Sequence[Layer], input_shape: Shape) -> int:
    """Weights and biases together."""
    return sum(math.prod(shape) for shape in parameter_shapes(layers, input_shape))


def _output_shape(layer: Layer, shape: Shape, where: str) -> Shape:
    match layer:
        case ReLU() | Dropout() | GELU():
            return shape
        case Flatten():
            return (math.prod(shape),)
        case Residual(layers):
            return _residual_shape(layers, shape, where)
        case Dense() | LayerNorm() if len(shape) == 3:
            raise UserError(f"{where} needs a vector, not {shape}; put Flatten() before it.")
        case Dense(units):
            return (*shape[:-1], units)
        case LayerNorm():
            return shape
        case GlobalAveragePool() if len(shape) > 1:
            return shape[-1:]
        case Embedding() | MeanEmbedding() | Positions() | CausalAttention():
            return _of_tokens(layer, shape, where)
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
        case GroupNorm(groups) if channels % groups:
            raise UserError(f"{where} cannot divide {channels} channels; choose other groups.")
        case GroupNorm():
            return shape
    raise AssertionError(layer)


def _of_tokens(
    layer: Embedding | MeanEmbedding | Positions | CausalAttention, shape: Shape, where: str
) -> Shape:
    match layer:
        case Embedding(_, size) | MeanEmbedding(_, size):
            if len(shape) != 1:
                raise UserError(f"{where} needs token ids (tokens,), not {shape}.")
            return (*shape, size) if isinstance(layer, Embedding) else (size,)
    if len(shape) != 2:
        raise UserError(f"{where} needs (tokens, features), not {shape}; begin with Embedding.")
    if isinstance(layer, CausalAttention) and shape[-1] % layer.heads:
        raise UserError(f"{where} cannot divide {shape[-1]} features; choose other heads.")
    return shape


def _residual_shape(layers: Sequence[Layer], shape: Shape, where: str) -> Shape:
    after = [shape, *output_shapes(layers, shape)][-1]
    if after != shape:
        raise UserError(f"{where} makes {after} of {shape}, which cannot be added; keep the shape.")
    return shape


def _convolved(height: int, width: int, kernel: int, padding: Padding) -> tuple[int, int]:
    lost = 0 if padding == "same" else kernel - 1
    return height - lost, width - lost
