"""Batch normalisation over the samples of all workers. Mirrors tensorflow/batch_norm.py.

torch's own takes tensors of a GPU alone; this one is its on a GPU, and elsewhere the same sums by
two `all_reduce` a layer and pass: one forward, one backward.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raybench.core.errors import UserError

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's layer, on a CPU too. Every worker has to take part in each pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, C, ...), normalised over the samples of all workers in training."""
        if inputs.device.type == "cuda" or not self.training or not dist.is_initialized():
            return super().forward(inputs)
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        outputs, mean, variance, number = _Normalise.apply(inputs, self.weight, self.bias, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * number / (number - 1), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        return outputs  # type: ignore[no-any-return]


class WithActivation(SyncBatchNorm):
    """The same before the dropout and the activation that timm puts into its layers."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (N, C, ...), normalised, then dropped and activated."""
        outputs: Tensor = self.get_submodule("drop")(super().forward(inputs))
        activated: Tensor = self.get_submodule("act")(outputs)
        return activated


def synchronise(model: nn.Module) -> nn.Module:
    """Return the model with every batch normalisation over the samples of all workers.

    Parameters and their names stay. UserError for a layer of a kind of its own.
    """
    if isinstance(model, KINDS):
        return _synchronised(model)
    for name, child in model.named_children():
        setattr(model, name, synchronise(child))
    return model


def _synchronised(layer: Any) -> SyncBatchNorm:
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
    kind = WithActivation if has_activation else SyncBatchNorm
    new = kind(layer.num_features, layer.eps, layer.momentum)
    new.weight, new.bias = layer.weight, layer.bias
    new.running_mean, new.running_var = layer.running_mean, layer.running_var
    new.num_batches_tracked = layer.num_batches_tracked
    if has_activation:
        new.act, new.drop = layer.act, getattr(layer, "drop", nn.Identity())
    return new


class _Normalise(torch.autograd.Function):
    """Normalisation by the mean and variance of all workers' samples."""

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, channels = inputs.float(), inputs.shape[1]
        axes = [axis for axis in range(values.ndim) if axis != 1]
        own = torch.tensor([values.numel() / channels])
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
