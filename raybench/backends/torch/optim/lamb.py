"""LAMB for torch: Adam's direction, scaled layer by layer to the size of the weights."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from raybench.backends.torch.internals import foreach, fused_adamw
from raybench.backends.torch.optim.base import Optimizer, like
from raybench.backends.torch.optim.kernels import Bucket, dense_norm, take_moments


class Lamb(Optimizer):
    """Layer-wise adaptive moments (You et al. 2019, arXiv:1904.00962, Algorithm 2).

        m <- beta1 m + (1 - beta1) g            m_hat = m / (1 - beta1^t)
        v <- beta2 v + (1 - beta2) g^2          v_hat = v / (1 - beta2^t)
        u = m_hat / (sqrt(v_hat) + epsilon) + wd w
        w <- w - lr (|w| / |u|) u

    phi is the identity: norms are not clamped. The ratio is 1 where |w| or |u| is 0. Biases and
    norm parameters (ndim <= 1) take plain Adam steps without weight decay while `exclude_1d`
    holds; adapted, a bias that starts at 0 would hardly ever leave it.

    t counts the steps of the parameter group.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        settings = {name: group[name] for name in ("step", "lr", "beta1", "beta2", "epsilon")}
        settings["weight_decay"] = weight_decay
        if bucket.path == "fused":
            _update_fused(bucket, self.scratch_for(bucket), **settings)
        elif bucket.path == "foreach":
            _update_foreach(bucket, **settings)
        else:
            _update_plain(bucket, **settings)


def _update_fused(
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


def _update_foreach(
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
    ratios = _trust_ratio(torch.stack(foreach.norm(params)), torch.stack(foreach.norm(updates)))
    foreach.addcmul_(params, updates, ratios.unbind(), -lr)


def _update_plain(
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
                _trust_ratio(torch.linalg.vector_norm(param), torch.linalg.vector_norm(update))
            )
        param.sub_(update, alpha=lr)


def _trust_ratio(weight_norm: Tensor, update_norm: Tensor) -> Tensor:
    ratio = weight_norm / update_norm
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)
