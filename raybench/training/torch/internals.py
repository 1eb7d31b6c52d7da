"""Every private function of torch that is used here, each with its reason and a way without it.

| private          | why                                              | without it        |
|------------------|--------------------------------------------------|-------------------|
| `_fused_adamw_`  | one pass over memory updates weight and states;  | the plain path:   |
| `_fused_sgd_`    | torch's own optimizers call them (`fused=True`)  | one tensor at a   |
| `_foreach_*`     | one kernel for all tensors, norms included: a    | time, ordinary    |
|                  | GPU is not asked tensor by tensor                | operations        |

They are probed once per device (`fused_kernels_work`, `foreach_kernels_work`): where they are
missing or give another result, kernels.py takes the plain path. tests/backends/test_internals.py
says when torch has changed them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Foreach:
    """Torch's multi-tensor operations by their names: `foreach.add_` is `torch._foreach_add_`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(torch, f"_foreach_{name}")
        return found


foreach = _Foreach()


@functools.cache
def foreach_kernels_work(device_type: str) -> bool:
    """Whether all that optim/ calls exist there and give the documented result."""
    values = [torch.tensor([4.0, 9.0], device=device_type)]
    twos = [torch.full_like(values[0], 2.0)]
    try:
        results = [
            (foreach.add(values, twos, alpha=3.0), [10.0, 15.0]),
            (foreach.div(values, twos), [2.0, 4.5]),
            (foreach.sqrt(values), [2.0, 3.0]),
            (foreach.lerp(values, twos, 0.5), [3.0, 5.5]),
            ([torch.stack(foreach.norm(values)).square()], [97.0]),
        ]
        changed = [values[0].clone()]
        foreach.mul_(changed, 0.25)  # 1, 2.25
        foreach.mul_(changed, twos[0][0])  # 2, 4.5
        foreach.add_(changed, 1.0)  # 3, 5.5
        foreach.add_(changed, twos, alpha=-1.0)  # 1, 3.5
        foreach.div_(changed, 0.5)  # 2, 7
        foreach.lerp_(changed, values, 0.5)  # 3, 8
        foreach.addcmul_(changed, values, twos, -1.0)  # -5, -10
        foreach.addcmul_(changed, values, twos)  # 3, 8
        ratios = torch.full((1,), 3.0, device=device_type).unbind()
        foreach.addcmul_(changed, values, ratios, -1.0)  # -9, -19
        results.append((changed, [-9.0, -19.0]))
        cut = [torch.tensor([-3.0, 2.0, torch.nan], device=device_type)]
        foreach.clamp_max_(cut, 1.0)
        foreach.clamp_min_(cut, -1.0)
        results.append((cut, [-1.0, 1.0, torch.nan]))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return all(
        torch.allclose(found[0].cpu().flatten(), torch.tensor(expected), equal_nan=True)
        for found, expected in results
    )


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
