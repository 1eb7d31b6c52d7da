"""Where a study is shown: on a terminal, in a notebook, or as lines."""

import html
import importlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from raybench.results.live.glyphs import BLOCKS, Glyphs, glyphs_for

PER_SECOND = 4
NOTEBOOK_S = 1.0
"""A notebook's display changes no more often: each change is a message to the browser."""
NOTEBOOK_WIDTH = 100
NOTEBOOK_HEIGHT = 30
Bundle = dict[str, str]
"""What a notebook shows, by its MIME type: it takes the best that it can."""
Draw = Callable[[int, int, Glyphs], list[Text]]
"""(width, height, characters) -> the lines of now."""


class View(Protocol):
    """What shows a screen that changes."""

    def start(self) -> None:
        """Show it from now on."""

    def changed(self) -> None:
        """Show it anew, now or soon."""

    def stop(self) -> None:
        """End it."""


class TerminalView:
    """One screen on a terminal, drawn again a few times a second in a thread of its own."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._console, self._draw = console, draw
        self._glyphs = glyphs_for(console.encoding)
        self._live = Live(
            get_renderable=self._rendered,
            console=console,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        """Show it from now on."""
        self._live.start()

    def changed(self) -> None:
        """Do nothing: it is drawn again soon."""

    def stop(self) -> None:
        """Take it off the screen."""
        self._live.stop()

    def _rendered(self) -> Group:
        width, height = self._console.size
        lines = self._draw(width, height, self._glyphs)
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return Group(*lines)


class NotebookView:
    """One display of a notebook, changed in place."""

    def __init__(
        self,
        draw: Draw,
        display: Callable[[Bundle, bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`display` shows a bundle: for the first time, or in place of what it has shown."""
        self._draw, self._clock = draw, clock
        self._display = display if display is not None else _ipython_display()
        self._shown_s = float("-inf")
        self._is_new = True

    def start(self) -> None:
        """Show it for the first time."""
        self._show()

    def changed(self) -> None:
        """Show it anew, if that was not just done."""
        if self._clock() - self._shown_s >= NOTEBOOK_S:
            self._show()

    def stop(self) -> None:
        """Show how it ended."""
        self._show()

    def _show(self) -> None:
        self._shown_s = self._clock()
        lines = self._draw(NOTEBOOK_WIDTH, NOTEBOOK_HEIGHT, BLOCKS)
        bundle = {
            "text/html": as_html(lines),
            "text/plain": "\n".join(line.plain for line in lines),
        }
        self._display(bundle, self._is_new)
        self._is_new = False


def as_html(lines: list[Text]) -> str:
    """Return lines as HTML that has the colours of the page around it."""
    text = "\n".join(html.escape(line.plain) for line in lines)
    return f'<pre style="line-height:1.25;white-space:pre;overflow-x:auto">{text}</pre>'


def view_for(console: Console, draw: Draw) -> View | None:
    """Return how a console shows a screen that changes; None where it takes lines alone."""
    if console.is_jupyter:
        return NotebookView(draw)
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(console, draw)
    return None


def _ipython_display() -> Callable[[Bundle, bool], None]:
    """Return what shows a bundle in the notebook that runs this; one display, changed in place."""
    display: Any = importlib.import_module("IPython.display")  # has no types
    handle = display.DisplayHandle()

    def show(bundle: Bundle, is_new: bool) -> None:
        (handle.display if is_new else handle.update)(bundle, raw=True)

    return show
