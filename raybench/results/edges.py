"""Whether the winner lies at the end of a searched range: what is best may lie beyond it."""

import math
from collections.abc import Mapping
from typing import Any

from raybench.core.errors import UserError
from raybench.core.parse_space import parse_space
from raybench.core.space import SEARCHABLE, Dimension, Powers, Range, Space, resolve
from raybench.core.spec import RunSpec
from raybench.results.load import StudyResults
from raybench.results.verdict import Verdict

NEAR = 0.05
"""Share of a range from its end that is at the end."""


def edge_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return a sentence that names the keys of the fastest at an end of their range."""
    space = None if verdict is None else _space(results.study["study"])
    if verdict is None or space is None:
        return []
    spec = results.specs[verdict.fastest]
    ends: dict[str, list[str]] = {"upper": [], "lower": []}
    for key, dimension in space.items():
        if (end := end_of(dimension, key, spec)) is not None:
            ends[end].append(key)
    return [
        f"{' and '.join(keys)} of trial {verdict.fastest} {_lies(keys)} at the {end} end of "
        f"{'its range' if len(keys) == 1 else 'their ranges'}: widen "
        f"{'it' if len(keys) == 1 else 'them'}."
        for end, keys in ends.items()
        if keys
    ]


def end_of(dimension: Dimension, key: str, spec: RunSpec) -> str | None:
    """Return at which end of a range the value of `key` lies: upper, lower; None within it.

    A list has no ends. Nor is there anything below 0 of a range, and 1 of whole numbers.
    """
    found = resolve(dimension, {one: getattr(spec, one) for one in SEARCHABLE})
    value = getattr(spec, key)
    if not isinstance(found, Range | Powers) or found.high <= found.low or value is None:
        return None
    is_log = isinstance(found, Powers) or found.log
    low, high, at = (math.log(end) if is_log else end for end in (found.low, found.high, value))
    place = (at - low) / (high - low)
    if place >= 1 - NEAR:
        return "upper"
    least = 1 if isinstance(found, Powers) or found.is_integer else 0
    return "lower" if place <= NEAR and found.low > least else None


def _space(study: Mapping[str, Any]) -> Space | None:
    """Return the space that a study has searched; None where its file has another version's, of
    whose ends nothing is said."""
    try:
        return parse_space(study.get("space") or {}, study.get("fixed") or {}, "study.yaml")
    except UserError:
        return None


def _lies(keys: list[str]) -> str:
    return "lies" if len(keys) == 1 else "lie"
