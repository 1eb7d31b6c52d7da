"""Display the progress of the runs of a command on a terminal, in a notebook, or as lines of text.

If there is neither a terminal nor a notebook, each event is a line:

    2026-11-23T12:03:11Z t=72.1 search 3/40 finished trial=0003 time_to_target_s=1.23 ...

A line consists of the time (UTC), the seconds since the command started, the phase with its numbers
of finished runs and of all runs, the event, and the values of the event as `key=value` in a fixed
order; values with spaces are quoted. Events are `begin`, `starting`, `waits`, `finished`, `failed`,
`status` (every minute) and `note` (with a sentence).

With `--progress jsonl`, the events are written to stderr as JSON objects, and there is one more
event, `evaluated`.
"""

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Self, TextIO

from rich.console import Console, Group

from raybench.report.console import say
from raybench.report.live import Cause, LiveState, study_screen, view_for
from raybench.results.store import plain
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, seconds_text
from raybench.stats.record import Evaluation, Phase, RunRecord

STATUS_S = 60.0
"""Seconds between two `status` lines."""
DescribeRun = Callable[[RunRecord], str]
"""Type of a function that describes the result of a run that did not fail."""


def lines_for(progress: str) -> TextIO | None:
    """Return stderr, the stream for JSON lines, if `--progress` is `jsonl`; otherwise None."""
    return sys.stderr if progress == "jsonl" else None


class EventLines:
    """Prints each event of a study on a line: as JSON if there is a stream `lines`, otherwise as
    text to the console."""

    def __init__(self, console: Console, state: LiveState, lines: TextIO | None) -> None:
        self._console, self._state, self._lines = console, state, lines
        self._status_s = state.began_s

    def write(self, at: float, event: str, values: Mapping[str, object], text: str = "") -> None:
        """Print an event; values that are None or empty are left out."""
        state, seconds = self._state, at - self._state.began_s
        pace, now = state.pace, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {key: value for key, value in values.items() if value not in (None, "")}
        if self._lines is not None:
            line: dict[str, object] = {"event": event, "at": now, "t": round(seconds, 3)}
            line |= {"phase": state.phase, "done": pace.num_done, "of": pace.num_runs}
            line |= fields | ({"text": text} if text else {}) | {"best": None}
            if (best := state.best) is not None:
                best_fields = {"trial": best.trial, "value": best.best_value}
                best_fields |= {"train_s": best.ledger["train"]}
                line["best"] = best_fields | {"time_to_target_s": best.time_to_target_s}
            print(json.dumps(plain(line), ensure_ascii=False), file=self._lines, flush=True)
            return
        texts = [f"{now} t={seconds:.1f} {state.phase} {pace.num_done}/{pace.num_runs} {event}"]
        texts += [f"{key}={_value(value)}" for key, value in fields.items()]
        say(self._console, " ".join(filter(None, [*texts, text])))

    def evaluated(self, name: str, evaluation: Evaluation, at: float) -> None:
        """Print an evaluation as JSON; without a stream for JSON, do nothing."""
        if self._lines is not None:
            keys = ("value", "train_s", "samples", "epoch")
            values = {key: getattr(evaluation, key) for key in keys}
            self.write(at, "evaluated", {"trial": name, **values})

    def finished(
        self, record: RunRecord, cause: Cause | None, at: float, outcome: DescribeRun | None
    ) -> None:
        """Print the result of a run, and the remaining time of the study."""
        metric, best = record.spec.objective.judged_by, self._state.best
        values: dict[str, object] = {"trial": record.trial, "failure": record.failure}
        if cause is not None and cause.count == 1:
            values["message"] = record.message
        elif cause is not None:
            values |= {"same_as": cause.trial, "count": cause.count}
        else:
            values |= {
                "time_to_target_s": record.time_to_target_s,
                "train_s": record.ledger["train"],
                metric.name if self._lines is None else "value": record.best_value,
                "stop": record.stop,
                "best": "yes" if best is not None and best.trial == record.trial else None,
                "outcome": "no report" if not record.samples else outcome and outcome(record),
            }
        values |= {"left_s": self._left(at), "config": self._state.label(record.spec)}
        self.write(at, "finished" if cause is None else "failed", values)

    def _left(self, at: float) -> int | None:
        left = self._state.time_left(at)
        return None if left is None else round(left.seconds)

    def status(self, at: float) -> None:
        """Print the state of the study, at most once per STATUS_S seconds."""
        if at - self._status_s < STATUS_S:
            return
        self._status_s, state = at, self._state
        num_all = "?" if state.num_workers is None else state.num_workers
        values: dict[str, object] = {
            "running": len(state.training),
            "not_yet": len(state.runs) - len(state.training),
            "workers": f"{state.num_training}/{num_all}",
            "failed": sum(cause.count for cause in list(state.causes.values())) or None,
            "best": None if state.best is None else state.best.trial,
            "left_s": self._left(at),
        }
        self.write(at, "status", values)


def _value(value: object) -> str:
    """Return the text of a value, in quotes if it contains spaces."""
    text = clean(f"{value:.5g}" if isinstance(value, float) else str(value))
    is_plain = text and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


class ProgressDisplay:
    """Context manager that shows the runs of a study. Its methods may be called from any thread."""

    def __init__(
        self,
        console: Console,
        *,
        num_trials: int,
        num_done: int = 0,
        keys: Iterable[str] = (),
        outcome: DescribeRun | None = None,
        began: float | None = None,
        ends_in_s: float = math.inf,
        num_workers: Callable[[RunSpec], int] | None = None,
        lines: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare the display.

        Args:
            console: Console on which to show the runs.
            num_trials: Number of runs in the first phase.
            num_done: Number of these runs that have already finished.
            keys: Keys that labels of configurations include; see `spec.run.label_keys`.
            outcome: Function that describes a finished run; None if the runs compete, in which case
                the best run is shown.
            began: Time, by `clock`, at which the command started; None for now.
            ends_in_s: Remaining seconds of the time budget.
            num_workers: Function that returns how many workers of a run spec can run at the same
                time.
            lines: Stream for JSON lines, which replace the display; None without them.
            clock: Function that returns the current time in seconds.
        """
        self._clock, self._console, self._outcome = clock, console, outcome
        self._num_workers = num_workers
        self.state = LiveState(clock() if began is None else began, keys=keys)
        self.state.begin(Phase.SEARCH, num_trials, clock(), num_done=num_done)
        if math.isfinite(ends_in_s):
            self.state.ends_s = clock() + ends_in_s
        self._changing = threading.RLock()
        """Locked while the state changes or is drawn, but never while printing."""
        self._view = None if lines else view_for(console, self._draw)
        self._lines = EventLines(console, self.state, lines)
        self._has_started = False
        self._waits_for: str | None = None
        """Run and resource of the last event `waits`."""

    def __enter__(self) -> Self:
        if self._view is not None:
            self._view.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.stop()

    def say(self, text: str) -> None:
        """Print a sentence above the live screen, or without a live screen as an event `note`."""
        if self._view is not None:
            say(self._console, text)
        else:
            self._lines.write(self._clock(), "note", {}, text)

    def begin(
        self,
        phase: str,
        num_runs: int,
        *,
        num_done: int = 0,
        expect_s: float | None = None,
        after_s: float = 0.0,
    ) -> None:
        """Start a phase, or start it again with another number of runs; see `LiveState.begin`."""
        with self._changing:
            is_new = phase != self.state.phase or not self._has_started
            self.state.begin(
                phase,
                num_runs,
                self._clock(),
                num_done=num_done,
                expect_s=expect_s,
                after_s=after_s,
            )
        self._changed()
        if is_new and self._view is None and num_runs:
            self._lines.write(self._clock(), "begin", {"runs": num_runs})

    def expect_after(self, seconds: float) -> None:
        """Set the expected seconds of the phases after the current one."""
        self.state.after_s = seconds

    def started(self, name: str, spec: RunSpec) -> None:
        """Show a run that was requested; until its first evaluation, it is shown as starting."""
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
        """Whether any unfinished run has not been evaluated yet."""
        return self.state.is_starting

    def waiting(
        self, resources: Mapping[str, tuple[str, float]], *, head: str | None = None
    ) -> None:
        """Show what runs without workers wait for.

        Args:
            resources: Pairs (resource for which a run waits, seconds waited), keyed by name of the
                run.
            head: Name of the first run for which resources are missing; None if there is none.
                Without a live screen, the run and the resource are printed when they change.
        """
        with self._changing:
            self.state.waiting = resources
        waits = None if head is None else f"{head} {resources[head][0]}"
        if head is not None and waits != self._waits_for and self._view is None:
            self._lines.write(self._clock(), "waits", {"trial": head, "for": resources[head][0]})
        self._waits_for = waits or self._waits_for
        self._changed()

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Show an evaluation of a run."""
        with self._changing:
            self.state.evaluated(name, evaluation)
        self._lines.evaluated(name, evaluation, self._clock())
        self._changed()

    def finished(self, record: RunRecord) -> None:
        """Count a finished run.

        Without a live screen, its result is printed. With a live screen, only the first failure of
        each cause is printed, above the screen.
        """
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

    def _changed(self) -> None:
        if self._view is not None:
            self._view.changed()
        else:
            self._lines.status(self._clock())

    def _draw(self, console: Console) -> Group:
        with self._changing:
            has_best = self._outcome is None
            return study_screen(console, self.state, self._clock(), has_best=has_best)


class CurveLines:
    """Prints the learning curve of a single run as a table with one line per evaluation."""

    def __init__(self, console: Console, spec: RunSpec) -> None:
        self._console, self._metric = console, spec.objective.judged_by
        self._column = "validation" if self._metric.name == "loss" else self._metric.words

    def begin(self) -> None:
        """Print the header of the table."""
        head = f"  epoch    samples   train s     loss {self._column:>9}   samples/s  learning rate"
        say(self._console, head)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Print an evaluation of the run."""
        point, width = evaluation, max(len(self._column), 9)
        value = f"{100 * point.value:.2f}%" if self._metric.is_share else f"{point.value:.5g}"
        loss = point.train_loss  # NaN if a training loop of the user reports none
        say(
            self._console,
            f"{point.epoch:7.2f} {point.samples:10,} {seconds_text(point.train_s):>9} "
            f"{'-' if math.isnan(loss) else format(loss, '.4f'):>8} {value:>{width}} "
            f"{point.samples_per_s:11,.0f} {point.learning_rate:14.4g}",
        )
