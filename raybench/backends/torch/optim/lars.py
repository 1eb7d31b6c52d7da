"""LARS for torch: SGD with momentum and a learning rate per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raybench.backends.torch.internals import foreach, fused_sgd
from raybench.backends.torch.optim.base import Optimizer
from raybench.backends.torch.optim.kernels import Bucket, Path, dense_norm


class Lars(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv:1708.03888).

        ratio = trust_coefficient |w| / (|g| + wd |w|)
        b <- momentum b + ratio (g + wd w)
        w <- w - lr b

    The ratio is 1 where |w| or the denominator is 0. Biases and norm parameters (ndim <= 1) take
    plain momentum steps without weight decay while `exclude_1d` holds.

    The paper (Algorithm 1) puts lr inside the buffer, b <- momentum b + lr ratio (g + wd w). The
    two agree under a constant rate; under a changing one, ours scales the whole buffer by the
    present rate, as torch.optim.SGD does, so a drop of the rate acts at once.
    """

    STATES = ("momentum_buffer",)
    SETTINGS = {"momentum": 0.9, "trust_coefficient": 0.001}

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        _UPDATES[bucket.path](
            bucket,
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=weight_decay,
            trust_coefficient=group["trust_coefficient"],
        )


def _update_fused(
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


def _update_foreach(
    bucket: Bucket, *, lr: float, momentum: float, weight_decay: float, trust_coefficient: float
) -> None:
    params, grads, (buffers,) = bucket.params, bucket.grads, bucket.states
    foreach.mul_(buffers, momentum)
    if bucket.excluded:
        foreach.add_(buffers, grads)
    else:
        ratios = _trust_ratio(
            torch.stack(foreach.norm(params)),
            torch.stack(foreach.norm(grads)),
            weight_decay,
            trust_coefficient,
        )
        updates = foreach.add(grads, params, alpha=weight_decay)
        foreach.addcmul_(buffers, updates, ratios.unbind())
    foreach.add_(params, buffers, alpha=-lr)


def _update_plain(
    bucket: Bucket, *, lr: float, momentum: float, weight_decay: float, trust_coefficient: float
) -> None:
    (buffers,) = bucket.states
    for param, grad, buffer in zip(bucket.params, bucket.grads, buffers, strict=True):
        update = grad
        if not bucket.excluded:
            ratio = _trust_ratio(
                torch.linalg.vector_norm(param),
                torch.linalg.vector_norm(grad),
                weight_decay,
                trust_coefficient,
            )
            update = grad.add(param, alpha=weight_decay).mul_(ratio)
        buffer.mul_(momentum).add_(update)
        param.sub_(buffer, alpha=lr)


def _trust_ratio(
    weight_norm: Tensor, grad_norm: Tensor, weight_decay: float, trust_coefficient: float
) -> Tensor:
    denominator = grad_norm + weight_decay * weight_norm
    ratio = trust_coefficient * weight_norm / denominator
    return torch.where((weight_norm > 0) & (denominator > 0), ratio, 1.0)


_UPDATES: dict[Path, Callable[..., None]] = {
    "fused": _update_fused,
    "foreach": _update_foreach,
    "plain": _update_plain,
}
