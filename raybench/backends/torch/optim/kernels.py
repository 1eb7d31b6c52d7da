"""Torch's fused optimizer kernels behind two typed functions, and the choice of path.

Three paths compute the same update:

| path    | how                                             | chosen for              |
|---------|-------------------------------------------------|-------------------------|
| fused   | torch's fused kernels, one pass over memory     | float32 on CPU          |
| foreach | multi-tensor kernels, norms stay on the device  | float32 on CUDA         |
| plain   | one tensor at a time, ordinary operations       | everything else         |

The fused kernels are private functions of torch (`torch.optim.Adam(fused=True)` calls the same
ones), so they are probed once per device; where they are missing or changed, plain is taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Path = Literal["fused", "foreach", "plain"]


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


def dense_norm(tensor: Tensor) -> float:
    """|tensor|, read on the host; for tensors without gaps in memory, as on the fused path.

    The BLAS dot product takes half the time of torch's norm at 2 threads, and errs less.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return math.sqrt(torch.dot(flat, flat).item())


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


@dataclass
class Bucket:
    """Tensors of one parameter group that go through one path together, index by index.

    `excluded`: neither weight decay nor trust ratio. `states`: one list for each state name.
    """

    path: Path
    excluded: bool
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: tuple[list[Tensor], ...] = ()


def buckets(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    state_names: tuple[str, ...],
    *,
    cuda_path: Path,
) -> Iterable[Bucket]:
    """The group's parameters that have a gradient, by device, dtype, path and exclusion.

    Missing state is created as zeros. `group["path"]` forces a path, `group["exclude_1d"]` sets
    biases and norm parameters apart.
    """
    found: dict[tuple[torch.device, torch.dtype, Path, bool], Bucket] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state[param]
        if not state:
            for name in state_names:
                state[name] = torch.zeros_like(param)
        tensors = [param.grad, *[state[name] for name in state_names]]
        path = group["path"] or _best_path(param, tensors, cuda_path)
        excluded = group["exclude_1d"] and param.ndim <= 1
        key = (param.device, param.dtype, path, excluded)
        if key not in found:
            found[key] = Bucket(path, excluded, states=tuple([] for _ in state_names))
        bucket = found[key]
        bucket.params.append(param)
        for tensor_list, tensor in zip((bucket.grads, *bucket.states), tensors, strict=True):
            tensor_list.append(tensor)
    return found.values()


def _best_path(param: Tensor, tensors: list[Tensor], cuda_path: Path) -> Path:
    device_type = param.device.type
    if param.dtype != torch.float32 or device_type not in ("cpu", "cuda"):
        return "plain"
    strides = param.stride()
    same_layout = True
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            return "plain"
        same_layout = same_layout and tensor.stride() == strides
    if device_type == "cuda" and cuda_path == "foreach":
        return "foreach"
    # The fused kernels walk raw memory: a gradient in another layout would be paired wrongly.
    return "fused" if same_layout and fused_kernels_work(device_type) else "plain"
