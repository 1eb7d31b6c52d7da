"""Positions of the ranks in a training loop of the user's own, and whether the ranks can still
meet.

A rank that waits for the others says nothing by itself. Each worker looks at its loop from a
second thread (`own.OwnTrainer`) and compares what it sees with the other ranks.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

STUCK_S = 5.0
"""Seconds after which an exchange that another rank has not begun counts as stuck."""


class Call(enum.IntEnum):
    """Calls of `Run` at which all ranks meet."""

    TRAINING = 1
    TRAINED = 2
    REPORT = 3

    @property
    def words(self) -> str:
        """The call as a sentence names it."""
        return WORDS[self]


WORDS = {
    Call.TRAINING: "run.training()",
    Call.TRAINED: "the end of run.training()",
    Call.REPORT: "run.report",
}


@dataclass(frozen=True, kw_only=True)
class Position:
    """Position of one rank in its loop."""

    rank: int
    num_calls: int
    """Calls at which all ranks meet that this rank has come to; the one where it waits included."""
    waits_at: Call | None = None
    """Line at which it waits for the other ranks; None while it runs."""
    is_training: bool = False
    """Whether it is inside `run.training()`."""
    left: str | None = None
    """End of its loop; None while it is in the loop."""
    num_exchanges: int | None = None
    """Collectives of the loop's own that this rank has begun since the last call at which all
    ranks met, such as DDP's; None if unknown."""
    still_s: float = 0.0
    """Seconds since `num_exchanges` last changed."""
    place: str = ""
    """File and line of the user's code, such as `train.py, line 17`."""

    @property
    def words(self) -> str:
        """The position as a sentence names it."""
        where = f" ({self.place})" if self.place else ""
        if self.left is not None:
            return f"rank {self.rank} has left the loop ({self.left})"
        if self.waits_at is not None:
            return f"rank {self.rank} waits at {self.waits_at.words}{where}"
        inside = "in run.training()" if self.is_training else "outside of run.training()"
        return f"rank {self.rank} is {inside}{where}"

    @property
    def num_met(self) -> int:
        """Calls at which this rank has met the others."""
        return self.num_calls - (self.waits_at is not None)

    def lacks(self, other: "Position") -> bool:
        """Whether `other` waits in an exchange that this rank has not begun."""
        if self.num_met != other.num_met:  # a position of before the last call
            return False
        if self.num_exchanges is None or other.num_exchanges is None:
            return False
        return other.num_exchanges > self.num_exchanges and other.still_s >= STUCK_S


def parting(positions: Collection[Position]) -> str | None:
    """Return a sentence if some ranks can never meet again, or None.

    Slowness is no reason: rank 0 may evaluate for an hour while the others wait. A reason is what
    cannot end well, however old the positions are: a rank that waits for one that has left, and an
    exchange that lacks a rank that waits for the others.
    """
    for one in positions:
        for other in positions:
            if other.left is not None or other is one:
                continue
            if one.left is not None:
                is_awaited = other.num_calls > one.num_calls and other.waits_at is not None
                is_awaited |= other.is_training and other.num_calls >= one.num_calls
                if is_awaited or one.lacks(other):
                    return (
                        f"{one.words} and {other.words}; let all ranks end together, as where "
                        "run.report returns True"
                    )
            elif one.waits_at and other.num_calls < one.num_calls and one.lacks(other):
                return (
                    f"{one.words} and {other.words}, in an exchange that rank {one.rank} does "
                    "not take part in; give all ranks as many batches and the same calls"
                )
    return None


def mismatch(calls: Sequence[Call]) -> str | None:
    """Return a sentence if the ranks have met at different calls; `calls` are by rank."""
    if len(set(calls)) == 1:
        return None
    first = calls[0]
    rank, other = next((rank, call) for rank, call in enumerate(calls) if call != first)
    return (
        f"rank 0 is at {first.words} and rank {rank} at {other.words}; call run.training() and "
        "run.report on all ranks alike"
    )
