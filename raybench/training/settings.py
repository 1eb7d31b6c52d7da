"""Settings of a worker's process that a training loop may change: set back when its run ends."""

import contextlib
import gc
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from raybench.training.base import find_part

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""Reads a setting of the process, and sets it."""


def attribute(owner: Any, name: str) -> Setting:
    """Return the setting that an attribute is."""
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
    (sys.getrecursionlimit, sys.setrecursionlimit),
    attribute(sys, "stdout"),
    attribute(sys, "stderr"),
    (gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
    (gc.get_threshold, lambda threshold: gc.set_threshold(*threshold)),
    (
        lambda: multiprocessing.get_start_method(allow_none=True) or "",
        lambda method: multiprocessing.set_start_method(method or None, force=True),
    ),
)
"""Settings of the process that a loop may change and that the next trial runs in. Random states are
not among them: each run is seeded."""
LOADED = {"torch": "torch", "tensorflow": "tensorflow"}
"""Frameworks whose settings are kept too, each with the module that a loop has imported then."""


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Set back, when a run ends, what it has changed of its process: workers stay alive."""
    settings = list(PROCESS_SETTINGS)
    for framework, module in LOADED.items():
        if module in sys.modules:
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
    """Return a setting's value; None where it has none, or its library refuses to tell it."""
    try:
        return setting[0]()
    except (AttributeError, OSError, RuntimeError):
        return None
