"""`--more N`: how many of the runs are left where a session of the same command was ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "more"
"""Of `study.yaml`, while runs of a `--more` are left to be done."""

OVER = "is_over"
"""Of `study.yaml`: whether the confirming came to its end, by itself or by the time budget."""


@dataclass(frozen=True)
class More:
    """The runs that one `--more` is for."""

    asked: int
    until: int
    """Answered runs of the race that there are when it is done."""

    @classmethod
    def of(cls, asked: int, earlier: Mapping[str, Any], raced: int) -> "More":
        """Return the one that an ended session of the same command began, else a new one.

        `earlier` is what `study.yaml` held before, `raced` how many runs of the race have answered.
        """
        begun = earlier.get(KEY)
        until = begun.get("until") if isinstance(begun, dict) else None
        if not isinstance(begun, dict) or begun.get("asked") != asked or type(until) is not int:
            return cls(asked, raced + asked)
        return cls(asked, min(until, raced + asked))

    def left(self, raced: int) -> int:
        """Return how many runs are left."""
        return max(self.until - raced, 0)

    def sentence(self, raced: int) -> str | None:
        """Return what is said where some are done already; None where none is."""
        left = self.left(raced)
        if left == self.asked:
            return None
        return f"continuing --more {self.asked}: {self.asked - left} of its runs are done"

    def document(self) -> dict[str, int]:
        """Return what `study.yaml` holds of it."""
        return {"asked": self.asked, "until": self.until}
