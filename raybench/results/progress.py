"""The live screen of a search: progress, best so far, running trials, failures by cause."""

import time
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raybench.core.metric import ACCURACY, Metric
from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.core.text import clean, shorten
from raybench.results.console import say
from raybench.results.failures import cause_of
from raybench.results.label import describe

STARTING = "starting workers"
ENOUGH_RUNS = 3
"""Finished runs of a phase before a time left is told."""
MOST_CAUSES = 5
"""Causes of failures that the screen has room for."""


class Progress:
    """One screen on a terminal; a line per finished trial elsewhere."""

    def __init__(
        self,
        console: Console,
        *,
        num_trials: int,
        num_done: int = 0,
        keys: Iterable[str] = (),
        outcome: Callable[[RunRecord], str] | None = None,
    ) -> None:
        """Show `num_trials`; `keys` are those that labels tell (`results.label.label_keys`).

        `outcome` says how a run ended that did not fail, where they are no trials of a search and
        none is the best of them.
        """
        self.after_s = 0.0
        """Seconds of what follows this phase; a part of the time left. `begin` sets it to 0."""
        self._console, self._keys, self._outcome = console, tuple(keys), outcome
        self._num_trials, self._num_done, self._num_before = num_trials, num_done, num_done
        self._phase = "search"
        self._metric: Metric = ACCURACY
        """Of the runs that were started last; all runs of a study have one."""
        self._running: dict[str, _Running] = {}
        self._failures: dict[str, _Cause] = {}
        self._best: RunRecord | None = None
        self._began = time.perf_counter()
        self._live: Live | None = None
        self._has_started = False
        self._waiting: Mapping[str, tuple[str, float]] = {}
        self._told: str | None = None
        """What was last said of waiting, where there is no screen."""

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the screen."""
        say(self._console, text)

    def begin(self, phase: str, num_runs: int, *, num_done: int = 0) -> None:
        """Start counting another phase's runs, of which some are done; nothing is known to follow.

        Or count a phase anew that has come to have other runs.
        """
        self._phase, self._num_trials = phase, num_runs
        self._num_done = self._num_before = num_done
        self._began, self.after_s = time.perf_counter(), 0.0

    def started(self, name: str, spec: RunSpec) -> None:
        """Show a run that was asked for: its workers start until its first evaluation."""
        self._metric = spec.objective.judged_by
        self._running[name] = _Running(describe(spec, self._keys), self._metric)
        if not self._has_started and self._live is None:
            self.say(f"{self._phase}: {STARTING}")  # nothing else is said for a while
        self._has_started = True

    @property
    def is_starting(self) -> bool:
        """Whether a run was asked for that has shown nothing yet; asked in any thread."""
        return any(run.evaluation is None for run in list(self._running.values()))

    def waiting(self, what: Mapping[str, tuple[str, float]], *, head: str | None = None) -> None:
        """Show for runs without workers what each waits for and for how many seconds by now.

        Called in any thread. `head`: the one for which the machines are missing, if one is; where
        there is no screen it is said once, and again when it waits for something else.
        """
        self._waiting = what
        told = None if head is None else f"trial {head} waits for {what[head][0]}"
        if told is not None and told != self._told and self._live is None:
            self.say(f"{self._phase}: {told}")
        self._told = told or self._told

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Show a run's newest evaluation."""
        if name in self._running:
            self._running[name].evaluation = evaluation

    def finished(self, record: RunRecord) -> None:
        """Count a run; print its line where there is no screen, and a failure of a new cause."""
        self._running.pop(record.trial, None)
        self._num_done += 1
        line = self._one_line(record)
        if record.failure:
            cause = self._failures.setdefault(
                cause_of(record.failure, record.message), _Cause(record)
            )
            cause.count += 1
            if cause.count > 1:
                line = f"{self._where(record)}  {cause.again()}"
            elif self._live is not None:
                self.say(line)
        elif self._best is None or record.score < self._best.score:
            self._best = record
        if self._live is None:
            self.say(f"{self._phase} {self._num_done}/{self._num_trials}  {line}")

    def seconds_left(self) -> float | None:
        """Return the time left by the runs so far, what follows included; None if not known."""
        fresh = self._num_done - self._num_before
        if fresh < ENOUGH_RUNS:
            return None
        seconds = time.perf_counter() - self._began
        return seconds / fresh * max(self._num_trials - self._num_done, 0) + self.after_s

    def _render(self) -> Group:
        seconds, left = time.perf_counter() - self._began, self.seconds_left()
        head = f"{self._phase}: {self._num_done} of {self._num_trials} done, {seconds:.0f} s"
        if left is not None:
            head += f", about {left:.0f} s left"
        lines = [Text(head)]
        if self._outcome is None:
            best = self._one_line(self._best) if self._best else "none"
            lines.append(Text(f"best so far: {best}"))
        causes = sorted(self._failures.values(), key=lambda cause: -cause.count)
        failed = [_plain(cause.summary(), self._console.width) for cause in causes[:MOST_CAUSES]]
        more = sum(cause.count for cause in causes[MOST_CAUSES:])
        if more:
            failed.append(Text(f"failed: {more} of other causes"))
        if not self._running:
            waiting = [Text(STARTING)] if not self._num_done - self._num_before else []
            return Group(*lines, *waiting, *failed)
        return Group(*lines, self._table(), *failed)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("trial", "configuration", "train s", self._metric.words, "samples/s"):
            is_text = title == "configuration"
            # Only the configuration takes several lines; nothing else is cut.
            table.add_column(
                title,
                justify="left" if is_text else "right",
                no_wrap=not is_text,
                overflow="fold",
                min_width=None if is_text else len(title),
            )
        for name, run in list(self._running.items()):
            cells = run.cells(self._waiting.get(name))
            table.add_row(*(Text(clean(cell)) for cell in (name, *cells)))
        return table

    def _where(self, record: RunRecord) -> str:
        what = "trial" if self._outcome is None else "run"
        return f"{what} {record.trial}  {describe(record.spec, self._keys)}"

    def _one_line(self, record: RunRecord) -> str:
        where = self._where(record)
        if record.failure:
            return f"{where}  failed: {record.failure} ({record.message})"
        if self._outcome is not None:
            return f"{where}  {self._outcome(record)}"
        if record.time_to_target_s is not None:
            return f"{where}  target after {record.time_to_target_s:.2f} s"
        metric = record.spec.objective.judged_by
        name = "" if metric.is_share else f"{metric.words} "
        reached = f"{name}{metric.shown(record.best_value)}"
        return f"{where}  {reached} after {record.ledger['train']:.2f} s, stopped by {record.stop}"


class _Running:
    """A run on the screen."""

    def __init__(self, label: str, metric: Metric) -> None:
        self._label, self._metric, self._asked = label, metric, time.perf_counter()
        self.evaluation: Evaluation | None = None

    def cells(self, waiting: tuple[str, float] | None) -> tuple[str, str, str, str]:
        if self.evaluation is None and waiting is not None:
            return f"{self._label}  waits for {waiting[0]}, {waiting[1]:.0f} s", "", "", ""
        if self.evaluation is None:
            waited = time.perf_counter() - self._asked
            return f"{self._label}  {STARTING}, {waited:.0f} s", "", "", ""
        return (
            self._label,
            f"{self.evaluation.train_s:.2f}",
            self._metric.shown(self.evaluation.value),
            f"{self.evaluation.samples_per_s:,.0f}",
        )


class _Cause:
    """Failures of one cause: the first of them, and how many."""

    def __init__(self, record: RunRecord) -> None:
        self._trial, self._failure = record.trial, record.failure
        self._message = record.message
        self.count = 0

    def again(self) -> str:
        return f"failed: {self._failure}, as trial {self._trial} did ({self.count} by now)"

    def summary(self) -> str:
        return f"failed: {self.count} {self._failure} ({self._message})"


def _plain(text: str, width: int) -> Text:
    return Text(shorten(clean(text), max(width, 20)))
