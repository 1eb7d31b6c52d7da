"""Common parts of our torch optimizers: parameter groups and their buckets of tensors, which
multi-tensor kernels update together (`foreach`, see internals.py). Norms stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from raybench.training.torch.internals import foreach


@dataclass
class TensorBucket:
    """Tensors of one parameter group that are updated together, index by index.

    `excluded`: neither weight decay nor trust ratio. `states`: one list for each state name.
    Complex tensors are here as pairs of real numbers (`as_real`), their parameters in `owners`.
    """

    excluded: bool
    owners: list[Tensor] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: tuple[list[Tensor], ...] = ()


def buckets(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], state_names: tuple[str, ...]
) -> list[TensorBucket]:
    """Return the group's parameters that have a gradient, without the gradients, by device, dtype
    and exclusion (of biases and norms, complex ones too).

    Missing state is created as zeros.
    """
    found: dict[tuple[torch.device, torch.dtype, bool], TensorBucket] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state[param]
        if not state:
            for name in state_names:
                state[name] = torch.zeros_like(param)
        real, excluded = as_real(param), param.ndim <= 1
        key = (real.device, real.dtype, excluded)
        if key not in found:
            found[key] = TensorBucket(excluded, states=tuple([] for _ in state_names))
        bucket = found[key]
        bucket.owners.append(param)
        bucket.params.append(real)
        for tensors, name in zip(bucket.states, state_names, strict=True):
            tensors.append(as_real(state[name]))
    return list(found.values())


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real numbers (..., 2), of the same memory; others as they
    are. An update of the pairs is that of the complex number: g * g of it would not be |g|^2."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def adam_directions(bucket: TensorBucket, group: dict[str, Any]) -> list[Tensor]:
    """Take the gradients into both moments; return m_hat / (sqrt(v_hat) + epsilon)."""
    grads, (exp_avgs, exp_avg_sqs), step = bucket.grads, bucket.states, group["step"]
    beta1, beta2 = group["beta1"], group["beta2"]
    foreach.lerp_(exp_avgs, grads, 1 - beta1)
    foreach.mul_(exp_avg_sqs, beta2)
    foreach.addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)
    denominators: list[Tensor] = foreach.sqrt(exp_avg_sqs)
    foreach.div_(denominators, math.sqrt(1 - beta2**step))
    foreach.add_(denominators, group["epsilon"])
    updates: list[Tensor] = foreach.div(exp_avgs, denominators)
    foreach.div_(updates, 1 - beta1**step)
    return updates


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
    """An optimizer whose update takes a bucket of tensors at a time.

    Biases and norm parameters (ndim <= 1) get neither weight decay nor ratio. `step` of a parameter
    group counts its steps.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of the tensors kept for each parameter; they start at 0."""
    SETTINGS: ClassVar[dict[str, float]]
    """The settings of the method, keys of a parameter group, with their defaults."""
    GROUP_KEYS: ClassVar[dict[str, float]] = {}
    """Other keys of a parameter group, as they begin."""

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
        self._buckets: dict[int, tuple[list[bool], list[TensorBucket]]] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; `p.grad` is left as it is."""
        for index, group in enumerate(self.param_groups):
            group["step"] += 1
            for bucket in self._buckets_of(index, group):
                weight_decay = 0.0 if bucket.excluded else group["weight_decay"]
                self._update(bucket, group, weight_decay=weight_decay)
                bucket.grads = []  # kept, they would take memory that `zero_grad` gives back

    def _buckets_of(self, index: int, group: dict[str, Any]) -> list[TensorBucket]:
        """Return a group's buckets with the gradients of now."""
        present = [param.grad is not None for param in group["params"]]
        known, found = self._buckets.get(index, ([], []))
        if present != known:
            found = buckets(self, group, self._states_of(group))
            self._buckets[index] = present, found
        for bucket in found:
            bucket.grads = [as_real(one.grad) for one in bucket.owners if one.grad is not None]
        return found

    def _states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter of a group."""
        del group
        return self.STATES

    def _update(self, bucket: TensorBucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        raise NotImplementedError
