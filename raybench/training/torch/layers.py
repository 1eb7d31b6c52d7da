"""Layers of a workload as torch modules in their fastest form, and batch normalization over all
workers. Mirrors tensorflow/layers.py.

| layer              | fast form                                     | result                     |
|--------------------|-----------------------------------------------|----------------------------|
| ReLU               | in place, where its input is not used again   | the same bits              |
| ReLU, then MaxPool | swapped, so that ReLU gets fewer values       | the same bits              |
| DepthwiseConv      | on a CPU, several convolutions with one       | the same sums in another   |
|                    | filter per channel instead of one with many   | order                      |

Parameters, their names and their order are those of torch's own modules.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from raybench.models import layers as description
from raybench.models.layers import Layer, Shape, output_shapes

_KEEP_NO_OUTPUT = (nn.Conv2d, nn.MaxPool2d, nn.Linear, nn.GroupNorm, nn.LayerNorm)
"""Modules whose backward pass does not read their outputs, so that a ReLU after them may work in
place."""
NORM_EPSILON = 1e-5
"""Epsilon that normalization layers add to the variance."""


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[nn.Module]:
    """Build a module for each layer.

    Args:
        layers: Descriptions of the layers.
        input_shape: Shape of an input without the batch axis; for images (H, W, C), although the
            modules take images of shape (N, C, H, W).
    """
    befores = [input_shape, *output_shapes(layers, input_shape)]
    pairs = zip(layers, befores, strict=False)
    modules = [_MODULES[type(layer)](layer, before) for layer, before in pairs]
    for index in range(1, len(modules)):
        module, before = modules[index], modules[index - 1]
        # Both orders give the same outputs and gradients: among equal values, the first one counts
        # as the maximum, and where all values are 0, ReLU passes no gradient.
        if isinstance(module, nn.MaxPool2d) and isinstance(before, nn.ReLU):
            modules[index - 1 : index + 1] = [module, before]
    for before, module in itertools.pairwise(modules):
        if isinstance(module, nn.ReLU):
            # ReLU's input is not read again, neither forward nor backward.
            module.inplace = isinstance(before, _KEEP_NO_OUTPUT)
    return modules


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution with `multiplier` filters per input channel.

    On a CPU, it runs as `multiplier` convolutions with one filter per channel, since oneDNN has
    fast kernels only for these. One convolution with several filters per channel would take two to
    four times as long.
    """

    def __init__(self, channels: int, multiplier: int, kernel: int, padding: str) -> None:
        super().__init__(channels, channels * multiplier, kernel, padding=padding, groups=channels)
        self._multiplier = multiplier

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (N, channels * multiplier, H, W), in which the outputs of a
        channel's filters are adjacent."""
        if self._multiplier == 1 or inputs.device.type != "cpu":
            return super().forward(inputs)
        outputs = [
            functional.conv2d(
                inputs,
                self.weight[position :: self._multiplier],
                None if self.bias is None else self.bias[position :: self._multiplier],
                padding=self.padding,
                groups=self.groups,
            )
            for position in range(self._multiplier)
        ]
        if not outputs[0].is_contiguous(memory_format=torch.channels_last):
            return torch.stack(outputs, dim=2).flatten(1, 2)
        side_by_side = torch.stack([output.permute(0, 2, 3, 1) for output in outputs], dim=4)
        return side_by_side.flatten(3, 4).permute(0, 3, 1, 2)


class TorchPositions(nn.Module):
    """Adds a learned vector to each position of a sequence."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (N, tokens, size) plus the vectors, in the same shape."""
        return inputs + self.weight


class TorchGlobalAveragePool(nn.Module):
    """Mean over the pixels of an image or the tokens of a sequence."""

    def __init__(self, *, is_image: bool) -> None:
        super().__init__()
        self._axes = (2, 3) if is_image else (1,)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (N, channels) for inputs (N, channels, H, W) or (N, tokens, channels)."""
        return inputs.mean(self._axes)


class TorchCausalAttention(nn.Module):
    """Causal self-attention: each token attends to itself and to earlier tokens."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.joined = nn.Linear(size, 3 * size)
        self.last = nn.Linear(size, size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs in the shape of the inputs, (N, tokens, size)."""
        count, tokens, size = inputs.shape
        joined = self.joined(inputs).view(count, tokens, 3, self._heads, size // self._heads)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        means = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        outputs: torch.Tensor = self.last(means.transpose(1, 2).reshape(count, tokens, size))
        return outputs


class TorchResidual(nn.Module):
    """Residual connection: adds the input of some layers to their output."""

    def __init__(self, layers: Sequence[Layer], before: Shape) -> None:
        super().__init__()
        self.layers = nn.Sequential(*build_layers(layers, before))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the sum, in the shape of the inputs."""
        outputs: torch.Tensor = self.layers(inputs)
        return inputs + outputs


_MODULES: dict[type[Any], Callable[[Any, Shape], nn.Module]] = {
    description.Conv: lambda layer, before: nn.Conv2d(
        before[-1], layer.filters, layer.kernel, padding=layer.padding
    ),
    description.DepthwiseConv: lambda layer, before: DepthwiseConv2d(
        before[-1], layer.multiplier, layer.kernel, layer.padding
    ),
    description.MaxPool: lambda layer, before: nn.MaxPool2d(layer.size),
    description.ReLU: lambda layer, before: nn.ReLU(),
    description.Flatten: lambda layer, before: nn.Flatten(),
    description.Dense: lambda layer, before: nn.Linear(before[-1], layer.units),
    description.Dropout: lambda layer, before: nn.Dropout(layer.rate),
    description.GELU: lambda layer, before: nn.GELU(),
    description.GroupNorm: lambda layer, before: nn.GroupNorm(
        layer.groups, before[-1], NORM_EPSILON
    ),
    description.LayerNorm: lambda layer, before: nn.LayerNorm(before[-1], NORM_EPSILON),
    description.GlobalAveragePool: lambda layer, before: TorchGlobalAveragePool(
        is_image=len(before) == 3
    ),
    description.Embedding: lambda layer, before: nn.Embedding(layer.vocabulary, layer.size),
    description.MeanEmbedding: lambda layer, before: nn.EmbeddingBag(
        layer.vocabulary, layer.size, mode="mean", padding_idx=0
    ),
    description.Positions: lambda layer, before: TorchPositions(*before),
    description.CausalAttention: lambda layer, before: TorchCausalAttention(
        before[-1], layer.heads
    ),
    description.Residual: lambda layer, before: TorchResidual(layer.layers, before),
}
"""Function that builds the torch module of a layer for an input shape, by class of the layer."""


STATISTICS = ("running_mean", "running_var")
"""Names of the buffers with the running statistics of batch normalization."""


@torch.no_grad()
def average_statistics(model: nn.Module) -> None:
    """Make the buffers of a model equal on all ranks. Collective: all ranks must call it.

    The running means and variances of batch normalization are averaged over the ranks; other
    buffers, such as a codebook or a queue, are copied from rank 0. Training does not read the
    running statistics, so this is needed only before the model is evaluated or saved. DDP would
    broadcast all buffers from rank 0 at every step.
    """
    buffers = dict(model.named_buffers())
    for name, other in buffers.items():
        if not name.endswith((*STATISTICS, "num_batches_tracked")):
            # Sent as bytes, because Gloo does not support all types.
            sent = other.contiguous().reshape(-1).view(torch.uint8)
            dist.broadcast(sent, 0)
            other.copy_(sent.view(other.dtype).view_as(other))
    statistics = [buffer for name, buffer in buffers.items() if name.endswith(STATISTICS)]
    if not statistics:
        return
    together = torch.cat([buffer.flatten() for buffer in statistics])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    means = torch.split_with_sizes(together, [buffer.numel() for buffer in statistics])
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean.view_as(buffer))


def synchronize(model: nn.Module) -> nn.Module:
    """Return the model with every batch normalization layer converted to SyncBatchNorm, which needs
    GPUs.

    Parameters keep their names. Layers of timm that include an activation still include it.
    """
    timm = sys.modules.get("timm.layers")  # imported if a model uses it
    convert: Any = (timm or nn.SyncBatchNorm).convert_sync_batchnorm
    return convert(model)  # type: ignore[no-any-return]
