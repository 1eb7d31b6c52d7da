"""What our torch optimizers have in common: parameter groups, their buckets, the path of each.

Two paths compute the same update:

| path    | how                                             | chosen for              |
|---------|-------------------------------------------------|-------------------------|
| fused   | torch's fused kernels, one pass over memory     | float32 on CPU          |
| foreach | multi-tensor kernels, norms stay on the device  | everything else         |

On CUDA an optimizer without norms takes the fused one for float32 (`CUDA_PATH`). The kernels are
private functions of torch (see internals.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raybench.training.torch.internals import foreach, fused_adamw, fused_kernels_work

Path = Literal["fused", "foreach"]


@dataclass
class TensorBucket:
    """Tensors of one parameter group that go through one path together, index by index.

    `excluded`: neither weight decay nor trust ratio. `states`: one list for each state name.
    Complex tensors are here as pairs of real numbers (`as_real`), their parameters in `owners`.
    """

    path: Path
    excluded: bool
    owners: list[Tensor] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: tuple[list[Tensor], ...] = ()


def layouts(group: dict[str, Any]) -> list[Any]:
    """Return what buckets depend on beside the states: while it is equal, buckets stay but for
    their gradients, which are other tensors at every step. Asking takes 0.06 ms of ResNet-50's 161
    parameters."""
    return [
        None if grad is None else (grad.dtype, grad.stride(), param.dtype, param.stride())
        for param, grad in [(param, param.grad) for param in group["params"]]
    ]


def buckets(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    state_names: tuple[str, ...],
    *,
    cuda_path: Path,
) -> list[TensorBucket]:
    """The group's parameters that have a gradient, by device, dtype, path and exclusion (of biases
    and norms, complex ones too).

    Missing state is created as zeros.
    """
    found: dict[tuple[torch.device, torch.dtype, Path, bool], TensorBucket] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state[param]
        if not state:
            for name in state_names:
                state[name] = torch.zeros_like(param)
        real = as_real(param)
        tensors = [as_real(one) for one in (param.grad, *[state[name] for name in state_names])]
        path, excluded = best_path(real, tensors, cuda_path), param.ndim <= 1
        key = (real.device, real.dtype, path, excluded)
        if key not in found:
            found[key] = TensorBucket(path, excluded, states=tuple([] for _ in state_names))
        bucket = found[key]
        bucket.owners.append(param)
        bucket.params.append(real)
        for tensor_list, tensor in zip((bucket.grads, *bucket.states), tensors, strict=True):
            tensor_list.append(tensor)
    return list(found.values())


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real numbers (..., 2), of the same memory; others as they
    are. An update of the pairs is that of the complex number: g * g of it would not be |g|^2."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def best_path(param: Tensor, tensors: list[Tensor], cuda_path: Path) -> Path:
    """Return the fastest that a parameter, its gradient and its states can take."""
    kind = param.device.type
    if kind not in ("cpu", "cuda") or (kind == "cuda" and cuda_path == "foreach"):
        return "foreach"
    # The fused kernels walk raw memory: a gradient in another layout would be paired wrongly.
    is_alike = all(
        one.dtype == torch.float32 and one.stride() == param.stride() for one in (param, *tensors)
    )
    return "fused" if is_alike and fused_kernels_work(kind) else "foreach"


ADAM = ("step", "lr", "beta1", "beta2", "epsilon")
"""What the three functions below take of a parameter group."""


def adamw(bucket: TensorBucket, *, weight_decay: float, **settings: Any) -> None:
    """w <- (1 - lr wd) w - lr m_hat / (sqrt(v_hat) + epsilon)"""
    if bucket.path == "fused":
        fused_adamw(
            bucket.params, bucket.grads, *bucket.states, weight_decay=weight_decay, **settings
        )
        return
    foreach.mul_(bucket.params, 1 - settings["lr"] * weight_decay)
    foreach.add_(bucket.params, adam_directions(bucket, **settings), alpha=-settings["lr"])


def adam_directions(
    bucket: TensorBucket, *, beta1: float, nesterov: bool = False, **settings: Any
) -> list[Tensor]:
    """Take the gradients into both moments; return m_hat / (sqrt(v_hat) + epsilon), with `nesterov`
    (beta1 m + (1 - beta1) g)_hat in the place of m_hat."""
    grads, (exp_avgs, exp_avg_sqs) = bucket.grads, bucket.states
    foreach.lerp_(exp_avgs, grads, 1 - beta1)
    denominators = adam_denominators(grads, exp_avg_sqs, **settings)
    firsts = foreach.lerp(exp_avgs, grads, 1 - beta1) if nesterov else exp_avgs
    updates: list[Tensor] = foreach.div(firsts, denominators)
    foreach.div_(updates, 1 - beta1 ** settings["step"])
    return updates


def adam_denominators(
    grads: list[Tensor],
    exp_avg_sqs: list[Tensor],
    *,
    step: int,
    beta2: float,
    epsilon: float,
    **others: float,
) -> list[Tensor]:
    """Take the gradients into the second moments; return sqrt(v_hat) + epsilon."""
    del others
    foreach.mul_(exp_avg_sqs, beta2)
    foreach.addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)
    found: list[Tensor] = foreach.sqrt(exp_avg_sqs)
    foreach.div_(found, math.sqrt(1 - beta2**step))
    foreach.add_(found, epsilon)
    return found


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale all gradients by one factor, so that the norm of them together is `most` at most.

    Of NaN or infinite gradients they become NaN. torch.nn.utils.clip_grad_norm_ adds 1e-6 to the
    norm, TensorFlow nothing. Nothing is read on the host.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    if not gradients:
        return
    norm = torch.nn.utils.get_total_norm(gradients)
    foreach.mul_(gradients, (most / norm).clamp(max=1.0))


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose update takes a bucket of tensors at a time, on the fastest path.

    Biases and norm parameters (ndim <= 1) get neither weight decay nor ratio. `step` of a parameter
    group counts its steps.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of the tensors kept for each parameter; they start at 0."""
    CUDA_PATH: ClassVar[Path] = "fused"
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
        **settings: float,
    ) -> None:
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "step": 0}
        super().__init__(params, defaults | self.SETTINGS | self.GROUP_KEYS | settings)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()  # a copied or unpickled optimizer comes without, a loaded one has new states

    def _forget(self) -> None:
        """Begin without what is kept from step to step beside the states."""
        self._scratch = torch.empty(0)
        self._buckets: dict[int, tuple[list[Any], list[TensorBucket]]] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; `p.grad` is left as it is."""
        for index, group in enumerate(self.param_groups):
            group["step"] += 1
            self._count(group)
            for bucket in self._buckets_of(index, group):
                weight_decay = 0.0 if bucket.excluded else group["weight_decay"]
                self._update(bucket, group, weight_decay=weight_decay)
                bucket.grads = []  # kept, they would take memory that `zero_grad` gives back

    def _buckets_of(self, index: int, group: dict[str, Any]) -> list[TensorBucket]:
        """Return a group's buckets with the gradients of now."""
        present, (known, found) = layouts(group), self._buckets.get(index, ([], []))
        if present != known:
            found = buckets(self, group, self._states_of(group), cuda_path=self.CUDA_PATH)
            self._buckets[index] = present, found
        for bucket in found:
            bucket.grads = [as_real(one.grad) for one in bucket.owners if one.grad is not None]
        return found

    def _states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter of a group."""
        del group
        return self.STATES

    def _count(self, group: dict[str, Any]) -> None:
        """Take in the rate of a group's step, at its beginning."""

    def _update(self, bucket: TensorBucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        raise NotImplementedError

    def scratch_for(self, bucket: TensorBucket) -> Tensor:
        """Memory for the largest tensor, kept: new pages at every step would cost a tenth of it."""
        largest, first = max(param.numel() for param in bucket.params), bucket.params[0]
        if self._scratch.numel() < largest or self._scratch.device != first.device:
            self._scratch = first.new_zeros(largest)
        return self._scratch


def like(scratch: Tensor, param: Tensor) -> Tensor:
    """Return the beginning of a scratch in the form of a parameter, same layout in memory."""
    return scratch.as_strided(param.shape, param.stride())


def dense_norm(tensor: Tensor) -> float:
    """|tensor|, read on the host; for tensors without gaps in memory, as on the fused path.

    The BLAS dot product takes half the time of torch's norm at 2 threads, and errs less.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return math.sqrt(torch.dot(flat, flat).item())
