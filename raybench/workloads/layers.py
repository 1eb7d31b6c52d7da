"""One description of a network for both frameworks: the layers that it is made of."""

from dataclasses import dataclass
from typing import Literal

Padding = Literal["same", "valid"]


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
    """Fully connected, with bias; of (tokens, features) the same for each token."""

    units: int


@dataclass(frozen=True)
class Dropout:
    """Sets a share `rate` of the values to zero in training."""

    rate: float


@dataclass(frozen=True)
class GELU:
    """x times the share of a standard normal distribution below x."""


@dataclass(frozen=True)
class GroupNorm:
    """Each image's channels in `groups`, each group to mean 0 and variance 1, then a weight and a
    bias a channel. Unlike batch normalisation it does not depend on the other samples."""

    groups: int


@dataclass(frozen=True)
class LayerNorm:
    """The features of a vector, or of each token, to mean 0 and variance 1, then a weight and a
    bias a feature."""


@dataclass(frozen=True)
class GlobalAveragePool:
    """An image into the means of its channels; (tokens, features) into the means of its tokens."""


@dataclass(frozen=True)
class Embedding:
    """Token ids into a learnt vector each."""

    vocabulary: int
    size: int


@dataclass(frozen=True)
class MeanEmbedding:
    """Token ids into the mean of their learnt vectors; id 0 is padding and does not count."""

    vocabulary: int
    size: int


@dataclass(frozen=True)
class Positions:
    """Adds a learnt vector for each place to the tokens' vectors."""


@dataclass(frozen=True)
class CausalAttention:
    """Each token looks at itself and the tokens before it, with `heads` weighted means of them."""

    heads: int


@dataclass(frozen=True)
class Residual:
    """What comes in plus what the layers make of it, which is of the same shape."""

    layers: "tuple[Layer, ...]"


Layer = (
    Conv
    | DepthwiseConv
    | MaxPool
    | ReLU
    | Flatten
    | Dense
    | Dropout
    | GELU
    | GroupNorm
    | LayerNorm
    | GlobalAveragePool
    | Embedding
    | MeanEmbedding
    | Positions
    | CausalAttention
    | Residual
)
