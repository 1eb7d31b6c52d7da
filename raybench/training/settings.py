"""Process state that a user's training loop may change: settings, which are restored when its run
ends, and signal handlers, which are not installed.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from raybench.training.base import find_part

logger = logging.getLogger(__name__)

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""Getter and setter of a process-wide setting."""


def attribute(owner: Any, name: str) -> Setting:
    """Return the getter and setter of an object's attribute."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _set_environment(values: dict[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


PROCESS_SETTINGS: tuple[Setting, ...] = (
    (os.getcwd, os.chdir),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
    (lambda: list(sys.argv), lambda words: sys.argv.__setitem__(slice(None), words)),
    attribute(sys, "stdout"),
    attribute(sys, "stderr"),
)
"""Settings that a loop may change and that the next run in the process would inherit. Random states
are not included, since each run is seeded."""


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Context manager: restore the settings of the process and of imported frameworks on exit."""
    settings = list(PROCESS_SETTINGS)
    for framework in ("torch", "tensorflow"):
        if framework in sys.modules:
            settings += find_part(framework, "own").SETTINGS
    before = [_read(setting) for setting in settings]
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for setting, value in zip(settings, before, strict=True):
                if value is not None:
                    setting[1](value)


def _read(setting: Setting) -> Any:
    """Return a setting's value; None if the setting is missing or its library cannot read it."""
    try:
        return setting[0]()
    except (AttributeError, OSError, RuntimeError):
        return None


@contextlib.contextmanager
def signal_handlers_ignored() -> Iterator[None]:
    """Context manager: make `signal.signal` do nothing outside the main thread, where it would
    raise.

    Loops for preemptible machines set handlers. Here, a loop runs in a thread that no signal
    reaches, and raybench stops it at its reports. Enter the context before importing the loop's
    module, which may import `signal.signal` by name.
    """
    original = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return original(number, handler)
        logger.warning("signal.signal has no effect in a loop; use run.save (docs/models.md)")
        return signal.getsignal(number)

    signal.signal = set_handler  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = original
