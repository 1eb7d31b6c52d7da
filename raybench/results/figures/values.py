"""The values of one searched key along an axis: numbers as they are or by their log, or names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from raybench.core.text import clean
from raybench.results.figures import parts
from raybench.results.load import StudyResults

WIDE = 20.0
"""Largest over smallest value from which on an axis is a log."""
FEW = 6
"""Different numbers up to which each has a stripe of the axis, as names have."""
MOST_NAMES = 8
"""Names that an axis has room for; rarer ones stand in one place."""
LONGEST = 16
"""Characters of a name on an axis."""


@dataclass(frozen=True)
class Values:
    """Where each value of a key lies on an axis from 0 to 1."""

    places: np.ndarray
    """Of every row; names are scattered a little, so that runs do not hide each other."""
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    is_named: bool
    """Whether they are names: then a value is a stripe as wide as `stripe`."""
    stripe: float = 0.0


def values_of(results: StudyResults, key: str, rows: pd.DataFrame) -> Values:
    """Return the places of the values that `rows` have of a searched key."""
    column = rows[key]
    if _is_number(column):
        numbers = column.astype("Float64").to_numpy(dtype=float, na_value=np.nan)
        every = np.unique(numbers[np.isfinite(numbers)])
        if len(every) > FEW:
            return _numbers(numbers, is_log=_is_log(results, key, every))
        # Side by side, runs with the same of few numbers do not hide each other.
        known = [parts.number(float(one)) for one in every]
        texts = [parts.number(float(one)) if np.isfinite(one) else "none" for one in numbers]
        return _names(pd.Series(texts, dtype=object), known)
    texts = [clean(str(one)) for one in column]
    return _names(pd.Series(texts, dtype=object), sorted(set(texts)))


def _is_number(column: "pd.Series[Any]") -> bool:
    is_truth = pd.api.types.is_bool_dtype(column)
    return bool(pd.api.types.is_numeric_dtype(column)) and not is_truth


def _is_log(results: StudyResults, key: str, every: np.ndarray) -> bool:
    """Return whether a key was searched by its log, or where the file does not say, spans much."""
    if every.min() <= 0:
        return False
    space = results.study["study"].get("space", {}).get(key)
    ranges = [one for one in (space if isinstance(space, list) else [space]) if _is_range(one)]
    if ranges:
        return any(one.get("log") or one.get("log2") for one in ranges)
    return bool(every.max() >= WIDE * every.min())


def _is_range(content: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict) and "low" in content


def _numbers(numbers: np.ndarray, *, is_log: bool) -> Values:
    known = numbers[np.isfinite(numbers)]
    low, high = float(known.min()), float(known.max())
    if is_log:
        ticks = _log_ticks(low, high)
        places = np.log(numbers / low) / np.log(high / low)
        at = np.log(ticks / low) / np.log(high / low)
    else:
        whole = bool((known == known.round()).all())
        every = np.asarray(MaxNLocator(4, integer=whole).tick_values(low, high))
        ticks = every[(every >= low) & (every <= high)]
        places, at = (numbers - low) / (high - low), (ticks - low) / (high - low)
    return Values(places, tuple(at), tuple(map(parts.number, ticks)), is_named=False)


def _are_doublings(numbers: np.ndarray) -> bool:
    powers = np.log2(numbers)
    return bool(np.allclose(powers, powers.round()))


def _log_ticks(low: float, high: float) -> np.ndarray:
    """Return round numbers between two ends: powers of two of batches and the like, else of ten."""
    if low >= 1 and _are_doublings(np.array([low, high])):
        powers = np.arange(np.log2(low), np.log2(high) + 0.5)
        return np.asarray(2.0 ** powers[:: max(-(-len(powers) // 5), 1)])
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = powers if high / low > 90 else np.sort(np.outer(powers, (1, 2, 5)).ravel())
    ticks = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
    if len(ticks) < 2:  # a narrow range, without a round number in it
        return np.array([float(f"{end:.2g}") for end in np.geomspace(low, high, 3)])
    return np.asarray(ticks[:: max(-(-len(ticks) // 5), 1)])


def _names(texts: "pd.Series[str]", known: Sequence[str]) -> Values:
    """`known`: the different ones, in the order of the axis."""
    counts = texts.value_counts()
    often = set(counts.index[:MOST_NAMES])
    if len(counts) > MOST_NAMES:
        often = set(counts.index[: MOST_NAMES - 1])
    names = [name for name in dict.fromkeys((*known, *counts.index)) if name in often]
    names += ["others"] if len(counts) > MOST_NAMES else []
    order = {name: place for place, name in enumerate(names)}
    codes = np.array([order.get(text, len(names) - 1) for text in texts], dtype=float)
    # Always the same scatter: a figure of the same study is the same figure.
    scatter = np.random.default_rng(0).uniform(-0.28, 0.28, len(codes))
    places, ticks = (codes + 0.5 + scatter) / len(names), np.arange(len(names)) + 0.5
    labels = tuple(parts.plain(_short(name)) for name in names)
    return Values(places, tuple(ticks / len(names)), labels, True, 1 / len(names))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
