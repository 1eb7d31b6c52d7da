"""The named studies by their names."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from raybench.core.errors import UserError
from raybench.core.scaling_study import ScalingStudy


class NamedStudy(Protocol):
    """A module of this folder; its docstring has claim, source and command."""

    study: Callable[[bool], ScalingStudy]
    """Takes whether it is to be quick: two cores, five minutes at most."""
    compare: Callable[[Any], Sequence[Any]]


STUDIES: dict[str, NamedStudy] = {}


def find_study(name: str) -> NamedStudy:
    """Return a named study; UserError with the names there are for another one."""
    if name not in STUDIES:
        raise UserError(f"Unknown study '{name}': there are {', '.join(STUDIES)}.")
    return STUDIES[name]
