"""Signals that end a command: the first at the next evaluation, with all results written; the
second at once."""

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
    """A signal that ends the command.

    A plain KeyboardInterrupt out of an `exec` of text, as when a dataclass is made, would end
    `python -m` by SIGINT even if it is caught.
    """


class Interrupt:
    """Remembers that the user asked to stop, by Ctrl-C, SIGTERM or a closed terminal.

    `is_set` says whether the user has; `can_continue`, set by the command, whether there are
    results that the same command continues. A time budget counts from the moment `began`.
    """

    def __init__(self, *, owns_process: bool = True) -> None:
        """Not stopped yet; with `owns_process` a second signal ends the process, else it raises."""
        self.began = time.perf_counter()
        self.is_set = self.can_continue = False
        self._owns_process = owns_process
        self._is_immediate = self._has_raised = self._has_heard = False

    @property
    def is_early(self) -> bool:
        """Whether the user asked to stop before `defer`: nothing has been started."""
        return self.is_set and self._is_immediate

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Raise KeyboardInterrupt if a library turned one into another exception."""
        try:
            yield
        except Exception:
            if self.is_early:
                raise KeyboardInterrupt from None
            raise

    @contextlib.contextmanager
    def needing(self, lost: Callable[[], str | None]) -> Iterator[None]:
        """Watch what the command depends on; end the process once `lost` says what is gone.

        It would wait for answers that cannot come: a signal to a whole process group (`timeout`, a
        service manager) ends Ray too, and a killed Ray says nothing for a minute.
        """
        is_over = threading.Event()
        threading.Thread(target=self._watch, args=[lost, is_over], daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals in this context; before `defer` the first raises KeyboardInterrupt.

        Only the main thread can; in another one nothing is handled.
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
        """Install the handlers, again after a library has replaced one of them."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def defer(self) -> None:
        """Only remember signals from now on; call `check` to raise."""
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
        """Count the signals: Python merges two while the main thread waits in a library. A closed
        terminal sends SIGHUP more than once."""
        is_first = True
        while byte := os.read(numbers, 1):
            self.is_set = True
            if self._owns_process and not is_first and byte[0] != signal.SIGHUP:
                end_at_once(self.can_continue)
            is_first = False
        os.close(numbers)

    def _watch(self, lost: Callable[[], str | None], is_over: threading.Event) -> None:
        while not is_over.wait(WATCH_S):
            # A signal that has ended it arrives here too, a little later.
            if (what := lost()) is not None and not is_over.wait(LAST_WORDS_S):
                end_at_once(self.can_continue, lost=None if self.is_set else what)


def end_at_once(can_continue: bool, *, lost: str | None = None) -> None:
    """End this process and all its children at once; records were flushed line by line.

    Args:
        can_continue: whether the same command continues.
        lost: description of what is gone, if that is the reason and not the user.
    """
    try:
        import psutil

        # Otherwise Ray's agents would take a minute to notice.
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        tail = "; the same command continues" if can_continue else ""
        os.write(2, f"raybench: {lost or 'ended at once'}{tail}.\n".encode())
    finally:
        os._exit(FAILED if lost else INTERRUPTED)


@contextlib.contextmanager
def without_hangup() -> Iterator[None]:
    """Block SIGHUP in processes that are started in this context.

    A closed terminal sends it to all processes, and Ray's would be gone before the results are
    written. A process inherits blocked signals; ours gets them when the context ends.
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
    """Print an exception that cannot be raised, unless it is a signal, which `check` raises."""
    if not issubclass(fault.exc_type, Signalled):
        sys.__unraisablehook__(fault)


def _leave_terminal() -> None:
    """Send output to /dev/null if it goes to a terminal, which is gone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
