"""Adam for torch, one tensor at a time: what several methods do on the path `plain`."""

from __future__ import annotations

import math

from torch import Tensor

from raybench.backends.torch.optim.kernels import Bucket


def adamw_plain(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    nesterov: bool = False,
) -> None:
    """Take AdamW's step with all tensors of a bucket; `nesterov`: the direction looks ahead."""
    for param, grad, exp_avg, exp_avg_sq in zip(
        bucket.params, bucket.grads, *bucket.states, strict=True
    ):
        denominator = take_moments(
            grad, exp_avg, exp_avg_sq, step=step, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        param.mul_(1 - lr * weight_decay)
        direction = exp_avg.lerp(grad, 1 - beta1) if nesterov else exp_avg
        param.addcdiv_(direction, denominator, value=-lr / (1 - beta1**step))


def take_moments(
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Tensor:
    """Take a gradient into both moments; return sqrt(v_hat) + epsilon."""
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    return exp_avg_sq.sqrt().div_(math.sqrt(1 - beta2**step)).add_(epsilon)
