"""Workloads that are shipped with raybench, by name.

There are two versions of `mnist_large`, because their source, a report on data-parallel PyTorch
versus TensorFlow on MNIST (2020), contradicts itself: it states 2,636,554 parameters, but the model
that it timed has 4,104,202. The smaller number is what one gets by counting a single input channel
for every convolution. `mnist_large` has this smaller number of parameters and activations of the
same shapes, by means of depthwise convolutions. `mnist_large_dense` is the network that the report
timed with PyTorch.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raybench.models.base import DataShape, LayerWorkload
from raybench.models.layers import (
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
    Shape,
)
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError

SMALLEST_VALID_CNN7 = 94  # pixels; on smaller images, the unpadded layers of cnn7 leave no pixels


@dataclass(frozen=True)
class ShippedWorkload(LayerWorkload):
    """A workload of raybench, built for a given input shape, number of outputs and task."""

    name: str
    input_shape: Shape
    num_classes: int
    layers: tuple[Layer, ...]
    task: Task = "classification"


def mnist_small(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of one convolution, suitable for a CPU; 402,442 parameters at 28x28x1."""
    layers = (*_conv_block(32), Flatten(), Dense(64), ReLU(), Dense(num_classes))
    return ShippedWorkload("mnist_small", input_shape, num_classes, layers)


def mnist_large(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of three convolutions, of which two are depthwise; 2,636,554 parameters at
    28x28x1."""
    layers = (
        *_conv_block(128),
        *(DepthwiseConv(multiplier=2), ReLU(), MaxPool()),
        *(DepthwiseConv(multiplier=2), ReLU(), MaxPool()),
        *_large_head(num_classes),
    )
    return ShippedWorkload("mnist_large", input_shape, num_classes, layers)


def mnist_large_dense(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of three ordinary convolutions; 4,104,202 parameters at 28x28x1."""
    layers = (*(*_conv_block(128), *_conv_block(256), *_conv_block(512)), *_large_head(num_classes))
    return ShippedWorkload("mnist_large_dense", input_shape, num_classes, layers)


def cnn7(input_shape: Shape = (299, 299, 3), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of five convolutions and two dense layers (W&B, 2019); 910,922 parameters at
    299x299x3.

    For images of at least 94 pixels, convolutions are unpadded, as in the source. For smaller
    images, down to 32 pixels, they are padded. The network has 124,490 parameters at 94 and at 32
    pixels.
    """
    padding: Padding = "valid" if min(input_shape[:2]) >= SMALLEST_VALID_CNN7 else "same"
    blocks = (_conv_block(filters, padding) for filters in (16, 32, 32, 64, 128))
    layers = (
        *(layer for block in blocks for layer in block),
        *(Flatten(), Dense(128), ReLU(), Dropout(0.3), Dense(num_classes)),
    )
    return ShippedWorkload("cnn7", input_shape, num_classes, layers)


def deep_mlp(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of eight dense layers, the hidden ones with 64 units, without normalization.

    Layer-wise learning rates (LARS, LAMB) make a difference for this network.
    """
    hidden = (layer for _ in range(7) for layer in (Dense(64), ReLU()))
    layers = (Flatten(), *hidden, Dense(num_classes))
    return ShippedWorkload("deep_mlp", input_shape, num_classes, layers)


def cifar_cnn(input_shape: Shape = (32, 32, 3), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of four convolutions and two dense layers; 1,250,858 parameters at 32x32x3.

    The network is from the examples of Keras. Every second convolution is unpadded.
    """
    blocks = (
        (Conv(n), ReLU(), Conv(n, padding="valid"), ReLU(), MaxPool(), Dropout(0.25))
        for n in (32, 64)
    )
    layers = (
        *(layer for block in blocks for layer in block),
        *(Flatten(), Dense(512), ReLU(), Dropout(0.5), Dense(num_classes)),
    )
    return ShippedWorkload("cifar_cnn", input_shape, num_classes, layers)


def small_resnet(input_shape: Shape = (32, 32, 3), num_classes: int = 10) -> ShippedWorkload:
    """Return a network of eight convolutions with two residual blocks; 413,514 parameters.

    It is the ResNet-9 of the CIFAR-10 entries of DAWNBench with a quarter of the width. Batch
    normalization is replaced by group normalization, so that a worker's batch may have any size.
    """
    layers = (
        *(*_normed_block(16), *_normed_block(32), MaxPool(), _residual_block(32)),
        *(*_normed_block(64), MaxPool()),
        *(*_normed_block(128), MaxPool(), _residual_block(128)),
        *(GlobalAveragePool(), Dense(num_classes)),
    )
    return ShippedWorkload("small_resnet", input_shape, num_classes, layers)


def mlp(input_shape: Shape = (8,), num_classes: int = 2) -> ShippedWorkload:
    """Return a network with three hidden layers for tabular data; 101,250 parameters for 8 features
    and 2 classes."""
    hidden = (layer for units in (256, 256, 128) for layer in (Dense(units), ReLU()))
    flat = (Flatten(),) if len(input_shape) > 1 else ()
    return ShippedWorkload("mlp", input_shape, num_classes, (*flat, *hidden, Dense(num_classes)))


def text_bag(
    input_shape: Shape = (128,), num_classes: int = 2, vocabulary_size: int = 20_000
) -> ShippedWorkload:
    """Return a network for texts: the mean of the token embeddings, then a hidden layer.

    The network ignores the order of the tokens.
    """
    layers = (MeanEmbedding(vocabulary_size, 64), Dense(128), ReLU(), Dense(num_classes))
    return ShippedWorkload("text_bag", input_shape, num_classes, layers)


def char_lm(
    input_shape: Shape = (128,), num_classes: int = 256, vocabulary_size: int | None = None
) -> ShippedWorkload:
    """Return a transformer language model with two blocks of width 128; 478,976 parameters for
    sequences of 128 tokens and a vocabulary of 256."""
    layers = (
        *(Embedding(vocabulary_size or num_classes, 128), Positions()),
        *(layer for _ in range(2) for layer in _transformer_block(128, heads=4)),
        *(LayerNorm(), Dense(num_classes)),
    )
    return ShippedWorkload("char_lm", input_shape, num_classes, layers, "language_modelling")


FOR_IMAGES = (mnist_small, mnist_large, mnist_large_dense, cnn7, cifar_cnn, deep_mlp, small_resnet)
WORKLOADS: dict[str, Callable[..., ShippedWorkload]] = {
    make.__name__: make for make in (*FOR_IMAGES, mlp, text_bag, char_lm)
}
"""Functions that return the workloads, keyed by name. Their optional arguments are `input_shape`
and `num_classes` of the dataset, and for workloads in `FOR_TOKENS` also `vocabulary_size`."""
FOR_TOKENS = ("text_bag", "char_lm")
"""Names of the workloads whose inputs are token ids."""


def shipped_workload(name: str, shape: DataShape | None = None) -> ShippedWorkload:
    """Return a shipped workload, built for the shape of the data.

    Args:
        name: Name of the workload, a key of `WORKLOADS`.
        shape: Shape and task of the data; None for the default shape of the workload.

    Raises:
        UserError: The workload does not accept such data.
    """
    if shape is None:
        return WORKLOADS[name]()
    if isinstance(shape.input_shape, dict):
        raise UserError(
            f"Workload {name} takes one array of inputs, but the dataset has named inputs "
            f"({', '.join(sorted(shape.input_shape))}); write your own module:Class.",
            ErrorCode.INVALID_DATA,
        )
    fitting = _fitting(shape)
    if name not in fitting and (shape.kind is not None or name not in FOR_TOKENS):
        raise UserError(
            f"Workload {name} does not take {shape.kind or 'inputs'} of shape "
            f"{shape.input_shape} for task {shape.task}; choose {', '.join(fitting)}, or write "
            "your own module:Class.",
            ErrorCode.INVALID_DATA,
        )
    arguments: dict[str, Any] = {"input_shape": shape.input_shape, "num_classes": shape.num_outputs}
    if name in FOR_TOKENS:
        if shape.vocabulary_size is None:
            raise UserError(
                f"Workload {name} requires the number of distinct tokens; set the vocabulary of "
                "the dataset, or provide its token ids as an array.",
                ErrorCode.MISSING,
            )
        arguments["vocabulary_size"] = shape.vocabulary_size
    return dataclasses.replace(WORKLOADS[name](**arguments), task=shape.task)


def _fitting(shape: DataShape) -> list[str]:
    """Return the names of the workloads that accept data of the given shape, kind and task."""
    if shape.task == "language_modelling":
        return ["char_lm"]
    if shape.kind == "tokens":
        return ["text_bag"]
    if len(shape.input_shape) != 3:
        return ["mlp", "deep_mlp"]
    return [name for name in WORKLOADS if name not in FOR_TOKENS]


def _normed_block(filters: int) -> tuple[Layer, ...]:
    return (Conv(filters), GroupNorm(groups=8), ReLU())


def _residual_block(filters: int) -> Residual:
    return Residual((*_normed_block(filters), *_normed_block(filters)))


def _conv_block(filters: int, padding: Padding = "same") -> tuple[Layer, ...]:
    return (Conv(filters, padding=padding), ReLU(), MaxPool())


def _large_head(num_classes: int) -> tuple[Layer, ...]:
    return (Flatten(), Dense(512), ReLU(), Dense(512), ReLU(), Dense(num_classes))


def _transformer_block(size: int, heads: int) -> tuple[Layer, ...]:
    return (
        Residual((LayerNorm(), CausalAttention(heads))),
        Residual((LayerNorm(), Dense(4 * size), GELU(), Dense(size))),
    )
