"""SGD, LARS, Adam, RAdam, NAdamW and LAMB for torch, those that it has not got or not as in the
papers. Mirrors tensorflow's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raybench.training.optimizers import DEFAULTS
from raybench.training.torch.internals import foreach, fused_adamw, fused_sgd
from raybench.training.torch.optim.kernels import (
    Bucket,
    Optimizer,
    Path,
    adamw_plain,
    dense_norm,
    lerp_all,
    like,
    take_moments,
)


class Lars(Optimizer):
    """Layer-wise adaptive rate scaling."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["lars"]

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        _LARS[bucket.path](
            bucket,
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=weight_decay,
            trust_coefficient=group["trust_coefficient"],
        )


def _lars_fused(
    bucket: Bucket, *, lr: float, momentum: float, weight_decay: float, trust_coefficient: float
) -> None:
    (buffers,) = bucket.states
    if bucket.excluded:
        fused_sgd(bucket.params, bucket.grads, buffers, lr=lr, momentum=momentum)
        return
    for param, grad, buffer in zip(bucket.params, bucket.grads, buffers, strict=True):
        weight_norm = dense_norm(param)
        denominator = dense_norm(grad) + weight_decay * weight_norm
        ratio = trust_coefficient * weight_norm / denominator if weight_norm * denominator else 1.0
        # 1 - dampening is the one factor the kernel puts on gradient and weight decay alike;
        # without momentum it has no such factor, and the rate takes its place.
        fused_sgd(
            [param],
            [grad],
            [buffer],
            lr=lr if momentum else lr * ratio,
            momentum=momentum,
            dampening=1.0 - ratio,
            weight_decay=weight_decay,
        )


def _lars_foreach(
    bucket: Bucket, *, lr: float, momentum: float, weight_decay: float, trust_coefficient: float
) -> None:
    params, grads, (buffers,) = bucket.params, bucket.grads, bucket.states
    foreach.mul_(buffers, momentum)
    if bucket.excluded:
        foreach.add_(buffers, grads)
    else:
        ratios = _lars_ratio(
            torch.stack(foreach.norm(params)),
            torch.stack(foreach.norm(grads)),
            weight_decay,
            trust_coefficient,
        )
        updates = foreach.add(grads, params, alpha=weight_decay)
        foreach.addcmul_(buffers, updates, ratios.unbind())
    foreach.add_(params, buffers, alpha=-lr)


def _lars_plain(
    bucket: Bucket, *, lr: float, momentum: float, weight_decay: float, trust_coefficient: float
) -> None:
    (buffers,) = bucket.states
    for param, grad, buffer in zip(bucket.params, bucket.grads, buffers, strict=True):
        update = grad
        if not bucket.excluded:
            ratio = _lars_ratio(
                torch.linalg.vector_norm(param),
                torch.linalg.vector_norm(grad),
                weight_decay,
                trust_coefficient,
            )
            update = grad.add(param, alpha=weight_decay).mul_(ratio)
        buffer.mul_(momentum).add_(update)
        param.sub_(buffer, alpha=lr)


def _lars_ratio(
    weight_norm: Tensor, grad_norm: Tensor, weight_decay: float, trust_coefficient: float
) -> Tensor:
    denominator = grad_norm + weight_decay * weight_norm
    ratio = trust_coefficient * weight_norm / denominator
    return torch.where((weight_norm > 0) & (denominator > 0), ratio, 1.0)


_LARS: dict[Path, Callable[..., None]] = {
    "fused": _lars_fused,
    "foreach": _lars_foreach,
    "plain": _lars_plain,
}


class RAdam(Optimizer):
    """Rectified Adam."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["radam"]
    CUDA_PATH = "fused"

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        step, lr, beta1, beta2 = group["step"], group["lr"], group["beta1"], group["beta2"]
        rectification = rectification_term(step, beta2)
        if bucket.path == "fused" and rectification is not None:
            # The kernel divides sqrt(v) by sqrt(1 - beta2^t) before it adds its epsilon,
            # and scales the decay by the rate it is given.
            fused_adamw(
                bucket.params,
                bucket.grads,
                *bucket.states,
                step=step,
                lr=lr * rectification,
                beta1=beta1,
                beta2=beta2,
                epsilon=group["epsilon"] / math.sqrt(1 - beta2**step),
                weight_decay=weight_decay / rectification,
            )
            return
        for param, grad, exp_avg, exp_avg_sq in zip(
            bucket.params, bucket.grads, *bucket.states, strict=True
        ):
            exp_avg.lerp_(grad, 1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            param.mul_(1 - lr * weight_decay)
            step_size = lr / (1 - beta1**step)
            if rectification is None:
                param.sub_(exp_avg, alpha=step_size)
            else:
                step_size *= rectification * math.sqrt(1 - beta2**step)
                denominator = exp_avg_sq.sqrt().add_(group["epsilon"])
                param.addcdiv_(exp_avg, denominator, value=-step_size)


def rectification_term(step: int, beta2: float) -> float | None:
    """r_t, or None while rho_t <= 5 (the first five steps at beta2 = 0.999)."""
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


class NAdamW(Optimizer):
    """AdamW with Nesterov's momentum."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["nadamw"]
    CUDA_PATH = "fused"

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        step, lr, beta1, beta2 = group["step"], group["lr"], group["beta1"], group["beta2"]
        epsilon = group["epsilon"]
        if bucket.path == "fused":
            # beta1 m + (1 - beta1) g is the moment of decay beta1^2: the kernel leaves it in the
            # place of m, which is told from it again. Its own correction is that of beta1^2.
            growth = 1 + beta1**step
            fused_adamw(
                bucket.params,
                bucket.grads,
                *bucket.states,
                step=step,
                lr=lr * growth,
                beta1=beta1**2,
                beta2=beta2,
                epsilon=epsilon,
                weight_decay=weight_decay / growth,
            )
            if beta1:
                lerp_all(bucket.states[0], bucket.grads, 1 - 1 / beta1)
            return
        adamw_plain(
            bucket,
            step=step,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            nesterov=True,
        )


class Lamb(Optimizer):
    """Layer-wise adaptive moments."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["lamb"]

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        settings = {name: group[name] for name in ("step", "lr", "beta1", "beta2", "epsilon")}
        settings["weight_decay"] = weight_decay
        if bucket.path == "fused":
            _lamb_fused(bucket, self.scratch_for(bucket), **settings)
        elif bucket.path == "foreach":
            _lamb_foreach(bucket, **settings)
        else:
            _lamb_plain(bucket, **settings)


def _lamb_fused(
    bucket: Bucket,
    scratch: Tensor,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    adamw = functools.partial(fused_adamw, step=step, beta1=beta1, beta2=beta2, epsilon=epsilon)
    if bucket.excluded:
        adamw(bucket.params, bucket.grads, *bucket.states, lr=lr)
        return
    for param, grad, exp_avg, exp_avg_sq in zip(
        bucket.params, bucket.grads, *bucket.states, strict=True
    ):
        # AdamW's kernel at rate -1 and decay -1 is s <- 0 s + direction: one pass updates the
        # moments and leaves the direction in the scratch, whatever was there. The scratch serves
        # all tensors, so that it stays in cache.
        update = like(scratch, param)
        adamw([update], [grad], [exp_avg], [exp_avg_sq], lr=-1.0, weight_decay=-1.0)
        if weight_decay:
            update.add_(param, alpha=weight_decay)
        weight_norm, update_norm = dense_norm(param), dense_norm(update)
        ratio = weight_norm / update_norm if weight_norm * update_norm else 1.0
        param.sub_(update, alpha=lr * ratio)
        if not math.isfinite(update_norm):
            scratch.zero_()  # 0 s would carry the nan into the next tensor


def _lamb_foreach(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    params, grads, (exp_avgs, exp_avg_sqs) = bucket.params, bucket.grads, bucket.states
    foreach.lerp_(exp_avgs, grads, 1 - beta1)
    foreach.mul_(exp_avg_sqs, beta2)
    foreach.addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    denominators = foreach.sqrt(exp_avg_sqs)
    foreach.div_(denominators, math.sqrt(1 - beta2**step))
    foreach.add_(denominators, epsilon)
    updates = foreach.div(exp_avgs, denominators)
    foreach.div_(updates, 1 - beta1**step)
    if bucket.excluded:
        foreach.add_(params, updates, alpha=-lr)
        return
    foreach.add_(updates, params, alpha=weight_decay)
    ratios = _lamb_ratio(torch.stack(foreach.norm(params)), torch.stack(foreach.norm(updates)))
    foreach.addcmul_(params, updates, ratios.unbind(), -lr)


def _lamb_plain(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    for param, grad, exp_avg, exp_avg_sq in zip(
        bucket.params, bucket.grads, *bucket.states, strict=True
    ):
        denominator = take_moments(
            grad, exp_avg, exp_avg_sq, step=step, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        update = (exp_avg / denominator).div_(1 - beta1**step)
        if not bucket.excluded:
            update.add_(param, alpha=weight_decay)
            update.mul_(
                _lamb_ratio(torch.linalg.vector_norm(param), torch.linalg.vector_norm(update))
            )
        param.sub_(update, alpha=lr)


def _lamb_ratio(weight_norm: Tensor, update_norm: Tensor) -> Tensor:
    ratio = weight_norm / update_norm
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)
