"""Every private function of torch that is used here, each with its reason and a way without it.

| private          | why                                              | without it        |
|------------------|--------------------------------------------------|-------------------|
| `_fused_adamw_`  | one pass over memory updates weight and states;  | `foreach`         |
| `_fused_sgd_`    | torch's own optimizers call them (`fused=True`)  |                   |
| `_foreach_*`     | one kernel for all tensors, norms included: a    | torch's own       |
|                  | GPU is not asked tensor by tensor                | optimizers fail   |

The fused ones are probed once per device (`fused_kernels_work`) and left where they are missing or
give another result. tests/training/test_internals.py says when torch has changed any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Foreach:
    """Operations on lists of tensors, named as a tensor's own: `foreach.add_(tensors, others)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(torch, f"_foreach_{name}")  # type: ignore[no-any-return]


foreach = _Foreach()


def fused_adamw(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> None:
    """w <- (1 - lr wd) w - lr m_hat / (sqrt(v_hat) + epsilon), moments updated in the same pass."""
    step_tensor = torch.full((), float(step), device=params[0].device)
    torch._fused_adamw_(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        [],
        [step_tensor] * len(params),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )


def fused_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """b <- momentum b + (1 - dampening) (g + wd w), then w <- w - lr b.

    The kernel has neither buffer nor dampening where momentum is 0. Its `grad_scale` is of no use:
    it writes the scaled gradient back into `p.grad`.
    """
    torch._fused_sgd_(
        params,
        grads,
        buffers if momentum else [],
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@functools.cache
def fused_kernels_work(device_type: str) -> bool:
    """Whether both kernels exist for float32 on that device and give the documented result."""
    grad = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float32, device=device_type)
    weight, first, second, buffer = (torch.full_like(grad, x) for x in (2.0, 0.0, 0.0, 1.0))
    try:
        fused_adamw(
            [weight], [grad], [first], [second], step=1, lr=0.5, beta1=0.9, beta2=0.9,
            epsilon=1e-12, weight_decay=0.2,
        )  # fmt: skip
        after_adamw = weight.clone()
        fused_sgd([weight], [grad], [buffer], lr=0.5, momentum=0.9, dampening=0.75)
        direction = torch.full_like(grad, 7.0)
        fused_adamw(
            [direction], [grad], [first.zero_()], [second.zero_()], step=1, lr=-1.0, beta1=0.9,
            beta2=0.9, epsilon=1e-12, weight_decay=-1.0,
        )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError):
        return False
    expected_adamw = 0.9 * 2.0 - 0.5 * grad.sign()
    expected_sgd = after_adamw - 0.5 * (0.9 + 0.25 * grad)
    return (
        torch.allclose(after_adamw, expected_adamw)
        and torch.allclose(weight, expected_sgd)
        and torch.allclose(direction, grad.sign())
    )
