"""RAdam for torch: Adam that waits until its second moment can be trusted."""

from __future__ import annotations

import math
from typing import Any

from raybench.backends.torch.internals import fused_adamw
from raybench.backends.torch.optim.base import Optimizer
from raybench.backends.torch.optim.kernels import Bucket


class RAdam(Optimizer):
    """Rectified Adam (Liu et al. 2019, arXiv:1908.03265, Algorithm 2), decoupled weight decay.

        m, v, m_hat as in Adam;  w <- (1 - lr wd) w
        rho_inf = 2 / (1 - beta2) - 1
        rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
        rho_t > 5:  w <- w - lr r_t m_hat sqrt(1 - beta2^t) / (sqrt(v) + epsilon),
            r_t^2 = (rho_t - 4)(rho_t - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho_t)
        otherwise:  w <- w - lr m_hat

    The threshold 5 (the paper says 4) and the place of epsilon are those of the authors' code and
    of torch.optim.RAdam, which has no fused path. Biases and norm parameters (ndim <= 1) are left
    out of weight decay while `exclude_1d` holds.

    t counts the steps of the parameter group. `path` forces fused or plain (see kernels.py); None
    picks the faster for each tensor, fused on CUDA too: nothing here needs a norm.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
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
