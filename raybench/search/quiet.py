"""What Ray and Ray Tune print goes to a file: of a worker that died, a paragraph of guesses."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from raybench.core.text import redact_text

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
