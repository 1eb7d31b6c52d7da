"""A workload's layers as torch modules, in the forms that cost least.

| layer              | form                                          | result                     |
|--------------------|-----------------------------------------------|----------------------------|
| ReLU               | written over its input, which nobody else     | the same bits              |
|                    | reads                                         |                            |
| ReLU, then MaxPool | the other way round: a quarter of the values  | the same bits              |
| DepthwiseConv      | its filters one after another, where torch    | the same sums in another   |
|                    | is slow with several a channel (on a CPU)     | order                      |

No form changes the model: parameters, their names and their order are those of torch's own
modules.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from raybench.workloads import layers as description
from raybench.workloads.layers import Layer, Shape, output_shapes


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[nn.Module]:
    """Return one module a layer, for images (N, C, H, W)."""
    befores = [input_shape, *output_shapes(layers, input_shape)]
    modules = [_module(layer, before) for layer, before in zip(layers, befores, strict=False)]
    for index in range(1, len(modules)):
        module, before = modules[index], modules[index - 1]
        # The maximum of what is above 0 is what is above 0 of the maximum, gradients included:
        # of equal values both orders take the first, and where all are 0 nothing flows.
        if isinstance(module, nn.MaxPool2d) and isinstance(before, nn.ReLU):
            modules[index - 1 : index + 1] = [module, before]
    for before, module in itertools.pairwise(modules):
        if isinstance(module, nn.ReLU):
            # Theirs alone: nobody reads it after, neither forward nor on the way back.
            module.inplace = isinstance(before, nn.Conv2d | nn.MaxPool2d | nn.Linear)
    return modules


class DepthwiseConv2d(nn.Conv2d):
    """A convolution of `multiplier` filters for every input channel.

    On a CPU as `multiplier` convolutions of one filter a channel: oneDNN has kernels of its own
    for these alone, and takes two to four times as long for groups of several filters.
    """

    def __init__(self, channels: int, multiplier: int, kernel: int, padding: str) -> None:
        super().__init__(channels, channels * multiplier, kernel, padding=padding, groups=channels)
        self._multiplier = multiplier

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (N, channels * multiplier, H, W), the filters of a channel side by side."""
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
        side_by_side = torch.stack([one.permute(0, 2, 3, 1) for one in outputs], dim=4)
        return side_by_side.flatten(3, 4).permute(0, 3, 1, 2)


def _module(layer: Layer, before: Shape) -> nn.Module:
    channels = before[-1]
    match layer:
        case description.Conv(filters, kernel, padding):
            return nn.Conv2d(channels, filters, kernel, padding=padding)
        case description.DepthwiseConv(multiplier, kernel, padding):
            return DepthwiseConv2d(channels, multiplier, kernel, padding)
        case description.MaxPool(size):
            return nn.MaxPool2d(size)
        case description.ReLU():
            return nn.ReLU()
        case description.Flatten():
            return nn.Flatten()
        case description.Dense(units):
            return nn.Linear(before[0], units)
        case description.Dropout(rate):
            return nn.Dropout(rate)
