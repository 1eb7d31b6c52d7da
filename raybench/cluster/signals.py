"""Ctrl-C and its like: once ends at the next evaluation with everything written, twice at once."""

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
WATCH_S, LAST_WORDS_S = 0.5, 1.0


class Signalled(KeyboardInterrupt):
    """A signal that ends the command. Where a KeyboardInterrupt itself has left an `exec` of text,
    as in the import of a dataclass, `python -m` dies of SIGINT in the end, caught or not."""


class Interrupt:
    """Remembers that the user asked to stop: by Ctrl-C, a termination, or a closed terminal."""

    def __init__(self, *, owns_process: bool = True) -> None:
        """`owns_process`: the second signal ends it; else it raises, as Python's own code does."""
        self.began = time.perf_counter()
        """Moment at which the command began, which a time budget counts from."""
        self.is_set = False
        self._owns_process = owns_process
        self.can_continue = False
        """Whether a results folder holds something that the same command goes on with."""
        self._is_immediate = self._has_raised = self._has_heard = False

    @property
    def is_early(self) -> bool:
        """Whether the user asked to stop before `defer`: nothing has been started."""
        return self.is_set and self._is_immediate

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Raise KeyboardInterrupt where a library took one for a failure of its own import."""
        try:
            yield
        except Exception:
            if self.is_early:
                raise KeyboardInterrupt from None
            raise

    @contextlib.contextmanager
    def needing(self, lost: Callable[[], str | None]) -> Iterator[None]:
        """Watch what nothing can end in order without, while the context lasts.

        Once `lost` says what is gone, this process ends at once instead of waiting for answers that
        cannot come: a signal to a whole process group (`timeout`, a service manager) ends Ray too,
        and where it was killed by itself, it would be silent for a minute and say something of its
        own.
        """
        is_over = threading.Event()
        threading.Thread(target=self._watch, args=[lost, is_over], daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals meanwhile; the first raises KeyboardInterrupt until `defer`.

        Elsewhere than in the main thread Python does not offer them: nothing is taken there.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        numbers, written = os.pipe()
        os.set_blocking(written, False)
        earlier = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=self._read, args=[numbers], daemon=True).start()
        hook, sys.unraisablehook = sys.unraisablehook, _say_fault
        self._is_immediate = True
        self.listen()
        try:
            yield
        finally:
            self._is_immediate = False
            sys.unraisablehook = hook
            signal.set_wakeup_fd(earlier)
            os.close(written)
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals from now on; again after a library has taken one of them."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def defer(self) -> None:
        """From now on only remember: what runs must end in order, and asks `check`."""
        self._is_immediate = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the user asked to stop."""
        if self.is_set:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            _leave_terminal()
        self.is_set = True
        is_second = self._has_heard and not self._owns_process
        self._has_heard = True
        if is_second or (self._is_immediate and not self._has_raised):
            self._has_raised = True
            raise Signalled

    def _read(self, numbers: int) -> None:
        """Count signals as they come: the main thread may be waiting in a library, and to it two
        of them are one. A closed terminal says so more than once."""
        is_first = True
        while byte := os.read(numbers, 1):
            self.is_set = True
            if self._owns_process and not is_first and byte[0] != signal.SIGHUP:
                end_at_once(self.can_continue)
            is_first = False
        os.close(numbers)

    def _watch(self, lost: Callable[[], str | None], is_over: threading.Event) -> None:
        while not is_over.wait(WATCH_S):
            # A signal that has ended it is heard here too, a little later.
            if (what := lost()) is not None and not is_over.wait(LAST_WORDS_S):
                end_at_once(self.can_continue, lost=None if self.is_set else what)


def end_at_once(can_continue: bool, *, lost: str | None = None) -> None:
    """End this process and all below it; records are flushed line by line.

    `lost`: not because the user asked, but because this is gone, in words. A Ray of our own ends
    with this process, but its agents would take a minute to notice.
    """
    try:
        import psutil

        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        tail = "; the same command continues" if can_continue else ""
        os.write(2, f"raybench: {lost or 'ended at once'}{tail}.\n".encode())
    finally:
        os._exit(FAILED if lost else INTERRUPTED)


@contextlib.contextmanager
def without_hangup() -> Iterator[None]:
    """Let processes that are started meanwhile never hear of a closed terminal.

    It is told to all of its processes: Ray's would be gone before the results are written. A
    blocked signal stays blocked in a process that is started; ours comes when this ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say_fault(fault: "sys.UnraisableHookArgs") -> None:
    """Print what cannot be raised, but for a signal: where a library's C code or an object's end
    drops its exception, `check` raises it later."""
    if not issubclass(fault.exc_type, Signalled):
        sys.__unraisablehook__(fault)


def _leave_terminal() -> None:
    """Write nowhere from now on, where the terminal that was written to is gone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
