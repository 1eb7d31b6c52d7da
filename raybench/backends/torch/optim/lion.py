"""Lion for torch: momentum of which the sign alone counts."""

from __future__ import annotations

from typing import Any

import torch

from raybench.backends.torch.internals import foreach, fused_sgd
from raybench.backends.torch.optim.base import Optimizer, like
from raybench.backends.torch.optim.kernels import Bucket

LARGE = torch.finfo(torch.float32).max
"""What is multiplied by it and cut off at 1 is its sign; torch's own sign of NaN is 0, which would
hide that a run has diverged."""


class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023, arXiv:2302.06675, Algorithm 2).

        c = beta1 m + (1 - beta1) g
        w <- w - lr (sign(c) + wd w)
        m <- beta2 m + (1 - beta2) g

    Every weight moves by lr, so that its usual rates are 3 to 10 times below those of AdamW, and
    its weight decay as much above. Biases and norm parameters (ndim <= 1) are left out of weight
    decay while `exclude_1d` holds.
    """

    STATES = ("exp_avg",)
    SETTINGS = {"beta1": 0.9, "beta2": 0.99}

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
