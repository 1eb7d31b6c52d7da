"""Every private function of torch that is used here: `_foreach_*`, one kernel for all tensors,
norms included, so that a GPU is not asked tensor by tensor; torch's own optimizers need them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Foreach:
    """Operations on lists of tensors, named as a tensor's own: `foreach.add_(tensors, others)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(torch, f"_foreach_{name}")  # type: ignore[no-any-return]


foreach = _Foreach()
