"""The Ray session of a command, its deadline, and a thread that monitors waiting runs.

The thread ends a study that waits too long for resources, and ends runs that do not react when
their study is over. The output of Ray and Ray Tune is redirected to a file.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from raybench.cluster.session import Session, chosen_address
from raybench.cluster.signals import Interrupt
from raybench.report.console import say
from raybench.report.progress import ProgressDisplay
from raybench.spec.errors import StudyError
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.spec.text import redact_text
from raybench.stats.record import Evaluation, RunRecord
from raybench.training.machine import gpus_of_driver, used_gpus

CLOSING_S = 6.0
"""Seconds of a time budget reserved for ending Ray and writing results (measured: 3 to 5 s)."""
CLOSING_SHARE = 0.1
"""Largest fraction of a time budget that is reserved; a short budget reserves less than
CLOSING_S."""


class Deadline:
    """End of a study: by Ctrl-C, by its time budget or by an error.

    It is checked after every evaluation. Once it is `over`, no run starts and all runs stop.

    Args:
        time_budget_s: Time budget of the whole command in seconds; None for no limit.
        interrupt: Records whether the user asked to stop, and when the time budget began; None if
            the user cannot stop the study, whose budget then begins now.
    """

    def __init__(self, time_budget_s: float | None, *, interrupt: Interrupt | None = None) -> None:
        self._interrupt, self.time_budget_s = interrupt or Interrupt(), time_budget_s
        self.began = self._interrupt.began
        """Value of `perf_counter` at which the budget began."""
        self._deadline = math.inf
        if time_budget_s is not None:
            closing = min(CLOSING_S, CLOSING_SHARE * time_budget_s)
            self._deadline = self.began + time_budget_s - closing
        self._reserved_s = 0.0
        self.fault: Exception | None = None
        """Error that ends the study; `raise_fault` raises it once all runs have stopped."""

    @property
    def over(self) -> bool:
        """Whether no further run may start, and running runs must stop."""
        return self.reason() is not None

    @property
    def interrupted(self) -> bool:
        """Whether the user asked to stop or an error has ended the study."""
        return self._interrupt.is_set or self.fault is not None

    @property
    def left_s(self) -> float:
        """Remaining seconds of the time budget, including those reserved for later phases;
        infinite without a time budget."""
        return self._deadline - time.perf_counter()

    @property
    def is_spent(self) -> bool:
        """Whether the whole time budget is used up, including the reserved seconds."""
        return self.left_s <= 0

    def reason(self) -> StopReason | None:
        """Return why the current phase of the study is over; None if it is not over."""
        if self.interrupted:
            return StopReason.INTERRUPTED
        return StopReason.TIME_BUDGET if self.left_s <= self._reserved_s else None

    def reserve(self, seconds: float) -> None:
        """Reserve seconds of the time budget for later phases of the study.

        The current phase is over once only these seconds remain. An earlier reservation is
        replaced.
        """
        self._reserved_s = seconds

    @contextlib.contextmanager
    def reserving(self, seconds: float) -> Iterator[None]:
        """Context manager of a phase that leaves `seconds` of the time budget to later phases."""
        self.reserve(seconds)
        try:
            yield
        finally:
            self.reserve(0.0)

    def ends_with(self, fault: Exception) -> None:
        """End the study with an error; if there are several, `raise_fault` raises the first."""
        self.fault = self.fault or fault

    def raise_fault(self) -> None:
        """Raise the error that ended the study, if there is one."""
        if self.fault is not None:
            raise self.fault


RAY_LOG = "ray.log"
"""Name of the file in a study's folder to which the output of Ray is written."""


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Context manager that redirects stdout, stderr and Ray's log to a file.

    raybench's console has its own reference to stdout, so its output is not redirected.
    """
    with log.open("a") as file:
        redacting: Any = _Redacting(file)
        # Ray's log handler uses the stderr of the time when it was created, so it is changed too.
        handlers = [
            handler
            for handler in logging.getLogger("ray").handlers
            if isinstance(handler, logging.StreamHandler)
            and not isinstance(handler, logging.FileHandler)
        ]
        streams = [handler.setStream(redacting) for handler in handlers]
        try:
            with contextlib.redirect_stdout(redacting), contextlib.redirect_stderr(redacting):
                yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                if stream is not None:
                    handler.setStream(stream)


class _Redacting:
    """A text file that masks secrets in what is written to it.

    A secret is never split between two calls of `write`, because `print` passes its text as a
    whole.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        self._file.write(redact_text(text, os.environ))
        return len(text)


ASK_S = 2.0
"""Seconds between two queries of the worker pool about waiting runs; no query is made while all
runs train."""
GRACE_S = 10.0
"""Seconds within which a run must reach its next evaluation once the phase of the study is over."""


class RunLines:
    """Display for commands that have one run at a time: prints notes, and what a run waits for."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, ""
        self.is_starting = False
        """Whether the current run has no evaluation yet, and may still wait for workers."""

    def started(self, name: str, spec: RunSpec) -> None:
        """Record that a run has requested workers."""
        self.is_starting = True

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Record that a run has reached an evaluation."""
        self.is_starting = False

    def finished(self, record: RunRecord) -> None:
        """Record that a run has ended."""
        self.is_starting = False

    def waiting(self, what: Mapping[str, tuple[str, float]], *, head: str | None = None) -> None:
        """Print what each run without workers waits for, if that has changed."""
        del head
        resources = "".join(resource for resource, _ in what.values())
        if resources not in ("", self._shown):
            self.say(f"waits for {resources}")
        self._shown = resources or self._shown

    def say(self, text: str) -> None:
        """Print a sentence."""
        say(self._console, text)


RunScreen = RunLines | ProgressDisplay
"""Type of a display that shows runs and what they wait for."""


class WaitWatch:
    """Context manager with a thread that shows what runs wait for, and ends runs that do not stop
    in time.

    Once `deadline` is over, requests for workers are canceled, and runs that train have GRACE_S
    seconds to reach their next evaluation. After that, or once the time budget is used up, their
    workers are ended.

    Args:
        session: Ray connection with the worker pool.
        deadline: End of the study or of its current phase.
        screen: Shows what runs wait for.
        wait_s: Total seconds that a run may wait for resources before the study is ended; None for
            no limit.
    """

    def __init__(
        self,
        session: Session,
        deadline: Deadline,
        screen: RunScreen,
        *,
        wait_s: float | None = None,
    ) -> None:
        self._session, self._deadline, self._screen = session, deadline, screen
        self._wait_s = wait_s
        self._over_since: float | None = None
        """Time (`perf_counter`) at which the thread noticed that the phase is over; None before."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wait-watch", daemon=True)
        self._fault: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the thread, and raise its error unless the context is left by another error."""
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
                if self._screen.is_starting:
                    self._check_waiting()
        except Exception as error:  # noqa: BLE001 (raised on exit, in the thread of the study)
            self._fault = error

    def _end(self) -> None:
        """Cancel requests for workers, and after GRACE_S seconds end the runs that do not stop."""
        self._over_since = self._over_since or time.perf_counter()
        if self._screen.is_starting or self._deadline.is_spent:
            self._session.stop_waiting()  # also cancels runs whose workers are starting
        if self._deadline.is_spent:
            ended_runs = self._session.stop_running()
        elif time.perf_counter() - self._over_since >= GRACE_S:
            ended_runs = self._session.stop_running(GRACE_S)
        else:
            return
        for name, seconds in ended_runs.items():
            if seconds >= GRACE_S:
                self._screen.say(
                    f"run {name} had not reported for {seconds:.0f} s at the end: its workers were "
                    "ended; the same command resumes."
                )

    def _check_waiting(self) -> None:
        waiting = self._session.waiting()
        head = next((trial for trial, request in waiting.items() if request.short_s > 0), None)
        waits = {trial: (request.what, request.seconds) for trial, request in waiting.items()}
        self._screen.waiting(waits, head=head)
        for trial, request in waiting.items():
            if (
                self._wait_s is not None
                and request.short_s > self._wait_s
                and not self._deadline.over
            ):
                self._deadline.ends_with(
                    StudyError(
                        f"trial {trial} has waited {request.short_s:.0f} s (--wait "
                        f"{self._wait_s:g}) for {request.what}; rerun the same command once the "
                        "machines are available; what is recorded is kept."
                    )
                )


@contextlib.contextmanager
def live_session(address: str | None, interrupt: Interrupt, console: Console) -> Iterator[Session]:
    """Context manager that opens a Ray session for a command, and closes it afterwards.

    A Ctrl-C while the session is being opened is raised once it is open.
    """
    is_here = chosen_address(address) is None
    busy = used_gpus(gpus_of_driver()) if is_here else None
    if busy is not None:
        say(console, busy := f"{busy[0].upper()}{busy[1:]}")
    with Session(address=address) as session, interrupt.needing(session.lost):
        session.notes += [busy] if busy is not None else []
        interrupt.listen()  # once more, since a library may have replaced a signal handler
        interrupt.check()
        if session.warning is not None:
            say(console, session.warning)
        try:
            yield session
        except Exception as error:
            if (lost := session.lost()) is None:
                raise
            raise StudyError(f"{lost}; rerun the same command to resume.") from error
