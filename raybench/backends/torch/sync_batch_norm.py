"""Batch normalisation over the samples of all workers. Mirrors tensorflow/batch_norm.py."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raybench.core.errors import UserError

STATISTICS = ("running_mean", "running_var")
KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def average_statistics(model: nn.Module) -> None:
    """Give every rank the mean over ranks of the running means and variances, and rank 0's of other
    buffers.

    Training does not read the means: each worker keeps those of its own samples until the model is
    evaluated and saved. Of the others (a codebook, a queue) DDP would send rank 0's at each step.
    """
    buffers = dict(model.named_buffers())
    for name, other in buffers.items():
        if not name.endswith((*STATISTICS, "num_batches_tracked")):
            sent = other.reshape(-1).view(torch.uint8)  # of any type: gloo does not know them all
            dist.broadcast(sent, 0)
            other.copy_(sent.view(other.dtype).view_as(other))
    found = [one for name, one in buffers.items() if name.endswith(STATISTICS)]
    if not found:
        return
    together = torch.cat([one.flatten() for one in found])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    means = torch.split_with_sizes(together, [one.numel() for one in found])
    for one, mean in zip(found, means, strict=True):
        one.copy_(mean.view_as(one))


class WithActivation(nn.SyncBatchNorm):
    """torch's before the dropout and the activation that timm puts into its layers."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum)
        self.weight, self.bias = layer.weight, layer.bias
        for name in (*STATISTICS, "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.drop, self.act = layer.drop, layer.act

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, C, ...), normalised, then dropped and activated."""
        outputs: Tensor = self.act(self.drop(super().forward(inputs)))
        return outputs


def synchronise(model: nn.Module) -> nn.Module:
    """Return the model with every batch normalisation over the samples of all workers, on GPUs.

    Parameters and their names stay. UserError for a layer of a kind of its own.
    """
    if isinstance(model, KINDS):
        return _synchronised(model)
    for name, child in model.named_children():
        setattr(model, name, synchronise(child))
    return model


def _synchronised(layer: Any) -> nn.Module:
    if isinstance(getattr(layer, "act", None), nn.Module):
        return WithActivation(layer)
    if type(layer) not in KINDS:
        raise UserError(
            f"sync_batch_norm: the model's {type(layer).__name__} is a batch normalisation of its "
            "own, which cannot be synchronised; set sync_batch_norm: false."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]
    return converted
