"""What our torch optimizers have in common: the walk over parameter groups and their buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from raybench.backends.torch.optim.kernels import Bucket, Path, buckets, layouts


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
