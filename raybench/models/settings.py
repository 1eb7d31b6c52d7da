"""A model's own settings: what the constructor of a workload takes, by name and default.

A run spec has them under `model`, a space searches them there: `space: {model: {hidden_units:
[64, 128]}}`. The constructor's signature says which there are.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from raybench.spec.errors import UserError, did_you_mean


def known_settings(build: Callable[..., Any], taken: int = 0) -> dict[str, Any] | None:
    """Return the settings that a constructor takes, with their defaults; None where any name goes.

    `taken`: how many of its first parameters are not the user's. What has no default is
    `inspect.Parameter.empty`.
    """
    found = list(inspect.signature(build).parameters.values())[taken:]
    if any(one.kind is one.VAR_KEYWORD for one in found):
        return None
    return {one.name: one.default for one in found if one.kind is not one.VAR_POSITIONAL}


def check_settings(known: Mapping[str, Any] | None, given: Mapping[str, Any], what: str) -> None:
    """Raise UserError for a setting that there is not, or one that is missing or of another kind.

    A default says the kind: a number is no text, a switch is `true` or `false`.
    """
    if known is None:
        return
    for name, value in given.items():
        if name not in known:
            nothing = "" if known else "there are none: its constructor takes nothing."
            hint = did_you_mean(name, known, nothing)
            raise UserError(f"model.{name}: {what} has no such setting; {hint}")
        if not _is_alike(known[name], value):
            raise UserError(
                f"model.{name}: {value!r} is not of the kind of {what}'s default, {known[name]!r}."
            )
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in given:
            raise UserError(f"{what} needs model.{name}: set it under fixed.model or space.model.")


def _is_alike(default: Any, value: Any) -> bool:
    if default is None or value is None or default is inspect.Parameter.empty:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return isinstance(value, int | float) and (isinstance(default, float) or is_whole)
    if isinstance(default, str):
        return isinstance(value, str)
    return True
