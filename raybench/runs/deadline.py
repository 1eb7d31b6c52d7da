"""When a whole study ends: by Ctrl-C, its time budget, or an error."""

import math
import time

from raybench.cluster.signals import Interrupt
from raybench.stats.record import StopReason

CLOSING_S = 6.0
"""Seconds of a time budget reserved for ending Ray and writing results (measured: 3 to 5 s)."""
CLOSING_SHARE = 0.1
"""Largest fraction of the time budget that is reserved for that."""


class Deadline:
    """End of a study, checked after every evaluation. Once `over`, no run starts and all runs stop.

    `reserve_s` is the part of the time budget in seconds that is reserved for later phases of the
    study. `fault` is the error that ends the study; call `raise_fault` once all runs have stopped.
    """

    def __init__(
        self,
        time_budget_s: float | None,
        *,
        began: float | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        """Start a time budget.

        Args:
            time_budget_s: time budget of the whole command in seconds; None for no limit.
            began: value of `perf_counter` at which the budget starts; None for now.
            interrupt: its `is_set` says whether the user asked to stop; None if nobody can.
        """
        self._interrupt, self.time_budget_s = interrupt or Interrupt(), time_budget_s
        self.began = time.perf_counter() if began is None else began
        self._deadline = math.inf
        if time_budget_s is not None:
            closing = min(CLOSING_S, CLOSING_SHARE * time_budget_s)
            self._deadline = self.began + time_budget_s - closing
        self.reserve_s = 0.0
        self.fault: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether no further run may start, and running runs must stop."""
        return self.reason() is not None

    @property
    def interrupted(self) -> bool:
        """Whether the user asked to stop or an error ends the study."""
        return self._interrupt.is_set or self.fault is not None

    @property
    def left_s(self) -> float:
        """Seconds until the end, including `reserve_s`; infinite without a time budget."""
        return self._deadline - time.perf_counter()

    @property
    def is_spent(self) -> bool:
        """Whether the time budget is used up, including `reserve_s`."""
        return self.left_s <= 0

    def reason(self) -> StopReason | None:
        """Return why the current phase of the study is over; None if it is not over."""
        if self.interrupted:
            return "interrupted"
        return "time_budget" if self.left_s <= self.reserve_s else None

    def ends_with(self, fault: Exception) -> None:
        """End the study with an error; if there are several, `raise_fault` raises the first."""
        self.fault = self.fault or fault

    def raise_fault(self) -> None:
        """Raise the error that ended the study, if there is one."""
        if self.fault is not None:
            raise self.fault
