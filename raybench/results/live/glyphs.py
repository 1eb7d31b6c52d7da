"""Curves and bars of characters: blocks, or ASCII where the terminal cannot show them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """Characters of one kind of terminal."""

    levels: str
    """Of a curve, from the lowest to the highest."""
    done: str
    """Of a bar: what is done."""
    left: str
    """Of a bar: what is not."""


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "━", "╌")
ASCII = Glyphs("_.:-=+*#", "#", ".")
GAP = " "
"""Of a curve, where the value is no number."""


def glyphs_for(encoding: str) -> Glyphs:
    """Return the characters that text in `encoding` can hold."""
    try:
        "".join((BLOCKS.levels, BLOCKS.done, BLOCKS.left)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(
    values: Sequence[float], width: int, glyphs: Glyphs, *, low: float, high: float
) -> str:
    """Return a curve in at most `width` characters, the lowest level at `low`, the highest at
    `high`.

    Of more values than there is room for, each character is the last of its part.
    """
    count = min(len(values), width)
    shown = [values[(number + 1) * len(values) // count - 1] for number in range(count)]
    return "".join(_level(value, glyphs.levels, low, high) for value in shown)


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest of the values that are numbers; (0, 0) without any."""
    known = [value for value in values if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 0.0)


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of `width` characters, `share` of it done."""
    done = round(width * min(max(share, 0.0), 1.0))
    return glyphs.done * done + glyphs.left * (width - done)


def _level(value: float, levels: str, low: float, high: float) -> str:
    if math.isnan(value):
        return GAP
    if high <= low:
        return levels[0]
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return levels[min(int(share * len(levels)), len(levels) - 1)]
