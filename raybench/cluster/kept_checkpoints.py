"""The newest checkpoint of every run, in the pool's memory: what a lost run is continued from.

They go no further by themselves. Replies carry the index alone, since owners hand them on to Ray
Tune, which keeps results; the driver fetches what it writes to the results folder.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from raybench.cluster.protocol import Command, Finished, Progress, Reply, Saved, Start
from raybench.core.checkpoint import Checkpoint, RunState

URGENT_S = 10.0
"""Seconds between two checkpoints of a run that is about to lose a node."""


class KeptCheckpoints:
    """Checkpoints by the names of their runs; lives in the pool's event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._newest: dict[str, Checkpoint] = {}
        self._taken_at: dict[str, float] = {}
        self._clock = clock

    def put(self, trial: str, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in place of an earlier one."""
        self._newest[trial] = checkpoint
        self._taken_at[trial] = self._clock()

    def get(self, trial: str) -> Checkpoint | None:
        """Return a run's newest checkpoint; None where none is kept."""
        return self._newest.get(trial)

    def state(self, trial: str) -> RunState | None:
        """Return where a run would be continued; None from its beginning."""
        found = self._newest.get(trial)
        return None if found is None else found.state

    def forget(self, trial: str) -> None:
        """Drop what is kept of a run that is over."""
        self._newest.pop(trial, None)
        self._taken_at.pop(trial, None)

    def fill_in(self, trial: str, command: Command) -> Command:
        """Return a run's command; one that starts it continues it where that is possible."""
        if isinstance(command, Start):
            return replace(command, resume=self._newest.get(trial))
        return command

    def take(self, trial: str, replies: list[Reply]) -> list[Reply]:
        """Keep what rank 0 has saved; return the replies without it."""
        first = replies[0]
        if isinstance(first, Finished):
            self.forget(trial)
        if not isinstance(first, Progress) or first.checkpoint is None:
            return replies
        self.put(trial, first.checkpoint)
        index = first.checkpoint.state.index
        return [replace(first, checkpoint=None, saved=index), *replies[1:]]

    def may_save(self, trial: str, replies: list[Reply]) -> bool:
        """Whether a run can be saved now, out of turn, and was not a moment ago."""
        first = replies[0]
        if not isinstance(first, Progress) or first.checkpoint is not None:
            return False
        if first.evaluation.stop or first.evaluation.failure:
            return False
        return self._clock() - self._taken_at.get(trial, -URGENT_S) >= URGENT_S


class KeepsCheckpoints:
    """The side of the pool that checkpoints are asked of, and given to, by the driver."""

    def __init__(self) -> None:
        self._kept = KeptCheckpoints()

    def checkpoint(self, trial: str) -> Checkpoint | None:
        """Return the newest checkpoint of a run, for the one process that writes it to a disk."""
        return self._kept.get(trial)

    def restore(self, trial: str, checkpoint: Checkpoint) -> None:
        """Take a checkpoint of an earlier session: the run is continued from it when it starts."""
        self._kept.put(trial, checkpoint)

    def forget(self, trial: str) -> None:
        """Drop the checkpoint of a run that is over."""
        self._kept.forget(trial)


def with_saved(replies: list[Reply], saved: list[Reply]) -> list[Reply]:
    """Return the replies of an evaluation with what was saved after it."""
    merged: list[Reply] = []
    for reply, more in zip(replies, saved, strict=True):
        assert isinstance(reply, Progress)
        assert isinstance(more, Saved)
        busy_s = reply.busy_s + more.busy_s
        merged.append(replace(reply, checkpoint=more.checkpoint, busy_s=busy_s))
    return merged
