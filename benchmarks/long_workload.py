"""A user's workload whose runs take long: a small net with ballast; for budgets.py.

Each training pass does LONG_PASSES times the work of a convolution on the same images beside its
own, and no other: learning is that of the small net, seconds are those of a large one, and both
come from real computing, shared caches and cores included.
"""

import os
from typing import TYPE_CHECKING

from raybench.workloads.base import Workload

if TYPE_CHECKING:
    import torch


class Long(Workload):
    """One convolution and two dense layers, and ballast."""

    name = "long"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> "torch.nn.Module":
        """Return the model."""
        import torch
        from torch import nn

        passes = int(os.environ["LONG_PASSES"])

        class Net(nn.Module):
            """The net; its ballast has no parameters that are trained or saved."""

            ballast: torch.Tensor

            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.Sequential(
                    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                    *(nn.Linear(32 * 14 * 14, 64), nn.ReLU(), nn.Linear(64, 10)),
                )
                self.register_buffer("ballast", torch.full((8, 1, 3, 3), 0.1), persistent=False)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                if self.training:
                    with torch.no_grad():
                        for _ in range(passes):
                            torch.nn.functional.conv2d(images, self.ballast, padding=1)
                logits: torch.Tensor = self.layers(images)
                return logits

        return Net()
