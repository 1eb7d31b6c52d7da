"""A time limit for a call that cannot be interrupted."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


def call_within(seconds: float, function: Callable[[], T], *, name: str) -> T:
    """Call a function in a daemon thread and return its result.

    Args:
        seconds: Time limit. A call that exceeds it continues in its thread until the process ends.
        function: Function to call.
        name: Name of the thread.

    Raises:
        TimeoutError: The call has not returned in time.
        Exception: Whatever the function raises.
    """
    done: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue()

    def call() -> None:
        try:
            done.put((function(), None))
        except Exception as error:  # noqa: BLE001 (raised below, whatever it is)
            done.put((None, error))

    threading.Thread(target=call, name=name, daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{name}: not done after {seconds:g} s") from None
    if error is not None:
        raise error
    return cast(T, result)
