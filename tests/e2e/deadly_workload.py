"""A workload whose workers die by SIGKILL, once in set-up and once in an evaluation.

Each death creates a file in DEATHS_FOLDER, so that only one process dies in each phase.
"""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.models.base import Workload

if TYPE_CHECKING:
    import torch


def die_once(phase: str) -> None:
    """Kill this process if no other process has died in this phase."""
    try:
        (Path(os.environ["DEATHS_FOLDER"]) / phase).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Workload):
    """One dense layer."""

    name = "deadly"
    input_shape = (8, 8, 1)
    num_classes = 10

    def build_torch(self) -> "torch.nn.Module":
        import torch

        die_once("setup")

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.dense = torch.nn.Linear(64, 10)
                self.evaluated = 0

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                self.evaluated += not self.training
                if self.evaluated > 2:  # the check of the model evaluates twice
                    die_once("eval")
                return self.dense(images.flatten(1))

        return Net()
