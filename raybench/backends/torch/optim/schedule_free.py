"""Schedule-Free AdamW for torch: an average of the weights in place of a schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from raybench.backends.torch.internals import fused_adamw, fused_sgd
from raybench.backends.torch.optim.base import Optimizer
from raybench.backends.torch.optim.kernels import Bucket, add_all

LARGEST_SHARE = 0.5
"""Of a new point in the average, up to which the fused form keeps its digits: a long way beyond the
first steps."""


class ScheduleFreeAdamW(Optimizer):
    """Defazio et al. 2024 (arXiv:2405.15682), Algorithm 1, as in the authors' AdamWScheduleFree.

        v as in Adam;  u = g / (sqrt(v_hat) + epsilon) + wd y
        z <- z - lr u
        x <- (1 - c) x + c z,  c = lr_max^2 / (sum of lr_max^2 so far), lr_max the largest rate
        y <- (1 - beta1) z + beta1 x

    The weights in training are y, at which gradients are taken; those to be evaluated and saved are
    x, see `evaluation_weights`. Kept are v and d = z - y, so that all states begin at 0:

        d <- (1 - c) (d - lr beta1 u)
        y <- y + c d - lr (1 - beta1 (1 - c)) u     (with the d of before)
        x = y - (1 / beta1 - 1) d

    keras.optimizers.ScheduleFreeAdamW gives all points the same share, those of the warm-up too,
    and its weight decay moves y alone. Biases and norm parameters (ndim <= 1) are left out of
    weight decay while `exclude_1d` holds. Running averages of batch normalisation are those of y.

    t counts the steps of the parameter group.
    """

    STATES = ("ahead", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
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
        update = _update_fused if kernel else _update_plain
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


def _update_fused(
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


def _update_plain(
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
