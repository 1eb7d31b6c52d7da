"""How far a build is: a bar where someone watches, one line where nobody does."""

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

MANY_SECONDS = 90


def tell(sentence: str) -> None:
    """Say something of the store, beside a command's own output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


class Progress:
    """Says what is built, and on a terminal how far it is and how long it will still take."""

    def __init__(self, what: str, total: int, *, place: Path, seconds: float | None = None) -> None:
        """`place`: where it is kept; `seconds`: what it is expected to take."""
        about = "" if seconds is None else f" (about {_in_words(seconds)})"
        self._sentence = f"{what}{about}, kept in {place}."
        self._total = total
        self._lock = threading.Lock()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Say what begins."""
        tell(self._sentence)
        if sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
            self._bar.add_task("", total=self._total)
        return self

    def advance(self, count: int) -> None:
        """Count what is done; from any thread."""
        if self._bar is not None:
            with self._lock:
                self._bar.advance(self._bar.task_ids[0], count)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> "Bar":
    # Imported here: most processes build nothing, and rich takes a tenth of a second.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def _in_words(seconds: float) -> str:
    if seconds < MANY_SECONDS:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"
