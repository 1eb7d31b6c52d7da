"""Networks that both frameworks build from the same description: ResNet-18, -34, -50, MobileNetV2.

They equal the networks of torchvision in every weight, in padding and strides, and in epsilon and
momentum of batch normalization. The networks of the same names in keras.applications
(`keras:ResNet50`, `keras:MobileNetV2`) are different: ResNet50 has biases, and strides in different
convolutions; MobileNetV2 has a different padding and epsilon.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["relu", "relu6"]
Arrays = dict[str, npt.NDArray[np.float32]]  # weights by torchvision's names, in torch's layout

EPSILON = 1e-5  # of batch normalization
MOMENTUM = 0.1
"""Weight of the current batch in the running statistics of batch normalization, as defined by
torch. The running variance is unbiased."""
MEAN = (0.485, 0.456, 0.406)
"""Channel means of ImageNet, for pixels from 0 to 1. Models with torchvision's weights expect the
input (pixels - MEAN) / STD."""
STD = (0.229, 0.224, 0.225)
"""Standard deviations of the channels of ImageNet, for pixels from 0 to 1."""


@dataclass(frozen=True)
class ConvSpec:
    """A convolution without bias, followed by batch normalization.

    The convolution is padded by `kernel // 2` on every side.
    """

    name: str
    """Prefix of the weights of the convolution in torchvision."""
    norm: str
    """Prefix of the weights of the batch normalization in torchvision."""
    inputs: int
    """Number of input channels."""
    filters: int
    """Number of output channels."""
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False
    activation: Activation | None = None


@dataclass(frozen=True)
class Block:
    """A sequence of convolutions, usually with a residual connection around them."""

    convs: tuple[ConvSpec, ...]
    is_residual: bool = True
    """Whether the input of the block is added to the output of the convolutions."""
    shortcut: ConvSpec | None = None
    """Convolution that is applied to the input before the input is added to the output; None to add
    the unchanged input."""
    activation: Activation | None = None
    """Activation that follows the addition."""


@dataclass(frozen=True)
class Network:
    """A network that consists of a stem, blocks, average pooling and a head."""

    stem: ConvSpec
    """First convolution."""
    max_pool: bool
    """Whether 3 x 3 max pooling with stride 2 follows the stem."""
    blocks: tuple[Block, ...]
    last: ConvSpec | None
    """Convolution after the blocks, if any."""
    dropout: float
    """Dropout rate before the head."""
    head: str
    """Prefix of the head's weights in torchvision."""
    head_init: Literal["uniform", "normal"]
    """Initialization of the head: `uniform` within ±1 / sqrt(fan in), or `normal` with standard
    deviation 0.01 and bias 0."""

    @property
    def features(self) -> int:
        """Number of inputs of the head."""
        return (self.last or self.blocks[-1].convs[-1]).filters

    def convs(self) -> Iterator[ConvSpec]:
        """Yield all convolutions, in the order of torchvision."""
        yield self.stem
        for block in self.blocks:
            yield from block.convs
            if block.shortcut:
                yield block.shortcut
        if self.last:
            yield self.last


def initial_arrays(network: Network, num_outputs: int, seed: int) -> Arrays:
    """Return the initial weights for both frameworks, with the names and distributions of
    torchvision.

    Weights of convolutions have the normal distribution of He et al. (2015), scaled by the fan out.
    In batch normalization, scale and running variance are 1, bias and running mean are 0.

    Args:
        network: The network.
        num_outputs: Number of outputs of the head.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    norm = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    arrays: Arrays = {}
    for conv in network.convs():
        std = np.float32(math.sqrt(2 / (conv.filters * conv.kernel**2)))
        inputs = 1 if conv.depthwise else conv.inputs
        conv_shape = (conv.filters, inputs, conv.kernel, conv.kernel)
        arrays[f"{conv.name}.weight"] = rng.standard_normal(conv_shape, np.float32) * std
        for name, value in norm.items():
            arrays[f"{conv.norm}.{name}"] = np.full(conv.filters, value, np.float32)
    shape = (num_outputs, network.features)
    if network.head_init == "normal":
        weight = rng.standard_normal(shape, np.float32) * np.float32(0.01)
        bias = np.zeros(num_outputs, np.float32)
    else:
        bound = 1 / math.sqrt(network.features)
        weight = rng.uniform(-bound, bound, shape).astype(np.float32)
        bias = rng.uniform(-bound, bound, num_outputs).astype(np.float32)
    return arrays | {f"{network.head}.weight": weight, f"{network.head}.bias": bias}


def _resnet(depths: tuple[int, ...], *, bottleneck: bool) -> Network:
    stem = ConvSpec("conv1", "bn1", 3, 64, 7, 2, activation="relu")
    blocks: list[Block] = []
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        outputs = width * (4 if bottleneck else 1)
        for position in range(depth):
            stride = 2 if stage and not position else 1
            prefix = f"layer{stage + 1}.{position}."
            make = _bottleneck if bottleneck else _basic
            shortcut = None
            if stride != 1 or channels != outputs:
                names = f"{prefix}downsample.0", f"{prefix}downsample.1"
                shortcut = ConvSpec(*names, channels, outputs, 1, stride)
            convs = make(prefix, channels, width, stride)
            blocks.append(Block(convs, shortcut=shortcut, activation="relu"))
            channels = outputs
    return Network(stem, True, tuple(blocks), None, 0.0, "fc", "uniform")


def _basic(prefix: str, inputs: int, width: int, stride: int) -> tuple[ConvSpec, ...]:
    return (
        ConvSpec(f"{prefix}conv1", f"{prefix}bn1", inputs, width, 3, stride, activation="relu"),
        ConvSpec(f"{prefix}conv2", f"{prefix}bn2", width, width, 3),
    )


def _bottleneck(prefix: str, inputs: int, width: int, stride: int) -> tuple[ConvSpec, ...]:
    return (
        ConvSpec(f"{prefix}conv1", f"{prefix}bn1", inputs, width, activation="relu"),
        ConvSpec(f"{prefix}conv2", f"{prefix}bn2", width, width, 3, stride, activation="relu"),
        ConvSpec(f"{prefix}conv3", f"{prefix}bn3", width, 4 * width),
    )


def _mobilenet_v2() -> Network:
    def conv(prefix: str, inputs: int, filters: int, kernel: int = 1, stride: int = 1) -> ConvSpec:
        names = f"{prefix}.0", f"{prefix}.1"
        depthwise = inputs == filters and kernel > 1
        return ConvSpec(*names, inputs, filters, kernel, stride, depthwise, "relu6")

    stages = (  # expansion, channels, blocks, stride (Sandler et al. 2018, table 2)
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    blocks: list[Block] = []
    channels = 32
    for expansion, outputs, number, first_stride in stages:
        for position in range(number):
            stride = 1 if position else first_stride
            prefix = f"features.{len(blocks) + 1}.conv"
            hidden = channels * expansion
            convs = [conv(f"{prefix}.0", channels, hidden)] if expansion > 1 else []
            convs.append(conv(f"{prefix}.{len(convs)}", hidden, hidden, 3, stride))
            names = f"{prefix}.{len(convs)}", f"{prefix}.{len(convs) + 1}"
            convs.append(ConvSpec(*names, hidden, outputs))
            blocks.append(Block(tuple(convs), stride == 1 and channels == outputs))
            channels = outputs
    return Network(
        stem=conv("features.0", 3, 32, 3, 2),
        max_pool=False,
        blocks=tuple(blocks),
        last=conv(f"features.{len(blocks) + 1}", channels, 1280),
        dropout=0.2,
        head="classifier.1",
        head_init="normal",
    )


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": lambda: _resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": _mobilenet_v2,
}
"""Functions that return the description of each network, by torchvision's name."""
