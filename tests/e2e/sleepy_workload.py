"""A workload that is slow on rank 1 alone, whatever it computes."""

import time

import torch
from torch import nn

from raybench.models.base import Workload

SLEEP_S = 0.02
"""In each forward pass of training."""


class Sleepy(Workload):
    """One dense layer."""

    name, input_shape, num_classes = "sleepy", (28, 28, 1), 10

    def build_torch(self) -> nn.Module:
        return nn.Sequential(Nap(), nn.Flatten(), nn.Linear(784, 10))


class Nap(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        if self.training and not is_first:
            time.sleep(SLEEP_S)
        return inputs
