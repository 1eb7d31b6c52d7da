"""The live screen of a study on a terminal or in a notebook, and the state that it shows: progress,
the best run so far, a table of open runs, failures by cause, and the remaining time.

A run is open from its request until its end. The state depends only on events, not on a clock, a
terminal or files. Times (`at`) are in seconds of any monotonic clock.
"""

import html
import importlib
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raybench.report.console import WholeLines
from raybench.report.words import duration, target_words
from raybench.results.analyses import cause_of
from raybench.results.records import add_point
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe
from raybench.spec.text import clean, seconds_text, shorten
from raybench.stats.record import Evaluation, Phase, Role, RunRecord

ENOUGH_RUNS = 3
"""Minimum number of finished runs for estimating the remaining time of a phase by their pace."""


@dataclass
class Pace:
    """Counts the runs of one phase, and estimates the remaining time of the phase."""

    began_s: float
    num_runs: int
    """Number of runs in the phase, finished or not."""
    num_done: int = 0
    expect_s: float | None = None
    """Predicted total seconds of the runs that remained when the phase began; None if unknown."""

    def __post_init__(self) -> None:
        self._num_before, self._ends = self.num_done, [self.began_s]

    def finished(self, at: float) -> None:
        """Count a finished run."""
        self.num_done += 1
        self._ends.append(at)

    def left_s(self, at: float) -> float | None:
        """Return the estimated seconds until the phase ends; None if unknown.

        Once ENOUGH_RUNS runs have finished, the estimate is based on the pace of the later half of
        the finished runs, because runs of a search become shorter.
        """
        num_new, num_left = self.num_done - self._num_before, max(self.num_runs - self.num_done, 0)
        if num_new >= ENOUGH_RUNS:
            half = num_new // 2
            return num_left * (at - self._ends[half]) / (num_new - half)
        planned = max(self.num_runs - self._num_before, 1)
        return None if self.expect_s is None else self.expect_s * num_left / planned


class TimeLeft(NamedTuple):
    """Estimated time until a study ends."""

    seconds: float
    is_budget: bool
    """Whether `seconds` is the rest of the time budget, which ends the study."""


@dataclass
class LiveRun:
    """An open run: it was requested and has not ended."""

    name: str
    asked_s: float
    label: str = ""
    metric: Metric = ACCURACY
    num_workers: int = 1
    evaluation: Evaluation | None = None
    """Latest evaluation; other threads may read it while `curve` changes."""
    curve: list[Evaluation] = field(default_factory=list)
    """Evaluations of the current attempt of the run."""

    @property
    def values(self) -> list[float]:
        """Metric value at each evaluation."""
        return [point.value for point in self.curve]


@dataclass
class Cause:
    """A cause of failures, with the first trial that it ended and the number of failures."""

    trial: str
    failure: str
    message: str | None
    count: int = 0


class LiveState:
    """State of a study since its first event."""

    def __init__(self, at: float, *, keys: Iterable[str] = ()) -> None:
        self.began_s = at
        self.phase: str = Phase.SEARCH
        self.pace = Pace(at, 0)
        self.after_s = 0.0
        """Predicted seconds of later phases, which are added to the remaining time."""
        self.ends_s: float | None = None
        """Time at which the time budget ends; None without a time budget."""
        self.num_workers: int | None = None
        """Maximum number of workers that can run at the same time; None if unknown."""
        self.runs: dict[str, LiveRun] = {}
        """Open runs in the order in which they were requested, keyed by name."""
        self.waiting: Mapping[str, tuple[str, float]] = {}
        """Pairs (resource for which a run without workers waits, seconds waited), keyed by name of
        the run."""
        self.causes: dict[str, Cause] = {}
        self.best: RunRecord | None = None
        self.metric: Metric = ACCURACY
        """Metric of the study; it is known once the first run has started."""
        self.target: float | None = None
        """Target value of the search; None if there is none."""
        self.num_searched, self.num_reached = 0, 0
        """Number of finished search runs, and number of these runs that reached the target."""
        self.keys = tuple(keys)
        """Keys that labels of configurations include; see `spec.run.label_keys`."""

    def label(self, spec: RunSpec) -> str:
        """Return a configuration in one line."""
        return describe(spec, self.keys)

    def begin(
        self,
        phase: str,
        num_runs: int,
        at: float,
        *,
        num_done: int = 0,
        expect_s: float | None = None,
        after_s: float = 0.0,
    ) -> None:
        """Start a phase, or start it again with another number of runs.

        Args:
            phase: Name of the phase, such as `Phase.SEARCH` or `Role.RACE`.
            num_runs: Number of runs in the phase.
            at: Current time.
            num_done: Number of these runs that have already finished.
            expect_s: Predicted total seconds of the remaining runs; None if unknown.
            after_s: Predicted seconds of later phases.
        """
        self.phase, self.after_s = phase, after_s
        self.pace = Pace(at, num_runs, num_done, expect_s)

    def started(self, name: str, spec: RunSpec, at: float) -> None:
        """Add a run whose workers were requested."""
        self.metric = spec.objective.judged_by
        label = self.label(spec)
        self.runs[name] = LiveRun(name, at, label, self.metric, spec.num_workers)
        if self.phase == Phase.SEARCH:
            self._set_target(spec)

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Add an evaluation of a run."""
        if name in self.runs:
            self.runs[name].evaluation = evaluation
            add_point(self.runs[name].curve, evaluation)

    def finished(self, record: RunRecord, at: float) -> Cause | None:
        """Count a finished run; return the cause of its failure, or None if it did not fail."""
        self.runs.pop(record.trial, None)
        self.pace.finished(at)
        if record.phase == Phase.SEARCH:
            self.num_searched += 1
            self.metric = record.spec.objective.judged_by
            self._set_target(record.spec)
        if record.failure is not None:
            key = cause_of(record.failure, record.message)
            new_cause = Cause(record.trial, record.failure, record.message)
            cause = self.causes.setdefault(key, new_cause)
            cause.count += 1
            return cause
        if (
            record.phase == Phase.SEARCH
        ):  # runs of other phases are repeats or have other objectives
            self.num_reached += record.time_to_target_s is not None
            if record.samples and (self.best is None or record.score < self.best.score):
                self.best = record
        return None

    def _set_target(self, spec: RunSpec) -> None:
        objective = spec.objective
        self.target = objective.target if objective.kind == TIME else None

    @property
    def training(self) -> list[LiveRun]:
        """Open runs that have an evaluation."""
        return [run for run in list(self.runs.values()) if run.evaluation is not None]

    @property
    def is_starting(self) -> bool:
        """Whether any open run has no evaluation yet."""
        return any(run.evaluation is None for run in list(self.runs.values()))

    @property
    def num_training(self) -> int:
        """Total number of workers of the runs in `training`."""
        return sum(run.num_workers for run in self.training)

    def time_left(self, at: float) -> TimeLeft | None:
        """Return the estimated remaining time of the study, including later phases; None if
        unknown.

        It is at most the remaining time budget.
        """
        phase_s = self.pace.left_s(at)
        is_known = self.phase != Phase.REFERENCE  # the time of the search that follows is unknown
        work_s = phase_s + self.after_s if is_known and phase_s is not None else None
        budget_s = None if self.ends_s is None else max(self.ends_s - at, 0.0)
        if budget_s is not None and (work_s is None or budget_s < work_s):
            return TimeLeft(budget_s, is_budget=True)
        return None if work_s is None else TimeLeft(work_s, is_budget=False)


def metric_words(metric: Metric, value: float | None) -> str:
    """Return a metric value as text, such as `97.3 %` or `RMSE 0.4`.

    The name of the metric is left out if the metric is a proportion.
    """
    return f"{'' if metric.is_share else f'{metric.words} '}{metric.shown(value)}"


SPARKLINE_LEVELS = "▁▂▃▄▅▆▇█"
"""Characters of a sparkline (a curve in a line of text), from the lowest to the highest value."""


def sparkline(values: Sequence[float], width: int, *, others: Iterable[float]) -> str:
    """Return a sparkline, which is a curve made of at most `width` characters.

    Args:
        values: Values of the curve. If there are more than `width`, they are divided into sections,
            and each character shows the last value of a section. NaN becomes a space.
        width: Maximum number of characters.
        others: Further values that the vertical scale must include.
    """
    finite = [value for value in (*values, *others) if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    count = min(len(values), max(width, 0))
    sampled = [values[(number + 1) * len(values) // count - 1] for number in range(count)]

    def level(value: float) -> str:
        if math.isnan(value):
            return " "
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.0
        return SPARKLINE_LEVELS[min(int(share * len(SPARKLINE_LEVELS)), len(SPARKLINE_LEVELS) - 1)]

    return "".join(map(level, sampled))


STARTING = "starting workers"
PHASE_NAMES = {
    Role.REFERENCE: "reference runs",
    Role.PLACEMENT_CHECK: "placements that were only predicted",
    Role.CONFIRM: "winners alone",
    "train": "training",
}
"""Names of phases on the screen, keyed by internal name; only names that differ are listed."""


def result_words(record: RunRecord) -> str:
    """Return the result of a run that did not fail, in a few words."""
    metric, target = record.spec.objective.judged_by, record.spec.objective.target
    if record.time_to_target_s is not None and target is not None:
        return f"{seconds_text(record.time_to_target_s)} s to {target_words(metric, target)}"
    return (
        f"{metric_words(metric, record.best_value)} after {seconds_text(record.ledger['train'])} s"
    )


def _best_words(state: LiveState) -> str:
    best, target = state.best, state.target
    if best is None:
        return "none yet"
    text = f"{result_words(best)} (one run)"
    if target is not None and best.time_to_target_s is None and best.best_value is not None:
        gap = state.metric.gap(target, best.best_value)
        points = f"{100 * gap:.1f} points" if state.metric.is_share else f"{gap:.3g}"
        text += f", {points} below {target_words(state.metric, target)}"
    return f"{text}: trial {best.trial}  {state.label(best.spec)}"


MOST_TEXT_LINES = 3
"""Maximum number of lines of a message or label; the middle of a longer text is omitted."""
MOST_CAUSES = 5
BAR_WIDTH = 60
NAMES_WIDTH = 9
"""Width of the left column, which contains names, in characters."""


def study_screen(
    console: Console,
    state: LiveState,
    at: float,
    *,
    has_best: bool = True,
) -> Group:
    """Return the live screen in the size of a console.

    Args:
        console: Console whose width and height limit the screen.
        state: State of the study.
        at: Current time in seconds, on the clock with which the state was made.
        has_best: Whether to show the best run so far; False if the runs do not compete.
    """
    width = console.width
    top = _head(state, at, width)
    facts: list[tuple[str, str, str]] = []
    if has_best:
        facts.append(("best", _best_words(state), "green"))
        if state.target is not None and state.num_searched:
            reached = f"reached by {state.num_reached} of {state.num_searched}"
            facts.append(("target", f"{target_words(state.metric, state.target)}, {reached}", ""))
    total = "" if state.num_workers is None else f" of {state.num_workers}"
    facts.append(("workers", f"{state.num_training}{total} training", ""))
    top.append(_facts_grid(facts, width))
    causes = sorted(state.causes.values(), key=lambda cause: -cause.count)
    failed = [f"{cause.count} {cause.failure} ({cause.message})" for cause in causes[:MOST_CAUSES]]
    if more := sum(cause.count for cause in causes[MOST_CAUSES:]):
        failed.append(f"{more} of other causes")
    failure_rows = [
        ("" if number else "failed", words, "red") for number, words in enumerate(failed)
    ]
    bottom = [_facts_grid(failure_rows, width, 1)] if failure_rows else []
    rows: list[RenderableType] = _running(console, state, at)
    if not rows and not state.pace.num_done:
        rows = [Text(STARTING)]
    return Group(*top, *([Text(), *rows] if rows else []), *bottom)


def _head(state: LiveState, at: float, width: int) -> list[RenderableType]:
    pace = state.pace
    counts = f"{PHASE_NAMES.get(state.phase, state.phase)}: {pace.num_done} of {pace.num_runs} done"
    left, left_words = state.time_left(at), ""
    if left is not None:
        left_words = f"about {duration(left.seconds)} left"
        if left.is_budget:
            left_words = f"at most {duration(left.seconds)} left (time budget)"
    parts = [counts, f"{duration(at - state.began_s)} elapsed", left_words]
    lines: list[RenderableType] = [_text(", ".join(filter(None, parts)), width, "bold")]
    if pace.num_runs:
        totals = {"total": pace.num_runs, "completed": min(pace.num_done, pace.num_runs)}
        styles = {"complete_style": "cyan", "finished_style": "cyan"}
        bar = Table.grid()
        bar.add_row(ProgressBar(**totals, **styles, width=min(width, BAR_WIDTH)))  # type: ignore[arg-type]
        lines.append(bar)
    return lines


def _text(text: str, width: int, style: str = "", *, lines: int = MOST_TEXT_LINES) -> Text:
    """Return text from the user without control characters, shortened to about `lines` lines."""
    room = lines * width - (width // 4 if lines > 1 else 0)
    return Text(shorten(clean(text), max(room, 8)), style, overflow="fold")


def _facts_grid(
    facts: Iterable[tuple[str, str, str]], width: int, lines: int = MOST_TEXT_LINES
) -> Table:
    """Return a table with one row per fact, each given as (name, text, style)."""
    grid = Table.grid()
    grid.add_column(width=NAMES_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for name, text, style in facts:
        grid.add_row(name, _text(text, max(width - NAMES_WIDTH, 1), style, lines=lines))
    return grid


SPARKLINE_WIDTH = 16
"""Width of a sparkline in characters."""
LEAST_WIDTHS = {"train s": 60, "curve": 60, "samples/s": 100}
"""Minimum width of the terminal at which a column is shown; 30 for columns that are not listed."""
LONGEST_NAME, LEAST_RUNS = 20, 4
"""LONGEST_NAME: maximum width of the name of a trial. LEAST_RUNS: number of runs that are listed
even if the terminal has few lines."""


def _running(console: Console, state: LiveState, at: float) -> list[RenderableType]:
    """Return the table of open (unfinished) runs; runs that train come first.

    If the console has too few lines, a last line counts the runs that are left out.
    """
    runs = sorted(state.runs.values(), key=lambda run: run.evaluation is None)
    if not runs:
        return []
    columns = [state.metric.words, "train s", "samples/s"]
    columns += [] if console.options.ascii_only else ["curve"]
    columns = [column for column in columns if console.width >= LEAST_WIDTHS.get(column, 30)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("trial", max_width=LONGEST_NAME, overflow="ellipsis", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for column in columns:
        style: dict[str, Any] = {"style": "cyan"} if column == "curve" else {"justify": "right"}
        table.add_column(column, no_wrap=True, **style)
    runs_shown = runs[: max(console.height // 3, LEAST_RUNS)]
    values = [value for run in runs_shown for value in run.values]
    scale = values if state.target is None else [*values, state.target]
    for run in runs_shown:
        label = _text(run.label, console.width // 2, lines=2)
        if run.evaluation is None:
            label.append(f"\n{clean(_start_status(state, run, at))}")
        cells = _cells(run, scale)
        table.add_row(Text(clean(run.name)), label, *(cells.get(column, "") for column in columns))
    if not (remaining := runs[len(runs_shown) :]):
        return [table]
    training = sum(run.evaluation is not None for run in remaining)
    left_out = (
        f"and {len(remaining)} more: {training} training, {len(remaining) - training} not yet"
    )
    return [table, _text(left_out, console.width, "dim")]


def _start_status(state: LiveState, run: LiveRun, at: float) -> str:
    """Return what a run without an evaluation does: it waits for resources, or starts."""
    if run.name in state.waiting:
        resource, seconds = state.waiting[run.name]
        return f"waiting {seconds:.0f} s for {resource}"
    return f"{STARTING}, {at - run.asked_s:.0f} s"


def _cells(run: LiveRun, scale: Sequence[float]) -> dict[str, str]:
    point = run.evaluation
    if point is None:
        return {}
    return {
        run.metric.words: run.metric.shown(point.value),
        "train s": seconds_text(point.train_s),
        "samples/s": f"{point.samples_per_s:,.0f}",
        "curve": sparkline(run.values, SPARKLINE_WIDTH, others=scale),
    }


PER_SECOND = 4
NOTEBOOK_S = 1.0
"""Minimum seconds between updates in a notebook, since each update is a message to the browser."""
NOTEBOOK_SIZE = {"width": 100, "height": 30}
Draw = Callable[[Console], RenderableType]
"""Type of a function that returns the screen in the size of a console."""


class TerminalView(Live):
    """Live screen on a terminal, which a separate thread redraws a few times per second."""

    def __init__(self, console: Console, draw: Draw) -> None:
        super().__init__(
            get_renderable=lambda: draw(console),
            console=console,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        if isinstance(console, WholeLines):
            # Drawing acquires first the lock of Live and then that of the console, while printing
            # does the opposite. With a single lock for both, there can be no deadlock.
            self._lock = console.turn

    def changed(self) -> None:
        """Do nothing, because the thread redraws the screen."""


class NotebookView:
    """Live screen in a notebook, as an output that is updated in place."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._display = notebook_display()
        self._shown_s = -math.inf

    def changed(self) -> None:
        """Update the output, at most once per NOTEBOOK_S seconds."""
        if time.monotonic() - self._shown_s >= NOTEBOOK_S:
            self.start()

    def stop(self) -> None:
        """Show the final state."""
        self.start()

    def start(self) -> None:
        """Show the current state."""
        is_new, self._shown_s = self._shown_s == -math.inf, time.monotonic()
        show = self._display.display if is_new else self._display.update
        out = io.StringIO()
        console = Console(file=out, force_jupyter=False, color_system=None, **NOTEBOOK_SIZE)  # type: ignore[arg-type]
        console.print(self._draw(console))
        text = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
        style = "line-height:1.25;white-space:pre;overflow-x:auto"
        page = f'<pre style="{style}">{html.escape(text)}</pre>'
        show({"text/html": page, "text/plain": text}, raw=True)


View = TerminalView | NotebookView
"""Type of a live screen."""


def view_for(console: Console, draw: Draw) -> View | None:
    """Return a live screen for a console; None if the console cannot redraw its output."""
    if console.is_jupyter:
        return NotebookView(draw)
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(console, draw)
    return None


def notebook_display() -> Any:
    """Create an output in the notebook that can be updated (a DisplayHandle of IPython)."""
    return importlib.import_module("IPython.display").DisplayHandle()
