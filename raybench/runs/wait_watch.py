"""The Ray session of a command, and what runs wait for, shown while they do.

A study that waits, or runs, too long is ended, and so is a run that does not answer once its study
is over. What Ray and Ray Tune print goes to a file: of a
worker that died, a paragraph of guesses.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

from rich.console import Console

from raybench.cluster.queue import Waiting
from raybench.cluster.session import Session, busy_sentence, chosen_address
from raybench.cluster.signals import Interrupt
from raybench.report.console import say
from raybench.report.live.progress import ProgressDisplay
from raybench.runs.deadline import Deadline
from raybench.spec.errors import StudyError
from raybench.spec.text import redact_text
from raybench.training.machine import nvml_sees, used_gpus

RAY_LOG = "ray.log"
"""The file, in the folder of a study."""


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what is printed meanwhile to a file; the screen has its own handle of the terminal."""
    with log.open("a") as file:
        told: Any = _Redacting(file)
        with (
            contextlib.redirect_stdout(told),
            contextlib.redirect_stderr(told),
            _logged_to(told),
        ):
            yield


@contextlib.contextmanager
def _logged_to(told: TextIO) -> Iterator[None]:
    """Send what Ray logs there, too: its handler holds the standard error that it began with."""
    handlers = [
        one
        for one in logging.getLogger("ray").handlers
        if isinstance(one, logging.StreamHandler) and not isinstance(one, logging.FileHandler)
    ]
    before = [one.setStream(told) for one in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


class _Redacting:
    """A text file that is told no secrets; a print's text comes as a whole."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        self._file.write(redact_text(text, os.environ))
        return len(text)


ASK_S = 2.0
"""Seconds between two questions; none is asked while every run trains."""
GRACE_S = 10.0
"""Seconds for which a run may go on to its next evaluation, once its phase is over."""


class WaitWatch:
    """A thread of the driver, beside whatever waits there for its workers."""

    def __init__(
        self,
        session: Session,
        deadline: Deadline,
        show: Callable[[Mapping[str, Waiting]], None],
        say: Callable[[str], None],
        *,
        is_starting: Callable[[], bool],
        wait_s: float | None = None,
    ) -> None:
        """Ask the session's pool what runs wait for and `show` it, while a run `is_starting`.

        A trial that has waited for machines for more than `wait_s` seconds ends the study by
        `deadline`. Once that is over no run waits any more, and what runs has `GRACE_S` seconds to
        come to its next evaluation: then, or once the time for everything is spent, its workers
        are ended, whatever its loop does, and `say` is told of it.
        """
        self._session, self._deadline, self._show, self._say = session, deadline, show, say
        self._is_starting, self._wait_s = is_starting, wait_s
        self._over_since: float | None = None
        """Moment at which the phase that runs was first seen to be over."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wait-watch", daemon=True)
        self._fault: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the thread; what went wrong in it is raised, unless something else was before."""
        self._stop.set()
        self._thread.join()
        if error is None and self._fault is not None:
            raise self._fault

    def _watch(self) -> None:
        try:
            while not self._stop.wait(ASK_S):
                if self._deadline.over:
                    self._end()
                    continue
                self._over_since = None
                if self._is_starting():
                    self._look()
        except Exception as error:  # noqa: BLE001 (raised when the study's own thread is done)
            self._fault = error

    def _end(self) -> None:
        """End what waits, and after a while what runs."""
        self._over_since = self._over_since or time.perf_counter()
        if self._is_starting() or self._deadline.is_spent:
            self._session.stop_waiting()  # those whose workers start are not among the waiting
        if self._deadline.is_spent:
            ended = self._session.stop_running()
        elif time.perf_counter() - self._over_since >= GRACE_S:
            ended = self._session.stop_running(GRACE_S)
        else:
            return
        for name, seconds in ended.items():
            if seconds >= GRACE_S:
                self._say(
                    f"run {name} did not answer for {seconds:.0f} s: its workers were ended; the "
                    "same command resumes."
                )

    def _look(self) -> None:
        waiting = self._session.waiting()
        self._show(waiting)
        for trial, one in waiting.items():
            if self._wait_s is not None and one.short_s > self._wait_s and not self._deadline.over:
                self._deadline.ends_with(
                    StudyError(
                        f"trial {trial} has waited {one.short_s:.0f} s (--wait {self._wait_s:g}) "
                        f"for {one.what}; run the same command again when the machines are "
                        "there: what is recorded is kept."
                    )
                )


def watching(
    session: Session, progress: ProgressDisplay, deadline: Deadline, wait_s: float | None
) -> WaitWatch:
    """Return what shows on a study's screen what its runs wait for, and ends too long a wait."""

    def show(waiting: Mapping[str, Waiting]) -> None:
        shown = {name: (one.what, one.seconds) for name, one in waiting.items()}
        progress.waiting(shown, head=head_of(waiting))

    return WaitWatch(
        session,
        deadline,
        show,
        progress.say,
        is_starting=lambda: progress.is_starting,
        wait_s=wait_s,
    )


class Waits(WaitWatch):
    """Says what the runs of a command wait for that has one at a time."""

    def __init__(
        self, session: Session, console: Console, deadline: Deadline, wait_s: float | None
    ) -> None:
        self._console, self._told = console, ""
        self.is_training = False
        """Set it at the first evaluation; while it is, nobody is asked."""
        super().__init__(
            session,
            deadline,
            self._tell,
            partial(say, console),
            is_starting=lambda: not self.is_training,
            wait_s=wait_s,
        )

    def _tell(self, waiting: Mapping[str, Waiting]) -> None:
        what = "".join(one.what for one in waiting.values())
        if what not in ("", self._told):
            say(self._console, f"waits for {what}")
        self._told = what or self._told


def head_of(waiting: Mapping[str, Waiting]) -> str | None:
    """Return the first trial for which the machines are missing, whatever our own runs hold."""
    return next((trial for trial, one in waiting.items() if one.short_s > 0), None)


@contextlib.contextmanager
def live_session(address: str | None, interrupt: Interrupt, console: Console) -> Iterator[Session]:
    """Open a session for a command, and close it; a Ctrl-C meanwhile is raised once it is open."""
    is_here = chosen_address(address) is None
    looked = [busy_sentence(), used_gpus(nvml_sees())] if is_here else []
    busy = [f"{sentence[0].upper()}{sentence[1:]}" for sentence in looked if sentence is not None]
    for sentence in busy:
        say(console, sentence)
    with Session(address=address) as session, interrupt.needing(session.lost):
        session.notes += busy
        interrupt.listen()  # again: what a library may have taken meanwhile
        interrupt.check()
        if session.warning is not None:
            say(console, session.warning)
        yield session
