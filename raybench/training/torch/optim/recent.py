"""Lion, Schedule-Free AdamW and Muon for torch. Mirrors tensorflow's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from raybench.training.optimizers import (
    COEFFICIENTS,
    DEFAULTS,
    NO_MATRICES,
    RMS,
    SMALLEST_NORM,
    newton_schulz,
)
from raybench.training.torch.internals import foreach, fused_adamw, fused_sgd
from raybench.training.torch.optim.kernels import Bucket, Optimizer, adamw_plain, add_all, like

LARGE = torch.finfo(torch.float32).max
"""What is multiplied by it and cut off at 1 is its sign; torch's own sign of NaN is 0, which would
hide that a run has diverged."""


class Lion(Optimizer):
    """Evolved sign momentum."""

    STATES = ("exp_avg",)
    SETTINGS = DEFAULTS["lion"]

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        lr, beta1, beta2 = group["lr"], group["beta1"], group["beta2"]
        params, grads, (exp_avgs,) = bucket.params, bucket.grads, bucket.states
        if bucket.path == "foreach":
            signs = foreach.lerp(exp_avgs, grads, 1 - beta1)
            foreach.mul_(signs, LARGE)
            foreach.clamp_max_(signs, 1.0)
            foreach.clamp_min_(signs, -1.0)
            if weight_decay:
                foreach.mul_(params, 1 - lr * weight_decay)
            foreach.add_(params, signs, alpha=-lr)
            foreach.lerp_(exp_avgs, grads, 1 - beta2)
            return
        scratch = self.scratch_for(bucket) if bucket.path == "fused" else None
        for param, grad, exp_avg in zip(params, grads, exp_avgs, strict=True):
            if scratch is None:
                between = exp_avg.lerp(grad, 1 - beta1)
                sign = torch.where(between.isnan(), between, between.sign())
                param.mul_(1 - lr * weight_decay).sub_(sign, alpha=lr)
            else:
                sign = torch.lerp(exp_avg, grad, 1 - beta1, out=like(scratch, param))
                sign.mul_(LARGE).clamp_(-1.0, 1.0)
                fused_sgd([param], [sign], [], lr=lr, momentum=0.0, weight_decay=weight_decay)
            exp_avg.lerp_(grad, 1 - beta2)


LARGEST_SHARE = 0.5
"""Of a new point in the average, up to which the fused form keeps its digits: a long way beyond the
first steps."""


class ScheduleFreeAdamW(Optimizer):
    """Schedule-Free AdamW."""

    STATES = ("ahead", "exp_avg_sq")
    SETTINGS = DEFAULTS["schedule_free_adamw"]
    GROUP_KEYS = {"largest_rate": 0.0, "rates_squared": 0.0}
    CUDA_PATH = "fused"

    def count(self, group: dict[str, Any]) -> None:
        """Take in the rate of a group's step, at its beginning."""
        group["largest_rate"] = max(group["largest_rate"], float(group["lr"]))
        group["rates_squared"] += group["largest_rate"] ** 2

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        settings = {name: group[name] for name in ("step", "lr", "beta1", "beta2", "epsilon")}
        total = group["rates_squared"]
        share = group["largest_rate"] ** 2 / total if total else 0.0
        kernel = bucket.path == "fused" and settings["lr"] > 0 and share <= LARGEST_SHARE
        update = _schedule_free_fused if kernel else _schedule_free_plain
        update(bucket, share=share, weight_decay=weight_decay, **settings)

    @torch.no_grad()
    def evaluation_weights(self) -> list[tuple[Tensor, Tensor]]:
        """Return every parameter that was updated with its x."""
        return [
            (param, param.sub(self.state[param]["ahead"], alpha=1 / group["beta1"] - 1))
            for group in self.param_groups
            for param in group["params"]
            if param in self.state
        ]


def _schedule_free_fused(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    share: float,
) -> None:
    params, grads, (aheads, exp_avg_sqs) = bucket.params, bucket.grads, bucket.states
    if weight_decay:
        add_all(aheads, params, -lr * beta1 * weight_decay)
    # y becomes the x of before; without momentum the kernel needs no buffer.
    back = 1 / beta1 - 1
    decay = lr * (1 - beta1) * weight_decay / back if back else 0.0
    fused_sgd(params, aheads, [], lr=back, momentum=0.0, weight_decay=decay)
    # With a beta1 of 0 the kernel's first moment is the gradient, which is written as it was read.
    size = lr * beta1 * (1 - share)
    fused_adamw(
        aheads,
        grads,
        grads,
        exp_avg_sqs,
        step=step,
        lr=size,
        beta1=0.0,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=share / size,
    )
    add_all(params, aheads, (back + share) / (1 - share))


def _schedule_free_plain(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    share: float,
) -> None:
    for param, grad, ahead, exp_avg_sq in zip(
        bucket.params, bucket.grads, *bucket.states, strict=True
    ):
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        update = exp_avg_sq.sqrt().div_(math.sqrt(1 - beta2**step)).add_(epsilon)
        update = grad.div(update).add_(param, alpha=weight_decay)
        param.add_(ahead, alpha=share).sub_(update, alpha=lr * (1 - beta1 * (1 - share)))
        ahead.sub_(update, alpha=lr * beta1).mul_(1 - share)


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def hidden_matrices(model: nn.Module | Iterable[tuple[str, nn.Parameter]]) -> set[nn.Parameter]:
    """Return the weights between a model's inputs and its head: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor embeddings, filters of one
    channel each, and what has one row or column once it is flattened to (outputs, others).
    """
    if isinstance(model, nn.Module):
        left_out = _not_matrices(model)
        named = list(model.named_parameters(remove_duplicate=False))
    else:
        left_out, named = set(), list(model)
    weights = [parameter for _, parameter in named if parameter.ndim > 1]
    left_out.update(weights[-1:])
    return {one for one in weights if one not in left_out and _is_matrix(one)}


def _not_matrices(model: nn.Module) -> set[nn.Parameter]:
    found: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            named = f"{type(module).__name__} {name}".lower()
            is_table = "bias" in name or any(word in named for word in NO_MATRICES)
            if is_table or _is_depthwise(module):
                found.add(parameter)
    return found


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, CONVOLUTIONS) and 1 < module.groups == module.in_channels


def _is_matrix(weight: nn.Parameter) -> bool:
    return weight.shape[0] > 1 and weight[0].numel() > 1


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return U S V^T with S near 1 in place of the matrix's own singular values; 0 of 0.

    Newton and Schulz's iteration with a polynomial of degree 5, in float32 or the matrix's wider
    type: the authors' bfloat16 would not be the same in two frameworks, nor fast on a CPU.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    if found.dtype != torch.float64:
        found = found.float()
    found = found / (torch.linalg.vector_norm(found) + SMALLEST_NORM)
    found = newton_schulz(found, lambda one: one @ one.T, _polynomial)
    done: Tensor = found.T if is_tall else found
    return done.to(matrix.dtype)


def _polynomial(products: Tensor) -> Tensor:
    first, third, fifth = COEFFICIENTS
    found = torch.addmm(products, products, products, beta=third, alpha=fifth)
    found.diagonal().add_(first)
    return found


class Muon(Optimizer):
    """Orthogonalised momentum."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["muon"]
    GROUP_KEYS = {"orthogonal": False}
    CUDA_PATH = "fused"

    def states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter of a group."""
        return ("momentum_buffer",) if group["orthogonal"] else self.STATES

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        if group["orthogonal"]:
            lr, momentum = group["lr"], group["momentum"]
            _update_matrices(bucket, lr=lr, momentum=momentum, weight_decay=weight_decay)
            return
        settings = {name: group[name] for name in ("step", "lr", "beta1", "beta2", "epsilon")}
        if bucket.path == "fused":
            fused_adamw(
                bucket.params, bucket.grads, *bucket.states, weight_decay=weight_decay, **settings
            )
        else:
            adamw_plain(bucket, weight_decay=weight_decay, **settings)


def _update_matrices(bucket: Bucket, *, lr: float, momentum: float, weight_decay: float) -> None:
    (buffers,) = bucket.states
    for param, grad, buffer in zip(bucket.params, bucket.grads, buffers, strict=True):
        buffer.lerp_(grad, 1 - momentum)
        matrix: Tensor = grad.lerp(buffer, momentum).flatten(1)
        update = orthogonalised(matrix).reshape(grad.shape)
        param.mul_(1 - lr * weight_decay)
        param.sub_(update, alpha=lr * RMS * math.sqrt(max(matrix.shape)))
