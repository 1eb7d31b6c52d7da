"""All uses of private functions of torch.

These are the functions `_foreach_*`, which process a list of tensors with a single kernel instead
of one kernel per tensor. torch's own optimizers use them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Foreach:
    """Functions for lists of tensors, named like the methods of a tensor.

    For example, `foreach.add_(tensors, others)` adds the first of `others` to the first of
    `tensors`, and so on.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(torch, f"_foreach_{name}")  # type: ignore[no-any-return]


foreach = _Foreach()
