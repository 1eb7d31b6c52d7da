"""Whether a run that has lost its workers is given new ones."""

from collections.abc import Callable

from raybench.cluster.protocol import HostLeaves, RunFailed
from raybench.cluster.reach import MISNAMED
from raybench.core.record import MACHINE_FAULTS

RESTARTS = 3
"""How often in a row a run is given new workers and gets no further than the checkpoint it has;
then it has failed. Nothing else tries again what the machine broke."""


class Restarts:
    """Counts those in a row after which a run has no newer checkpoint."""

    def __init__(self, goes_on: Callable[[], bool]) -> None:
        """`goes_on` is asked before each of them."""
        self._goes_on = goes_on
        self._in_a_row = 0

    def allow(self, failed: RunFailed, *, given: int) -> None:
        """Count one more; raise what has failed where the run gets no new workers after it.

        `given` is how often it has been given some so far, for the message. A host that leaves
        does not count.
        """
        is_final = failed.failure not in MACHINE_FAULTS or failed.message.startswith(MISNAMED)
        if is_final or not self._goes_on():
            raise failed
        is_counted = not isinstance(failed, HostLeaves)
        if is_counted and self._in_a_row == RESTARTS:
            tried = f"{failed.message} (given new workers {given} times)"
            raise RunFailed(failed.failure, tried, failed.traceback)
        self._in_a_row += is_counted

    def got_further(self) -> None:
        """The run has a newer checkpoint: begin to count again."""
        self._in_a_row = 0
