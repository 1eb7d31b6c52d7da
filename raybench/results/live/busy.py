"""How many workers have trained of late: seconds of training, counted by when they were."""

from collections import deque
from collections.abc import Iterable

WINDOW_S = 60.0
"""The last minute."""


class Busy:
    """What finished runs did within the last minute; those that run are told when it is asked."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float, int]] = deque()
        """(from, until, workers) of runs, in the order in which they ended."""

    def ended(self, since_s: float, until_s: float, num_workers: int) -> None:
        """Note a run that has trained from one moment to another."""
        self._ended.append((since_s, until_s, num_workers))
        while self._ended and self._ended[0][1] < until_s - WINDOW_S:
            self._ended.popleft()

    def share(
        self, at: float, running: Iterable[tuple[float, int]], *, of: int, began_s: float
    ) -> float:
        """Return the share of the workers' time of the last minute in which they trained.

        `running` are (since when, workers), `of` all workers; before `began_s` there was nothing.
        """
        begin = max(at - WINDOW_S, began_s)
        spans = [*self._ended, *((since, at, workers) for since, workers in running)]
        worked = sum(
            workers * max(min(until, at) - max(since, begin), 0.0)
            for since, until, workers in spans
        )
        room = of * (at - begin)
        return min(worked / room, 1.0) if room > 0 else 0.0
