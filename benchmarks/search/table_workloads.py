"""User-defined workloads for recorded tables: a residual network, a throttled one, two widths."""

import time
from typing import TYPE_CHECKING

from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import (
    Conv,
    Dense,
    Flatten,
    GlobalAveragePool,
    GroupNorm,
    Layer,
    MaxPool,
    ReLU,
    Residual,
)
from raybench.models.shipped import text_bag

if TYPE_CHECKING:
    import torch

WAIT_S = 0.002
"""Seconds that the throttled network waits per sample."""
_NORMED: tuple[Layer, ...] = (GroupNorm(groups=4), ReLU())


def _block(filters: int) -> tuple[Layer, ...]:
    return (Conv(filters), *_NORMED)


class TableResnet(LayerWorkload):
    """Five convolutions, two of them residual, that train on one core in seconds."""

    name = "table_resnet"
    input_shape = (12, 12, 3)
    num_classes = 10
    layers = (
        # Pooled before normalization, which saves three quarters of its work.
        *(Conv(8), MaxPool(), *_NORMED, *_block(16), Residual((*_block(16), *_block(16)))),
        *(MaxPool(), *_block(32), GlobalAveragePool(), Dense(10)),
    )


class ThrottledText(Workload):
    """`text_bag` with a wait for every training sample, in place of a large network.

    Waiting needs no core, so several workers on a small machine take the time that they would take
    with a core each.
    """

    name = "throttled_text"
    input_shape = (64,)
    num_classes = 8

    def build_torch(self) -> "torch.nn.Module":
        """Return the network with a hook that sleeps before each training step."""
        from raybench.training.torch.model import build_model

        model = build_model(text_bag(self.input_shape, self.num_classes, 2000), seed=0)

        def wait(module: "torch.nn.Module", inputs: "tuple[torch.Tensor, ...]") -> None:
            if module.training:
                time.sleep(WAIT_S * len(inputs[0]))

        model.register_forward_pre_hook(wait)
        return model


class Widths(LayerWorkload):
    """A perceptron of two hidden layers, to be tuned at one width and trained at another."""

    name = "widths"
    input_shape = (28, 28, 1)
    num_classes = 10

    def __init__(self, width: int = 32) -> None:
        hidden = (Dense(width), ReLU())
        self.layers = (Flatten(), *hidden, *hidden, Dense(10))


class ConvWidths(LayerWorkload):
    """Two convolutions and a dense layer, to be tuned at one width and trained at another."""

    name = "conv_widths"
    input_shape = (14, 14, 1)
    num_classes = 10

    def __init__(self, width: int = 8) -> None:
        self.layers = (
            *(Conv(width), ReLU(), MaxPool(), Conv(2 * width), ReLU(), MaxPool(), Flatten()),
            *(Dense(4 * width), ReLU(), Dense(10)),
        )
