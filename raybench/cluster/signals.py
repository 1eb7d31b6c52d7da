"""Signals that end a command, such as Ctrl-C.

After the first signal, runs stop at their next evaluation and all results are written; a second
signal ends the command at once.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from raybench.spec.errors import FAILED, INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: Ctrl-C, `kill`, and a closed terminal."""
WATCH_S, LAST_WORDS_S = 0.5, 1.0
"""Seconds between two checks that Ray is alive, and seconds for which the command, after the end of
Ray, waits for a signal before it exits."""


class Signalled(KeyboardInterrupt):
    """Raised by a signal that ends the command.

    A plain KeyboardInterrupt raised inside `exec` of a string, as used by dataclasses, makes
    `python -m` exit by SIGINT even if the exception is caught. A subclass does not.
    """


class Interrupt:
    """Records whether the user asked to stop, by Ctrl-C, SIGTERM or a closed terminal.

    `is_set` is True after such a signal. The command sets `can_continue` to True once there are
    results from which the same command can be resumed. `began` is the time (`time.perf_counter`) at
    which the time budget of the command starts.
    """

    def __init__(self, *, owns_process: bool = True) -> None:
        """Create an object that has recorded no signal.

        Args:
            owns_process: True for a command, whose process a second signal ends at once; False for
                a call from Python, in which a second signal raises KeyboardInterrupt.
        """
        self.began = time.perf_counter()
        self.is_set = self.can_continue = False
        self._owns_process = owns_process
        self._is_immediate = self._has_raised = self._has_heard = False

    @property
    def is_early(self) -> bool:
        """Whether the user asked to stop before `defer` was called, when nothing had started."""
        return self.is_set and self._is_immediate

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Context manager that raises KeyboardInterrupt again if a library has replaced it.

        This applies only to the KeyboardInterrupt of an early signal (`is_early`).
        """
        try:
            yield
        except Exception:
            if self.is_early:
                raise KeyboardInterrupt from None
            raise

    @contextlib.contextmanager
    def needing(self, lost: Callable[[], str | None]) -> Iterator[None]:
        """Context manager that ends this process as soon as Ray is gone.

        A signal to a whole process group, as sent by `timeout` or a service manager, also ends Ray,
        and calls to a killed Ray would hang for a minute.

        Args:
            lost: Function that returns a sentence if Ray's processes are gone, otherwise None
                (`Session.lost`); called twice a second in another thread.
        """
        is_over = threading.Event()
        threading.Thread(target=self._watch, args=[lost, is_over], daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Context manager that handles SIGNALS.

        The first signal raises KeyboardInterrupt, unless `defer` was called before. Does nothing
        outside the main thread, because Python handles signals only in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        earlier = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._read, args=[read_end], daemon=True).start()
        hook, sys.unraisablehook = sys.unraisablehook, _print_unraisable
        self._is_immediate = True
        self.listen()
        try:
            yield
        finally:
            self._is_immediate = False
            sys.unraisablehook = hook
            signal.set_wakeup_fd(earlier)
            os.close(write_end)
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Install the signal handlers; call again after a library may have replaced them."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def defer(self) -> None:
        """From now on, only record the first signal; `check` then raises KeyboardInterrupt."""
        self._is_immediate = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the user asked to stop."""
        if self.is_set:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Signal handler, called by Python in the main thread."""
        del frame
        if number == signal.SIGHUP:
            _leave_terminal()
        self.is_set = True
        is_second = self._has_heard and not self._owns_process
        self._has_heard = True
        if is_second or (self._is_immediate and not self._has_raised):
            self._has_raised = True
            raise Signalled

    def _read(self, read_end: int) -> None:
        """Count the signals, which Python writes to a pipe; end a command at the second one.

        Python's handlers cannot count: two signals merge into one call while the main thread is in
        a library. A closed terminal sends SIGHUP more than once, so SIGHUP never counts as the
        second signal.
        """
        is_first = True
        while byte := os.read(read_end, 1):
            self.is_set = True
            if self._owns_process and not is_first and byte[0] != signal.SIGHUP:
                end_at_once(self.can_continue)
            is_first = False
        os.close(read_end)

    def _watch(self, lost: Callable[[], str | None], is_over: threading.Event) -> None:
        """End the process once `lost` returns a sentence; return when `is_over` is set."""
        while not is_over.wait(WATCH_S):
            # If a signal has ended Ray, this process may receive the same signal a little later:
            # wait for it.
            if (sentence := lost()) is not None and not is_over.wait(LAST_WORDS_S):
                end_at_once(self.can_continue, lost=None if self.is_set else sentence)


def end_at_once(can_continue: bool, *, lost: str | None = None) -> None:
    """Kill all child processes and exit; no record is lost, since each was flushed when written.

    Args:
        can_continue: Whether the same command can resume; the message then says so.
        lost: Sentence about a Ray that is gone; None if the user has ended the command.
    """
    try:
        import psutil

        # Otherwise Ray's agents would notice the end of this process only after a minute.
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        tail = "; rerun the same command to resume" if can_continue else ""
        os.write(2, f"raybench: {lost or 'ended at once'}{tail}.\n".encode())
    finally:
        os._exit(FAILED if lost else INTERRUPTED)


@contextlib.contextmanager
def without_hangup() -> Iterator[None]:
    """Context manager that blocks SIGHUP in processes that are started within it.

    A closed terminal sends SIGHUP to all processes, so Ray would be gone before the results are
    written. Child processes inherit the block. This process receives a blocked signal when the
    context ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _print_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an exception that cannot be raised, as Python does (`sys.unraisablehook`), except
    `Signalled`, which `check` raises later."""
    if not issubclass(unraisable.exc_type, Signalled):
        sys.__unraisablehook__(unraisable)


def _leave_terminal() -> None:
    """Redirect stdin, stdout and stderr to /dev/null if they use the closed terminal."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
