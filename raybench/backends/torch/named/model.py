"""What every model by name is wrapped in. Mirrors tensorflow's."""

from collections.abc import Callable

import torch
from torch import nn

PREFIX = "net."
"""Of the names of a library's weights in our models."""


class NamedModel(nn.Module):
    """A library's model as one of ours: pixels in 0..1 in, float32 out.

    Pixels are normalised as the library's trained weights expect them, with or without such
    weights; images of one channel are repeated to the three that the network takes.
    """

    def __init__(
        self,
        net: nn.Module,
        head: tuple[str, ...],
        *,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
    ) -> None:
        super().__init__()
        self.net = net
        self.head = tuple(f"{PREFIX}{name}" for name in head)
        """Names of the parameters that are the head's."""
        self._is_normalised, self._channels = bool(mean), len(mean)
        if mean:
            spread = torch.tensor(std).reshape(1, -1, 1, 1)
            shift = -torch.tensor(mean).reshape(1, -1, 1, 1) / spread
            self.register_buffer("_scale", 1 / spread, persistent=False)
            self.register_buffer("_shift", shift, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (N, outputs) float32."""
        if self._is_normalised:
            if inputs.shape[1] != self._channels:
                inputs = inputs.expand(-1, self._channels, -1, -1)
            inputs = torch.addcmul(self._shift, inputs, self._scale)  # type: ignore[arg-type]
        outputs: torch.Tensor = self.net(inputs)
        return outputs.float()


def differing(build: Callable[[int], nn.Module], num_outputs: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of outputs: the head.

    `build` is called on the meta device, where nothing is drawn.
    """
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in build(num_outputs).named_parameters()}
        others = {name: one.shape for name, one in build(num_outputs + 1).named_parameters()}
    return tuple(name for name, shape in shapes.items() if others.get(name) != shape)
