"""LARS for torch: SGD with momentum and a learning rate per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from raybench.backends.torch.optim.kernels import Bucket, Path, buckets, dense_norm, fused_sgd


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv:1708.03888).

        ratio = trust_coefficient |w| / (|g| + wd |w|)
        b <- momentum b + ratio (g + wd w)
        w <- w - lr b

    The ratio is 1 where |w| or the denominator is 0. Biases and norm parameters (ndim <= 1) take
    plain momentum steps without weight decay while `exclude_1d` holds.

    The paper (Algorithm 1) puts lr inside the buffer, b <- momentum b + lr ratio (g + wd w). The
    two agree under a constant rate; under a changing one, ours scales the whole buffer by the
    present rate, as torch.optim.SGD does, so a drop of the rate acts at once.

    `path` forces one of the paths of kernels.py; None picks the fastest for each tensor.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        learning_rate: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        exclude_1d: bool = True,
        path: Path | None = None,
    ) -> None:
        defaults = {
            "lr": learning_rate,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "exclude_1d": exclude_1d,
            "path": path,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; `p.grad` is left as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for bucket in buckets(self, group, ("momentum_buffer",), cuda_path="foreach"):
                _UPDATES[bucket.path](
                    bucket,
                    lr=group["lr"],
                    momentum=group["momentum"],
                    weight_decay=0.0 if bucket.excluded else group["weight_decay"],
                    trust_coefficient=group["trust_coefficient"],
                )
        return loss


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
    torch._foreach_mul_(buffers, momentum)
    if bucket.excluded:
        torch._foreach_add_(buffers, grads)
    else:
        ratios = _trust_ratio(
            torch.stack(torch._foreach_norm(params)),
            torch.stack(torch._foreach_norm(grads)),
            weight_decay,
            trust_coefficient,
        )
        updates = torch._foreach_add(grads, params, alpha=weight_decay)
        torch._foreach_addcmul_(buffers, updates, ratios.unbind())
    torch._foreach_add_(params, buffers, alpha=-lr)


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
