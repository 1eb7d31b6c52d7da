"""What a single run waits for, said once each time it is something else."""

from collections.abc import Callable, Mapping

from rich.console import Console

from raybench.cluster.session import Session
from raybench.cluster.waiting import Waiting
from raybench.core.errors import StudyError
from raybench.results.console import say
from raybench.search.wait_watch import WaitWatch


class Waits:
    """Follows the runs of a command that has one at a time."""

    def __init__(self, console: Console, stop_waiting: Callable[[], None]) -> None:
        self._console, self._stop_waiting, self._told = console, stop_waiting, ""
        self.is_training = False
        """Set it at the first evaluation; while it is, nobody is asked."""
        self.fault: StudyError | None = None
        """Why a run has waited too long; raise it when it comes back."""

    def watch(
        self, session: Session, *, is_over: Callable[[], bool], wait_s: float | None
    ) -> WaitWatch:
        """Return the thread that asks; see WaitWatch."""
        return WaitWatch(
            session.waiting,
            self._show,
            self._give_up,
            is_starting=lambda: not self.is_training,
            is_over=is_over,
            wait_s=wait_s,
        )

    def _show(self, waiting: Mapping[str, Waiting]) -> None:
        what = "".join(one.what for one in waiting.values())
        if what not in ("", self._told):
            say(self._console, f"waits for {what}")
        self._told = what or self._told

    def _give_up(self, fault: StudyError | None) -> None:
        self.fault = self.fault or fault
        self._stop_waiting()
