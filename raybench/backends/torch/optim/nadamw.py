"""NAdamW for torch: AdamW whose direction looks ahead."""

from __future__ import annotations

from typing import Any

from raybench.backends.torch.internals import fused_adamw
from raybench.backends.torch.optim.base import Optimizer
from raybench.backends.torch.optim.kernels import Bucket, adamw_plain, lerp_all


class NAdamW(Optimizer):
    """AdamW with Nesterov's momentum (Dozat 2016), as in AlgoPerf (Dahl et al. 2023, 2306.07179).

        m, v, v_hat as in Adam;  w <- (1 - lr wd) w
        n_hat = (beta1 m + (1 - beta1) g) / (1 - beta1^t)
        w <- w - lr n_hat / (sqrt(v_hat) + epsilon)

    So do AlgoPerf's baseline and timm's NAdamW. torch.optim.NAdam and keras.optimizers.Nadam let
    the momentum grow by a schedule of Dozat's, at two different paces, and neither has a fused
    path. Biases and norm parameters (ndim <= 1) are left out of weight decay while `exclude_1d`
    holds.

    t counts the steps of the parameter group.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
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
