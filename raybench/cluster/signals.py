"""Ctrl-C: once ends at the next evaluation with everything written, twice ends at once."""

import contextlib
import os
import signal
from pathlib import Path
from types import FrameType


class Interrupt:
    """Remembers that the user asked to stop."""

    def __init__(self) -> None:
        self.is_set = False

    def listen(self) -> None:
        """Take Ctrl-C and termination from now on."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def reason(self) -> str | None:
        """Return `interrupted` once the user asked, None before."""
        return "interrupted" if self.is_set else None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.is_set:
            # Records are flushed line by line. A Ray of our own ends with this process, but its
            # agents would take a minute to notice.
            for process in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.write(2, b"raybench: ended at once; the same command continues.\n")
            os._exit(128 + number)
        self.is_set = True


def descendants(process: int) -> list[int]:
    """Return the ids of a process's children, their children, and so on; none without /proc."""
    found: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found
