"""The choice of path for each tensor, and the norms that the paths need.

Three paths compute the same update:

| path    | how                                             | chosen for              |
|---------|-------------------------------------------------|-------------------------|
| fused   | torch's fused kernels, one pass over memory     | float32 on CPU          |
| foreach | multi-tensor kernels, norms stay on the device  | float32 on CUDA         |
| plain   | one tensor at a time, ordinary operations       | everything else         |

The kernels of the first two are private functions of torch (see internals.py): where they are
missing or changed, plain is taken.

What our torch optimizers have in common: the walk over parameter groups and their buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raybench.training.torch.internals import foreach, foreach_kernels_work, fused_kernels_work

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


def scale_all(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply each tensor by a number that stays on the device."""
    if tensors and foreach_kernels_work(tensors[0].device.type):
        foreach.mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


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


def layouts(group: dict[str, Any]) -> list[Any]:
    """Return what buckets depend on beside the states: while it is equal, buckets stay but for
    their gradients, which are other tensors at every step. Asking takes 0.06 ms of ResNet-50's 161
    parameters."""
    return [
        (group["path"], group["exclude_1d"]),
        *(
            None if grad is None else (grad.dtype, grad.stride(), param.dtype, param.stride())
            for param, grad in [(param, param.grad) for param in group["params"]]
        ),
    ]


def buckets(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    state_names: tuple[str, ...],
    *,
    cuda_path: Path,
) -> list[Bucket]:
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
    return list(found.values())


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


def adamw_plain(
    bucket: Bucket,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    nesterov: bool = False,
) -> None:
    """Take AdamW's step with all tensors of a bucket; `nesterov`: the direction looks ahead."""
    for param, grad, exp_avg, exp_avg_sq in zip(
        bucket.params, bucket.grads, *bucket.states, strict=True
    ):
        denominator = take_moments(
            grad, exp_avg, exp_avg_sq, step=step, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        param.mul_(1 - lr * weight_decay)
        direction = exp_avg.lerp(grad, 1 - beta1) if nesterov else exp_avg
        param.addcdiv_(direction, denominator, value=-lr / (1 - beta1**step))


def take_moments(
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Tensor:
    """Take a gradient into both moments; return sqrt(v_hat) + epsilon."""
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    return exp_avg_sq.sqrt().div_(math.sqrt(1 - beta2**step)).add_(epsilon)


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale all gradients by one factor, so that the norm of them together is `most` at most.

    Of NaN or infinite gradients they become NaN. torch.nn.utils.clip_grad_norm_ adds 1e-6 to the
    norm, TensorFlow nothing. Nothing is read on the host.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    factor = (most / norm).clamp(max=1.0)
    scale_all(gradients, factor)


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose update takes a bucket of tensors at a time, on the fastest path.

    `path` forces one of the paths of kernels.py; None picks the fastest for each tensor.
    `exclude_1d` leaves biases and norm parameters (ndim <= 1) without weight decay and ratio.
    `step` of a parameter group counts its steps.
    """

    STATES: ClassVar[tuple[str, ...]]
    """Names of the tensors kept for each parameter; they start at 0."""
    CUDA_PATH: ClassVar[Path] = "foreach"

    SETTINGS: ClassVar[dict[str, float]]
    """The settings of the method, keys of a parameter group, with their defaults."""
    GROUP_KEYS: ClassVar[dict[str, float]] = {}
    """Other keys of a parameter group, such as what it counts beside its steps, as they begin."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
        path: Path | None = None,
        **settings: float,
    ) -> None:
        if unknown := settings.keys() - self.SETTINGS.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        defaults = {
            "lr": learning_rate,
            "weight_decay": weight_decay,
            "exclude_1d": exclude_1d,
            "path": path,
            "step": 0,
        }
        super().__init__(params, defaults | self.SETTINGS | self.GROUP_KEYS | settings)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()  # a copied or unpickled optimizer comes without, a loaded one has new states

    def _forget(self) -> None:
        """Begin without what is kept from step to step beside the states."""
        self._scratch = torch.empty(0)
        self._buckets: dict[int, tuple[list[Any], list[Bucket]]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; `p.grad` is left as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            group["step"] += 1
            self.count(group)
            for bucket in self._buckets_of(index, group):
                weight_decay = 0.0 if bucket.excluded else group["weight_decay"]
                self.update(bucket, group, weight_decay=weight_decay)
                bucket.grads = []  # kept, they would take memory that `zero_grad` gives back
        return loss

    def _buckets_of(self, index: int, group: dict[str, Any]) -> list[Bucket]:
        """Return a group's buckets with the gradients of now."""
        present, (known, found) = layouts(group), self._buckets.get(index, ([], []))
        if present != known:
            found = buckets(self, group, self.states_of(group), cuda_path=self.CUDA_PATH)
            self._buckets[index] = present, found
        for bucket in found:
            bucket.grads = [param.grad for param in bucket.params if param.grad is not None]
        return found

    def states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter of a group."""
        del group
        return self.STATES

    def count(self, group: dict[str, Any]) -> None:
        """Take in the rate of a group's step, at its beginning."""

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        raise NotImplementedError

    def scratch_for(self, bucket: Bucket) -> Tensor:
        """Memory for the largest tensor, kept: new pages at every step would cost a tenth of it."""
        largest, first = max(param.numel() for param in bucket.params), bucket.params[0]
        if self._scratch.numel() < largest or self._scratch.device != first.device:
            self._scratch = first.new_zeros(largest)
        return self._scratch


def like(scratch: Tensor, param: Tensor) -> Tensor:
    """Return the beginning of a scratch in the form of a parameter, same layout in memory."""
    return scratch.as_strided(param.shape, param.stride())
