"""When a whole search ends early: Ctrl-C, or its time budget."""

import time
from typing import Any

from ray.tune import Stopper

from raybench.cluster.signals import Interrupt


class Control(Stopper):  # type: ignore[misc, unused-ignore]
    """Asked by Tune after every result; stops all trials once the search is over."""

    def __init__(self, time_budget_s: float | None, *, began: float) -> None:
        """`began` is the `perf_counter` from which the budget counts."""
        self._interrupt = Interrupt()
        self._deadline = None if time_budget_s is None else began + time_budget_s

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether this trial must stop now."""
        return self.over

    def stop_all(self) -> bool:
        """Whether all trials must stop now."""
        return self.over

    def listen(self) -> None:
        """Take Ctrl-C from now on."""
        self._interrupt.listen()

    @property
    def over(self) -> bool:
        """Whether nothing may start any more."""
        return self.reason() is not None

    @property
    def interrupted(self) -> bool:
        """Whether the user asked to stop."""
        return self._interrupt.is_set

    def reason(self) -> str | None:
        """Why the search is over; None while it is not."""
        if self.interrupted:
            return "interrupted"
        is_late = self._deadline is not None and time.perf_counter() >= self._deadline
        return "time_budget" if is_late else None
