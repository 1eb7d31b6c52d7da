"""When a whole search ends early: Ctrl-C, or its time budget."""

import os
import signal
import time
from types import FrameType
from typing import Any

from ray.tune import Stopper


class Control(Stopper):  # type: ignore[misc, unused-ignore]
    """Asked by Tune after every result; stops all trials once the search is over."""

    def __init__(self, time_budget_s: float | None) -> None:
        self.interrupted = False
        self._deadline = None if time_budget_s is None else time.perf_counter() + time_budget_s

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether this trial must stop now."""
        return self.over

    def stop_all(self) -> bool:
        """Whether all trials must stop now."""
        return self.over

    @property
    def over(self) -> bool:
        """Whether nothing may start any more."""
        return self.interrupted or self.time_is_up

    @property
    def time_is_up(self) -> bool:
        """Whether the time budget is used up."""
        return self._deadline is not None and time.perf_counter() >= self._deadline

    def listen(self) -> None:
        """Take Ctrl-C: once stops at the next evaluations, twice ends at once."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.interrupted:
            # Ray's processes end with the driver; the records are flushed line by line.
            os._exit(128 + number)
        self.interrupted = True
