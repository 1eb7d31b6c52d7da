"""All uses of private torch functions: `_foreach_*`, which change a list of tensors, or return
their norms, by one kernel instead of one per tensor. torch's own optimizers use them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Foreach:
    """Operations on lists of tensors, by the names of tensor methods: `foreach.add_(tensors,
    others)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(torch, f"_foreach_{name}")  # type: ignore[no-any-return]


foreach = _Foreach()
