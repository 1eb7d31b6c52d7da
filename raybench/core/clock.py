"""The clock and the ledger: where the seconds of a run went."""

import time
from collections.abc import Callable, Mapping

OWNER_PHASES = ("queue", "start", "lost")
WORKER_PHASES = ("setup", "compile", "train", "eval", "checkpoint", "report")
PHASES = OWNER_PHASES + WORKER_PHASES
"""What the seconds of a run are spent on, each measured by itself; `input` is a part of `train`.

| phase | seconds spent |
|---|---|
| queue | from asking for workers until a worker group is given |
| start | starting that group; 0 when it was warm |
| lost | what was repeated after workers were lost, and noticing it; no training time |
| setup | data, model, optimizer: building and releasing them |
| compile | first step, tracing and warm-up on throw-away data |
| train | training: the objective's clock (`input` is waiting for data in it) |
| eval | validation |
| checkpoint | saving weights, and the state that a run is continued from |
| report | results and commands on their way, and the owner's own work between two commands |
"""
OTHER = "other"
"""Seconds of a run's wall time that no phase accounts for: the test of the ledger, below 1 % of
the wall time of a run that ended well. Below zero where the ranks' maxima overlap."""
AWAY = "away"
"""Where a worker's ledger stands between two commands: that time is the owner's to account for."""


class Ledger:
    """Adds wall time to phases; every moment between start and now is in exactly one.

    Kept by each worker with `time.perf_counter`. The device must be synchronised before
    `enter`, so that queued work is charged to the phase that queued it.
    """

    def __init__(
        self,
        phase: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        earlier: Mapping[str, float] | None = None,
    ) -> None:
        """Begin in `phase`; a run that is continued has its `earlier` seconds of each phase."""
        self._clock = clock
        self._seconds = dict.fromkeys((*WORKER_PHASES, AWAY), 0.0)
        for name in WORKER_PHASES:
            self._seconds[name] += (earlier or {}).get(name, 0.0)
        self._phase = phase
        self._since = clock()

    def enter(self, phase: str) -> None:
        """End the present phase and begin another."""
        if phase not in self._seconds:
            raise KeyError(phase)
        now = self._clock()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    @property
    def phase(self) -> str:
        """The present phase."""
        return self._phase

    def seconds(self, phase: str) -> float:
        """Seconds in `phase` so far, the running one included."""
        running = self._clock() - self._since if phase == self._phase else 0.0
        return self._seconds[phase] + running

    def snapshot(self) -> dict[str, float]:
        """Seconds so far of every worker phase."""
        return {name: self.seconds(name) for name in WORKER_PHASES}


def merge_ranks(snapshots: list[Mapping[str, float]]) -> dict[str, float]:
    """Maximum over ranks, phase by phase.

    Ranks wait for one another at every phase edge, so the maxima still sum to the seconds the
    workers were busy (`OTHER` would show it if not).
    """
    return {name: max(snapshot[name] for snapshot in snapshots) for name in snapshots[0]}
