"""The workloads that come with raybench, by name.

There are two large ones because the source of the names contradicts itself (data-parallel
PyTorch against TensorFlow on MNIST, 2020): it publishes 2,636,554 parameters, but the model it
timed has 4,104,202. The smaller number counts every convolution as if it had one input channel.
`mnist_large` makes that reading real with depthwise convolutions: the published count, the
same activations. `mnist_large_dense` is the network the published PyTorch timings came from.
"""

from collections.abc import Callable
from dataclasses import dataclass

from raybench.workloads.base import LayerWorkload
from raybench.workloads.layers import (
    Conv,
    Dense,
    DepthwiseConv,
    Dropout,
    Flatten,
    Layer,
    MaxPool,
    Padding,
    ReLU,
    Shape,
)

SMALLEST_VALID_CNN7 = 94  # pixels; below it, five unpadded convolutions leave nothing to pool


@dataclass(frozen=True)
class ShippedWorkload(LayerWorkload):
    """A layer workload of a given input shape and number of classes."""

    name: str
    input_shape: Shape
    num_classes: int
    layers: tuple[Layer, ...]


def mnist_small(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """One convolution, 402,442 parameters at 28x28x1: the model for a CPU."""
    layers = (*_conv_block(32), Flatten(), Dense(64), ReLU(), Dense(num_classes))
    return ShippedWorkload("mnist_small", input_shape, num_classes, layers)


def mnist_large(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Three convolutions, two of them depthwise, 2,636,554 parameters at 28x28x1."""
    layers = (
        *_conv_block(128),
        *(DepthwiseConv(multiplier=2), ReLU(), MaxPool()),
        *(DepthwiseConv(multiplier=2), ReLU(), MaxPool()),
        *_large_head(num_classes),
    )
    return ShippedWorkload("mnist_large", input_shape, num_classes, layers)


def mnist_large_dense(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Three ordinary convolutions, 4,104,202 parameters at 28x28x1."""
    layers = (
        *(*_conv_block(128), *_conv_block(256), *_conv_block(512)),
        *_large_head(num_classes),
    )
    return ShippedWorkload("mnist_large_dense", input_shape, num_classes, layers)


def cnn7(input_shape: Shape = (299, 299, 3), num_classes: int = 10) -> ShippedWorkload:
    """Five convolutions and two dense layers, 910,922 parameters at 299x299x3 (W&B, 2019).

    Unpadded as in the source from 94 pixels up (124,490 parameters there); smaller images are
    padded, from 32 pixels (124,490 there too).
    """
    padding: Padding = "valid" if min(input_shape[:2]) >= SMALLEST_VALID_CNN7 else "same"
    blocks = (_conv_block(filters, padding) for filters in (16, 32, 32, 64, 128))
    layers = (
        *(layer for block in blocks for layer in block),
        *(Flatten(), Dense(128), ReLU(), Dropout(0.3), Dense(num_classes)),
    )
    return ShippedWorkload("cnn7", input_shape, num_classes, layers)


def deep_mlp(input_shape: Shape = (28, 28, 1), num_classes: int = 10) -> ShippedWorkload:
    """Eight dense layers, 64 wide, without normalisation: where layer-wise rates matter."""
    hidden = (layer for _ in range(7) for layer in (Dense(64), ReLU()))
    layers = (Flatten(), *hidden, Dense(num_classes))
    return ShippedWorkload("deep_mlp", input_shape, num_classes, layers)


def cifar_cnn(input_shape: Shape = (32, 32, 3), num_classes: int = 10) -> ShippedWorkload:
    """Four convolutions and two dense layers, 1,250,858 parameters at 32x32x3 (Keras's example).

    Every second convolution is unpadded.
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


WORKLOADS: dict[str, Callable[..., ShippedWorkload]] = {
    "mnist_small": mnist_small,
    "mnist_large": mnist_large,
    "mnist_large_dense": mnist_large_dense,
    "cnn7": cnn7,
    "cifar_cnn": cifar_cnn,
    "deep_mlp": deep_mlp,
}
"""Each takes the dataset's `input_shape` and `num_classes`, both optional."""


def _conv_block(filters: int, padding: Padding = "same") -> tuple[Layer, ...]:
    return (Conv(filters, padding=padding), ReLU(), MaxPool())


def _large_head(num_classes: int) -> tuple[Layer, ...]:
    return (Flatten(), Dense(512), ReLU(), Dense(512), ReLU(), Dense(num_classes))
