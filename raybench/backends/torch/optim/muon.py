"""Muon for torch: orthogonalised momentum for matrices, convolutions too; AdamW for the rest."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from raybench.backends.torch.internals import fused_adamw
from raybench.backends.torch.optim.adam import adamw_plain
from raybench.backends.torch.optim.base import Optimizer
from raybench.backends.torch.optim.kernels import Bucket
from raybench.backends.torch.optim.orthogonal import orthogonalised

RMS = 0.2
"""Root mean square of an update of AdamW, which those of matrices are given too."""


class Muon(Optimizer):
    """Momentum orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon), scaled as
    by Liu et al. 2025 (arXiv:2502.16982, equation 4).

        b <- momentum b + (1 - momentum) g
        o = orthogonalised((1 - momentum) g + momentum b)
        w <- (1 - lr wd) w - lr 0.2 sqrt(max(rows, columns)) o

    That is for groups of parameters with `orthogonal`, see `hidden_matrices`; a convolution is the
    matrix (outputs, inputs x height x width). All others, embeddings, the head, biases and norm
    parameters, take AdamW's steps. By the scale an update of a matrix is as large as one of AdamW,
    so that one learning rate and one weight decay serve both, as there. torch.optim.Muon takes
    matrices alone, and keras.optimizers.Muon leaves convolutions to Adam.

    t counts the steps of the parameter group.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"momentum": 0.95, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
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
