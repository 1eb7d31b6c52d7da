"""Signal handlers that a training loop sets, as loops for preemptible machines do.

Python takes handlers in the main thread alone, and loops run in another. A worker's signals are
not the loop's to handle either: raybench ends runs at their reports, and continues them from what
`Run.save` was given.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_asked: dict[str, None] = {}
"""Names of the signals that a loop has set a handler of, since `note` was called last."""


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Let `signal.signal` do nothing in threads beside the main one, where it would raise.

    To be entered before the loop's module is imported, which may hold the function by its name.
    """
    before = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        """Set a handler as Python does, in the main thread; return the present one."""
        if threading.current_thread() is threading.main_thread():
            return before(number, handler)
        _asked[signal.Signals(number).name if number in set(signal.Signals) else str(number)] = None
        return signal.getsignal(number)

    signal.signal = set_handler  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = before


def note() -> str | None:
    """Return a sentence for the user if a loop has set handlers since the last call."""
    names = ", ".join(_asked)
    _asked.clear()
    if not names:
        return None
    return (
        f"the loop sets a handler of {names}, which is left out: loops run beside the main thread, "
        "where no signal arrives; hand what a run is continued from to run.save"
    )
