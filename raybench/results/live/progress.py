"""What a command tells of its runs, and where it is shown: a screen, a notebook, or lines."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.text import Text

from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.console import say
from raybench.results.live.glyphs import Glyphs
from raybench.results.live.lines import EventLines
from raybench.results.live.screen import screen_lines
from raybench.results.live.state import LiveState
from raybench.results.live.views import View, view_for
from raybench.results.live.words import Outcome


class Progress:
    """Follows the runs of a study; `with` it, so that the screen is there while they run.

    Events come from any thread.
    """

    def __init__(
        self,
        console: Console,
        *,
        num_trials: int,
        num_done: int = 0,
        keys: Iterable[str] = (),
        outcome: Outcome | None = None,
        began: float | None = None,
        ends_in_s: float = math.inf,
        num_workers: Callable[[RunSpec], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Show `num_trials`; `keys` are those that labels tell (`results.label.label_keys`).

        `outcome` says how a run ended that did not fail, where they are no trials of a search and
        none is the best of them. `began` is when the command did, by `clock`; `ends_in_s` what is
        left of the time budget, `num_workers` how many workers of a spec the machines hold.
        """
        self._clock, self._console, self._outcome = clock, console, outcome
        self._num_workers = num_workers
        self.state = LiveState(clock() if began is None else began, keys=keys)
        self.state.begin("search", num_trials, clock(), num_done=num_done)
        if math.isfinite(ends_in_s):
            self.state.ends_s = clock() + ends_in_s
        self._changing = threading.RLock()
        """Held while the state changes or is drawn, never while something is printed."""
        self._view: View | None = view_for(console, self._draw)
        self._lines = EventLines(console, self.state)
        self._has_started = False
        self._told: str | None = None
        """What was last said of waiting, where there is no screen."""

    def __enter__(self) -> "Progress":
        if self._view is not None:
            self._view.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.stop()

    @property
    def after_s(self) -> float:
        """Seconds of what follows this phase; a part of the time left. `begin` sets it to 0."""
        return self.state.after_s

    @after_s.setter
    def after_s(self, seconds: float) -> None:
        self.state.after_s = seconds

    def say(self, text: str) -> None:
        """Print a line above the screen."""
        if self._view is not None:
            say(self._console, text)
        else:
            self._lines.write(self._clock(), "note", {}, text)

    def begin(
        self, phase: str, num_runs: int, *, num_done: int = 0, expect_s: float | None = None
    ) -> None:
        """Start counting another phase's runs, of which some are done; nothing is known to follow.

        Or count a phase anew that has come to have other runs. `expect_s`: what they take
        together, as far as it is known.
        """
        with self._changing:
            is_new = phase != self.state.phase or not self._has_started
            self.state.begin(phase, num_runs, self._clock(), num_done=num_done, expect_s=expect_s)
        self._changed()
        if is_new and self._view is None and num_runs:
            self._lines.write(self._clock(), "begin", {"runs": num_runs})

    def started(self, name: str, spec: RunSpec) -> None:
        """Show a run that was asked for: its workers start until its first evaluation."""
        with self._changing:
            self.state.started(name, spec, self._clock())
            if self._num_workers is not None:
                self.state.num_workers = self._num_workers(spec)
        if not self._has_started and self._view is None:
            self._lines.write(self._clock(), "starting", {"what": "workers"})
        self._has_started = True
        self._changed()

    @property
    def is_starting(self) -> bool:
        """Whether a run was asked for that has shown nothing yet; asked in any thread."""
        return self.state.is_starting

    def waiting(self, what: Mapping[str, tuple[str, float]], *, head: str | None = None) -> None:
        """Show for runs without workers what each waits for and for how many seconds by now.

        `head`: the one for which the machines are missing, if one is; where there is no screen it
        is said once, and again when it waits for something else.
        """
        with self._changing:
            self.state.waiting = what
        told = None if head is None else f"{head} {what[head][0]}"
        if head is not None and told != self._told and self._view is None:
            self._lines.write(self._clock(), "waits", {"trial": head, "for": what[head][0]})
        self._told = told or self._told
        self._changed()

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Show a run's newest evaluation."""
        with self._changing:
            self.state.evaluated(name, evaluation, self._clock())
        self._changed()

    def finished(self, record: RunRecord) -> None:
        """Count a run; print its line where there is no screen, and a failure of a new cause."""
        at = self._clock()
        with self._changing:
            cause = self.state.finished(record, at)
        if self._view is None:
            self._lines.finished(record, cause, at, self._outcome)
        elif cause is not None and cause.count == 1:
            label = self.state.label(record.spec)
            failed = f"{cause.failure} ({cause.message})"
            say(self._console, f"trial {record.trial}  {label}  failed: {failed}")
        self._changed()

    def seconds_left(self) -> float | None:
        """Return the time left by the runs so far, what follows included; None if not known."""
        left = self.state.time_left(self._clock())
        return None if left is None else left.seconds

    def _changed(self) -> None:
        if self._view is not None:
            self._view.changed()
        else:
            self._lines.status(self._clock())

    def _draw(self, width: int, height: int, glyphs: Glyphs) -> list[Text]:
        with self._changing:
            return screen_lines(
                self.state,
                self._clock(),
                width=width,
                height=height,
                glyphs=glyphs,
                has_best=self._outcome is None,
            )
