"""Recognizes search-space dimensions in the syntax of W&B, Optuna, Ray Tune, NNI, Katib, Ax and
Hydra, and says how to write them in raybench.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from raybench.spec.values import short

Names = tuple[str, ...]

_LISTS: Names = ("values", "choices", "categories", "choice", "grid_search", "options", "list")
_LISTS += ("_value",)
_ONE: Names = ("value", "constant", "const")
_LOWS: Names = ("low", "min", "minimum", "min_value", "minvalue", "lower", "lower_bound", "start")
_HIGHS: Names = ("high", "max", "maximum", "max_value", "maxvalue", "upper", "upper_bound", "end")
_HIGHS += ("stop",)
_STEPS: Names = ("step", "q", "quantum", "step_size")
_BOUNDS: Names = ("bounds", "range", "uniform", "loguniform", "quniform", "qloguniform", "randint")
_BOUNDS += ("lograndint", "qrandint", "qlograndint", "interval", "_value")
_OTHERS: Names = ("type", "_type", "distribution", "parametertype", "feasiblespace", "space", "mu")
_OTHERS += ("sigma", "mean", "std", "sd", "randn", "normal", "lognormal", "scale", "sampling")
_OTHERS += ("prior", "probabilities", "log_scale")
_FOREIGN = {*_LISTS, *_ONE, *_LOWS[1:], *_HIGHS[1:], *_STEPS, *_BOUNDS, *_OTHERS}
_CALL = re.compile(
    r"(?:[\w.]+\.)?(?:suggest_\w+|choice|grid_search|q?(?:log)?(?:uniform|randint|normal)|q?randn"
    r"|sample_from|interval|range|tag|glob)\(.*\)"
)
MOST_STEPS = 20
"""Longest list of values that a message suggests for a range with a step."""


def translation_hint(content: Any) -> str | None:
    """Return how to write another tool's dimension in raybench, as the end of a sentence; None if
    the content is not in the syntax of another tool."""
    if isinstance(content, str) and _CALL.fullmatch(content.strip()):
        return "write a list of values, or a range as {low: 0.001, high: 0.1, log: true}"
    if not isinstance(content, Mapping) or not {str(key).lower() for key in content} & _FOREIGN:
        return None
    found = dict(_inside(content))
    is_log = any("log" in key and one is not False for key, one in found.items()) or any(
        isinstance(one, str) and "log" in one.lower() for one in found.values()
    )
    kind = str(found.get("_type") or found.get("type") or "")
    values = _first(found, _LISTS)
    if isinstance(values, list) and ("_type" not in found or kind in ("choice", "categorical")):
        return f"write the list itself: {_listed(values)}"
    if (one := _first(found, _ONE)) is not None:
        return f"write it under fixed, or as a list of one: {_listed([one])}"
    low, high = _first(found, _LOWS), _first(found, _HIGHS)
    bounds, step = _first(found, _BOUNDS), _first(found, _STEPS)
    if low is None and isinstance(bounds, list) and len(bounds) >= 2:
        low, high = bounds[:2]
        step = bounds[2] if step is None and len(bounds) > 2 else step
    if low is None or high is None:
        return "write a list of values, or a range as {low: 0.001, high: 0.1, log: true}"
    steps = _steps(low, high, step)
    if steps:
        return f"steps are listed: {_listed(steps)}"
    are_numbers = all(isinstance(end, int | float) for end in (low, high))
    if (
        is_log and are_numbers and low <= 0 and high < MAX_EXPONENT
    ):  # the bounds are exponents, as in W&B's log_uniform
        low, high = (float(f"{math.exp(end):.3g}") for end in (low, high))
    text = f"{{low: {low}, high: {high}{', log: true' if is_log else ''}}}"
    return f"write {text}" + ("" if step is None else ", or list the values of each step")


MAX_EXPONENT = 300
"""Exponents of e from here on could overflow a float, so bounds this large are not read as
exponents."""


def _inside(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all keys in lower case with their values, including keys of nested mappings."""
    for key, value in content.items():
        yield str(key).lower(), value
        if isinstance(value, Mapping):
            yield from _inside(value)


def _first(found: Mapping[str, Any], names: Names) -> Any:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _steps(low: Any, high: Any, step: Any) -> list[Any]:
    """Return the values from `low` to `high` in steps of `step`.

    The list is empty if an argument is not a number, or if there are more than MOST_STEPS values.
    """
    if not all(isinstance(one, int | float) for one in (low, high, step)) or step <= 0:
        return []
    number = int((high - low) / step + 1e-9) + 1
    return [_rounded(low + at * step) for at in range(number)] if 1 < number <= MOST_STEPS else []


def _rounded(value: float) -> float:
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _listed(values: list[Any]) -> str:
    return f"[{', '.join(map(short, values))}]"
