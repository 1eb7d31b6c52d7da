"""The live screen of a search: progress, best so far, running trials, failures by cause."""

import time
from collections import Counter
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raybench.core.record import Evaluation, RunRecord
from raybench.results.load import describe


class Screen:
    """One screen on a terminal; a line per finished trial elsewhere."""

    def __init__(self, console: Console, *, num_trials: int, num_done: int = 0) -> None:
        self._console = console
        self._num_trials, self._num_done, self._num_before = num_trials, num_done, num_done
        self._phase = "search"
        self._running: dict[str, tuple[dict[str, Any], Evaluation | None]] = {}
        self._failures: Counter[str] = Counter()
        self._best: RunRecord | None = None
        self._began = time.perf_counter()
        self._live: Live | None = None

    def __enter__(self) -> "Screen":
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, phase: str, num_runs: int) -> None:
        """Start counting another phase's runs."""
        self._phase, self._num_trials = phase, num_runs
        self._num_done = self._num_before = 0
        self._began = time.perf_counter()

    def started(self, name: str, spec: dict[str, Any]) -> None:
        """Show a run as waiting for its first evaluation."""
        self._running[name] = (spec, None)

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Show a run's newest evaluation."""
        if name in self._running:
            self._running[name] = (self._running[name][0], evaluation)

    def finished(self, record: RunRecord) -> None:
        """Count a run, and print its line where there is no screen."""
        self._running.pop(record.trial, None)
        self._num_done += 1
        if record.failure:
            self._failures[record.failure] += 1
        elif self._best is None or record.score < self._best.score:
            self._best = record
        if self._live is None:
            self.say(f"{self._phase} {self._num_done}/{self._num_trials}  {_one_line(record)}")

    def _render(self) -> Group:
        seconds = time.perf_counter() - self._began
        fresh = self._num_done - self._num_before
        left = ""
        if fresh >= 3:
            left = f", about {seconds / fresh * (self._num_trials - self._num_done):.0f} s left"
        head = Text(
            f"{self._phase}: {self._num_done} of {self._num_trials} done, {seconds:.0f} s{left}"
        )
        best = Text(f"best so far: {_one_line(self._best)}" if self._best else "best so far: none")
        table = Table(box=None, pad_edge=False)
        for title in ("trial", "configuration", "train s", "accuracy", "samples/s"):
            table.add_column(title, justify="left" if title == "configuration" else "right")
        for name, (spec, evaluation) in list(self._running.items()):
            table.add_row(name, describe(spec), *_point(evaluation))
        failed = ", ".join(f"{count} {cause}" for cause, count in self._failures.items())
        return Group(head, best, table, Text(f"failed: {failed}" if failed else ""))


def _one_line(record: RunRecord) -> str:
    where = f"trial {record.trial}  {describe(record.spec)}"
    if record.failure:
        return f"{where}  failed: {record.failure} ({record.message})"
    accuracy = "none" if record.best_accuracy is None else f"{100 * record.best_accuracy:.1f} %"
    if record.time_to_target_s is not None:
        return f"{where}  target after {record.time_to_target_s:.2f} s"
    return f"{where}  {accuracy} after {record.ledger['train']:.2f} s, stopped by {record.stop}"


def _point(evaluation: Evaluation | None) -> tuple[str, str, str]:
    if evaluation is None:
        return "-", "-", "-"
    return (
        f"{evaluation.train_s:.2f}",
        f"{100 * evaluation.accuracy:.1f} %",
        f"{evaluation.samples_per_s:,.0f}",
    )
