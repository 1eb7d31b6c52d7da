"""Positions of the ranks in a user's training loop, and whether the ranks can still synchronize.

A loop that waits for other ranks is blocked. Therefore each worker observes its loop from another
thread (`own.OwnTrainer`) and sends the loop's position to the worker pool, which compares it with
the positions on the other ranks.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

STUCK_S = 5.0
"""Seconds after which a rank counts as stuck in a collective that another rank has not begun."""


class Call(enum.IntEnum):
    """Calls of `own.Run` that synchronize all ranks."""

    TRAINING = 1
    """Start of the context `Run.training`."""
    TRAINED = 2
    """End of the context `Run.training`."""
    REPORT = 3
    """`Run.report`."""

    @property
    def words(self) -> str:
        """Name of the call in error messages."""
        return ("run.training()", "the end of run.training()", "run.report")[self - 1]


@dataclass(frozen=True, kw_only=True)
class Position:
    """Position of one rank in the user's training loop."""

    rank: int
    num_calls: int
    """Number of synchronizing calls (`Call`) that this rank has begun, including the call at which
    it waits."""
    waits_at: Call | None = None
    """Call at which this rank waits for the other ranks; None while it runs."""
    is_training: bool = False
    """Whether this rank is inside `run.training()`."""
    left: str | None = None
    """How this rank has left the loop, such as `returned`; None while it is in the loop."""
    num_exchanges: int | None = None
    """Number of collectives of the loop itself, such as DDP's, that this rank has begun since the
    last synchronizing call; None if unknown."""
    still_s: float = 0.0
    """Seconds since `num_exchanges` last changed."""
    place: str = ""
    """File and line of the user's code that runs now, such as `train.py, line 17`."""

    @property
    def words(self) -> str:
        """Description of the position, for use in error messages."""
        where = f" ({self.place})" if self.place else ""
        if self.left is not None:
            return f"rank {self.rank} has left the loop ({self.left})"
        if self.waits_at is not None:
            return f"rank {self.rank} waits at {self.waits_at.words}{where}"
        inside = "in run.training()" if self.is_training else "outside of run.training()"
        return f"rank {self.rank} is {inside}{where}"

    @property
    def num_completed_calls(self) -> int:
        """Number of synchronizing calls that this rank has completed."""
        return self.num_calls - (self.waits_at is not None)

    def lacks(self, other: "Position") -> bool:
        """Return whether the rank `other` is stuck in a collective that this rank has not begun."""
        # If the numbers differ, one of the two positions is out of date.
        if self.num_completed_calls != other.num_completed_calls:
            return False
        if self.num_exchanges is None or other.num_exchanges is None:
            return False
        return other.num_exchanges > self.num_exchanges and other.still_s >= STUCK_S


def parting(positions: Collection[Position]) -> str | None:
    """Return a sentence about two ranks that can never synchronize again; None if there are none.

    A long wait is no error: rank 0 may evaluate for an hour while the other ranks wait. Only two
    cases are reported: a rank waits for a rank that has left the loop, or a rank is stuck in a
    collective of the loop while another rank waits at a `Call`. Neither case can resolve itself,
    even if the positions are slightly out of date.
    """
    for position in positions:
        for other in positions:
            if other.left is not None or other is position:
                continue
            if position.left is not None:
                is_awaited = other.num_calls > position.num_calls and other.waits_at is not None
                is_awaited |= other.is_training and other.num_calls >= position.num_calls
                if is_awaited or position.lacks(other):
                    return (
                        f"{position.words} and {other.words}; let all ranks end together, such as "
                        "when run.report returns True"
                    )
            elif (
                position.waits_at and other.num_calls < position.num_calls and position.lacks(other)
            ):
                return (
                    f"{position.words} and {other.words}, in a collective that rank "
                    f"{position.rank} does not take part in; give all ranks equally many batches "
                    "and the same calls"
                )
    return None


def mismatch(calls: Sequence[Call]) -> str | None:
    """Return a sentence if the ranks have synchronized at different calls, otherwise None.

    Args:
        calls: Call of each rank, in rank order.
    """
    if len(set(calls)) == 1:
        return None
    first = calls[0]
    rank, other = next((rank, call) for rank, call in enumerate(calls) if call != first)
    return (
        f"rank 0 is at {first.words} and rank {rank} at {other.words}; call run.training() and "
        "run.report in the same order on all ranks"
    )
