"""Early end of a whole search: Ctrl-C, its time budget, or a fault of the study itself."""

import math
import time

from raybench.cluster.protocol import fault_of
from raybench.cluster.signals import Interrupt
from raybench.stats.record import RunRecord, StopReason

CLOSING_S = 6.0
"""Kept of a time budget for what comes last: ending Ray, tables, pictures (measured: 3 to 5 s)."""
CLOSING_SHARE = 0.1
"""At most this share of the budget."""


class Deadline:
    """Asked after every evaluation; once it is `over`, nothing starts and what runs stops."""

    def __init__(
        self,
        time_budget_s: float | None,
        *,
        began: float | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        """`began` is the `perf_counter` from which the budget counts; none is now."""
        self._interrupt = interrupt or Interrupt()
        self.time_budget_s = time_budget_s
        """Time budget of the whole command, as it was asked for."""
        self.began = time.perf_counter() if began is None else began
        self._deadline = math.inf
        if time_budget_s is not None:
            closing = min(CLOSING_S, CLOSING_SHARE * time_budget_s)
            self._deadline = self.began + time_budget_s - closing
        self.reserve_s = 0.0
        """Seconds before the deadline that are set aside for later phases."""
        self.fault: Exception | None = None
        """Error that ended the study, raised when its trials have stopped."""

    @property
    def over(self) -> bool:
        """Whether nothing may start any more."""
        return self.reason() is not None

    @property
    def interrupted(self) -> bool:
        """Whether the user asked to stop, or the study cannot go on."""
        return self._interrupt.is_set or self.fault is not None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, what is set aside included; infinite without a budget."""
        return self._deadline - time.perf_counter()

    @property
    def is_spent(self) -> bool:
        """Whether the budget is at its end, what was set aside for later phases too."""
        return self.left_s <= 0

    def reason(self) -> StopReason | None:
        """Why the phase that runs is over; None while it is not."""
        if self.interrupted:
            return "interrupted"
        return "time_budget" if self.left_s <= self.reserve_s else None

    def ends_with(self, fault: Exception) -> None:
        """Let a fault end the study; the first one is the one that is raised."""
        self.fault = self.fault or fault

    def raise_fault(self, *, of: RunRecord | None = None) -> None:
        """Raise what has ended the study, if something has, be it this last run of it."""
        if of is not None and (fault := fault_of(of.message)) is not None:
            self.ends_with(fault)
        if self.fault is not None:
            raise self.fault
