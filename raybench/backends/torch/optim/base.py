"""What our torch optimizers have in common: the walk over parameter groups and their buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from raybench.backends.torch.optim.kernels import Bucket, Path, buckets


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
        super().__init__(params, defaults | self.SETTINGS | settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; `p.grad` is left as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] += 1
            for bucket in buckets(self, group, self.STATES, cuda_path=self.CUDA_PATH):
                weight_decay = 0.0 if bucket.excluded else group["weight_decay"]
                self.update(bucket, group, weight_decay=weight_decay)
        return loss

    def update(self, bucket: Bucket, group: dict[str, Any], *, weight_decay: float) -> None:
        """Take one step with all tensors of a bucket, with the settings of its group."""
        raise NotImplementedError
