"""Batch normalisation over the samples of all workers. Mirrors tensorflow/batch_norm.py.

torch's own takes tensors of a GPU alone. Ours has the same sums by two `all_reduce` a layer and
pass: one forward, one backward.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from raybench.core.errors import UserError

STATISTICS = ("running_mean", "running_var")
KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def average_statistics(model: nn.Module) -> None:
    """Give every rank the mean over ranks of the running means and variances.

    Training does not read them: each worker keeps those of its own samples until the model is
    evaluated and saved. Other buffers that forward changes are each worker's own; rank 0's are
    saved.
    """
    found = [one for name, one in model.named_buffers() if name.endswith(STATISTICS)]
    if not found:
        return
    together = torch.cat([one.flatten() for one in found])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    means = torch.split_with_sizes(together, [one.numel() for one in found])
    for one, mean in zip(found, means, strict=True):
        one.copy_(mean.view_as(one))


class SyncBatchNorm(nn.Module):
    """In place of a layer of torch's, with its parameters and running statistics.

    Every worker has to take part in each pass.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.epsilon, self.momentum = layer.eps, layer.momentum
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, C, ...), normalised over the samples of all workers in training."""
        running = self.get_buffer("running_mean"), self.get_buffer("running_var")
        if not self.training:
            given = *running, self.weight, self.bias, False, 0.0, self.epsilon
            return functional.batch_norm(inputs, *given)
        outputs, mean, variance, number = _Normalise.apply(
            inputs, self.weight, self.bias, self.epsilon
        )
        with torch.no_grad():
            running[0].lerp_(mean, self.momentum)
            running[1].lerp_(variance * number / (number - 1), self.momentum)
            self.get_buffer("num_batches_tracked").add_(1)
        return outputs  # type: ignore[no-any-return]


class WithActivation(SyncBatchNorm):
    """The same before the dropout and the activation that timm puts into its layers."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.drop, self.act = layer.drop, layer.act

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, C, ...), normalised, then dropped and activated."""
        outputs: Tensor = self.act(self.drop(super().forward(inputs)))
        return outputs


def synchronise(model: nn.Module, device: str) -> nn.Module:
    """Return the model with every batch normalisation over the samples of all workers.

    Parameters and their names stay. On `cuda` by torch's own layer, where it has one. UserError for
    a layer of a kind of its own.
    """
    if isinstance(model, KINDS):
        return _synchronised(model, device)
    for name, child in model.named_children():
        setattr(model, name, synchronise(child, device))
    return model


def _synchronised(layer: Any, device: str) -> nn.Module:
    has_activation = isinstance(getattr(layer, "act", None), nn.Module)
    if type(layer) not in KINDS and not has_activation:
        raise UserError(
            f"sync_batch_norm: the model's {type(layer).__name__} is a batch normalisation of its "
            "own, which cannot be synchronised; set sync_batch_norm: false."
        )
    if layer.momentum is None or layer.running_mean is None or layer.weight is None:
        raise UserError(
            "sync_batch_norm: is of layers with weights and running statistics; the model has "
            f"{layer}; set sync_batch_norm: false."
        )
    if has_activation:
        return WithActivation(layer)
    if device == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]
        return converted
    return SyncBatchNorm(layer)


class _Normalise(torch.autograd.Function):
    """Normalisation by the mean and variance of all workers' samples."""

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, channels = inputs.float(), inputs.shape[1]
        axes = [axis for axis in range(values.ndim) if axis != 1]
        own = values.new_tensor([values.numel() / channels])
        sums = torch.cat([values.sum(axes), (values * values).sum(axes), own])
        dist.all_reduce(sums)
        number = sums[-1]
        mean = sums[:channels] / number
        variance = (sums[channels:-1] / number - mean * mean).clamp_(min=0)
        factor = torch.rsqrt(variance + epsilon)
        normalised = (values - _wide(mean, values)) * _wide(factor, values)
        context.save_for_backward(normalised, weight, factor, number)
        outputs = normalised * _wide(weight, values) + _wide(bias, values)
        context.mark_non_differentiable(mean, variance, number)
        return outputs.to(inputs.dtype), mean, variance, number

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalised, weight, factor, number = context.saved_tensors
        outer = gradients[0].float()
        axes = [axis for axis in range(outer.ndim) if axis != 1]
        of_bias, of_weight = outer.sum(axes), (outer * normalised).sum(axes)
        sums = torch.cat([of_bias, of_weight])  # the parameters' own stay each worker's: DDP adds
        dist.all_reduce(sums)
        mean, along = (sums / number).chunk(2)
        inner = outer - _wide(mean, outer) - normalised * _wide(along, outer)
        of_inputs = inner * _wide(weight * factor, outer)
        return of_inputs.to(gradients[0].dtype), of_weight, of_bias, None


def _wide(of_channels: Tensor, like: Tensor) -> Tensor:
    """Return (C,) as (1, C, 1, ...)."""
    return of_channels.reshape(1, -1, *[1] * (like.ndim - 2))
