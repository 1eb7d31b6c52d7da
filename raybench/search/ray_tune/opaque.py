"""A trial's result as Ray Tune carries it: few numbers in the open, the rest in one object.

Of every number in a result Tune keeps running averages for as long as the study lives; with
a whole ledger in the open that is a fifth of a megabyte per trial.
"""

from dataclasses import dataclass
from typing import Any

from ray import tune

OPEN = ("train_s", "score", tune.result.DONE)
"""What Tune itself reads."""


@dataclass(frozen=True)
class Rest:
    """What Tune carries without looking at it."""

    content: dict[str, Any]


def wrap(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result as a trainable hands it to Tune."""
    return {key: result[key] for key in OPEN if key in result} | {"rest": Rest(result)}


def unwrap(result: dict[str, Any] | None) -> dict[str, Any]:
    """Return what `wrap` was given; nothing, for a trial that never had a result."""
    rest = (result or {}).get("rest")
    return rest.content if isinstance(rest, Rest) else {}
