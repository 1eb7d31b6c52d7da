"""The choice of path for each tensor, and the norms that the paths need.

Three paths compute the same update:

| path    | how                                             | chosen for              |
|---------|-------------------------------------------------|-------------------------|
| fused   | torch's fused kernels, one pass over memory     | float32 on CPU          |
| foreach | multi-tensor kernels, norms stay on the device  | float32 on CUDA         |
| plain   | one tensor at a time, ordinary operations       | everything else         |

The kernels of the first two are private functions of torch (see internals.py): where they are
missing or changed, plain is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from raybench.backends.torch.internals import foreach, foreach_kernels_work, fused_kernels_work

Path = Literal["fused", "foreach", "plain"]


def dense_norm(tensor: Tensor) -> float:
    """|tensor|, read on the host; for tensors without gaps in memory, as on the fused path.

    The BLAS dot product takes half the time of torch's norm at 2 threads, and errs less.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return math.sqrt(torch.dot(flat, flat).item())


def add_all(tensors: list[Tensor], others: list[Tensor], factor: float) -> None:
    """Add `factor` times the others, index by index."""
    if foreach_kernels_work(tensors[0].device.type):
        foreach.add_(tensors, others, alpha=factor)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=factor)


def lerp_all(tensors: list[Tensor], others: list[Tensor], weight: float) -> None:
    """Move each tensor by `weight` of its way to the other of its index."""
    if foreach_kernels_work(tensors[0].device.type):
        foreach.lerp_(tensors, others, weight)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.lerp_(other, weight)


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
        return "foreach" if foreach_kernels_work(device_type) else "plain"
    # The fused kernels walk raw memory: a gradient in another layout would be paired wrongly.
    return "fused" if same_layout and fused_kernels_work(device_type) else "plain"
