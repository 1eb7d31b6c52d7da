"""The Ray session of a command: signals are taken again, and a warning of this Ray is said."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console

from raybench.cluster.queue import Waiting
from raybench.cluster.session import Session, busy_sentence
from raybench.cluster.signals import Interrupt
from raybench.core.errors import StudyError
from raybench.results.console import say
from raybench.search.wait_watch import WaitWatch


@contextlib.contextmanager
def live_session(address: str | None, interrupt: Interrupt, console: Console) -> Iterator[Session]:
    """Open a session for a command, and close it; a Ctrl-C meanwhile is raised once it is open."""
    if address is None and (sentence := busy_sentence()) is not None:
        say(console, sentence)
    with Session(address=address) as session, interrupt.needing(session.processes):
        interrupt.listen()  # again: what a library may have taken meanwhile
        interrupt.check()
        if session.warning is not None:
            say(console, session.warning)
        yield session


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
