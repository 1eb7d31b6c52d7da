"""The screen of one training: its curve as lines, and below them how far it is."""

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.text import Text

from raybench.core.metric import ACCURACY, Metric
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec
from raybench.results.console import say
from raybench.results.live.durations import about
from raybench.results.live.glyphs import Glyphs, span, sparkline
from raybench.results.live.state import LiveRun
from raybench.results.live.views import View, view_for
from raybench.results.live.words import STARTING, metric_words
from raybench.results.words import target_words

ROWS = 12
"""Evaluations that a notebook shows; on a terminal all of them stay."""
CURVE = 30


class TrainingScreen:
    """Shows one run; `with` it, so that it is on the screen while it trains.

    A line an evaluation on a terminal and in a pipe; in a notebook one display, changed in place.
    """

    def __init__(
        self, console: Console, spec: RunSpec, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._console, self._spec, self._clock = console, spec, clock
        self._metric = spec.objective.judged_by
        self._run = LiveRun("", asked_s=clock(), metric=self._metric)
        self._rows: list[str] = []
        self._waits = ""
        self._view: View | None = view_for(console, self._draw)

    def __enter__(self) -> "TrainingScreen":
        if not self._console.is_jupyter:
            say(self._console, curve_head(self._metric))
        if self._view is not None:
            self._view.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.stop()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Show an evaluation."""
        self._run.add(evaluation, self._clock())
        line = curve_line(self._metric, evaluation)
        self._rows = [*self._rows[1 - ROWS :], line]
        if not self._console.is_jupyter:
            say(self._console, line)
        if self._view is not None:
            self._view.changed()

    def waiting(self, what: Mapping[str, str]) -> None:
        """Show what the run waits for; nothing where it has its workers."""
        self._waits = "".join(what.values())

    def left_s(self) -> float | None:
        """Return the seconds until the run ends by itself, if nothing ends it before.

        Evaluations take their time too: what has passed for a second of training passes again.
        """
        point, limit_s = self._run.evaluation, self._spec.objective.max_train_seconds
        if point is None or point.train_s <= 0:
            return None
        left = max(limit_s - point.train_s, 0.0)
        if point.epoch > 0:
            epochs_left = max(self._spec.epochs - point.epoch, 0.0)
            left = min(left, epochs_left * point.train_s / point.epoch)
        since_s = self._clock() - self._run.heard_s
        spent_s = self._run.heard_s - self._run.trains_since_s
        return max(left * max(spent_s / point.train_s, 1.0) - since_s, 0.0)

    def _draw(self, width: int, height: int, glyphs: Glyphs) -> list[Text]:
        del height
        rows = [curve_head(self._metric), *self._rows] if self._console.is_jupyter else []
        return [*map(Text, rows), *self._standing(width, glyphs)]

    def _standing(self, width: int, glyphs: Glyphs) -> list[Text]:
        run, target = self._run, self._spec.objective.target
        if run.evaluation is None:
            doing = f"waits for {self._waits}" if self._waits else STARTING
            return [Text(f"{doing}, {self._clock() - run.asked_s:.0f} s")]
        parts = [metric_words(self._metric, self._metric.best(run.values))]
        if target is not None:
            parts.append(f"target {target_words(self._metric, target)}")
        left_s = self.left_s()
        if left_s is not None:
            parts.append(f"at most {about(left_s)} left")
        words = "best " + ", ".join(parts)
        values = run.values if target is None else [*run.values, target]
        low, high = span(values)
        room = min(CURVE, width - len(words) - 2)
        if room < 1:
            return [Text(words)]
        curve = sparkline(run.values, room, glyphs, low=low, high=high)
        return [Text(f"{curve}  {words}")]


def curve_head(metric: Metric) -> str:
    """Return the head of the curve; a validation loss is told from that of training."""
    words = "validation" if metric.name == "loss" else metric.words
    return f"  epoch    samples   train s     loss {words:>9}   samples/s  learning rate"


def curve_line(metric: Metric, evaluation: Evaluation) -> str:
    """Return an evaluation as a line below `curve_head`."""
    width = max(len(curve_head(metric)) - len(curve_head(ACCURACY)) + 9, 9)
    value = f"{100 * evaluation.value:.2f}%" if metric.is_share else f"{evaluation.value:.5g}"
    return (
        f"{evaluation.epoch:7.2f} {evaluation.samples:10,} {evaluation.train_s:9.2f} "
        f"{evaluation.train_loss:8.4f} {value:>{width}} "
        f"{evaluation.samples_per_s:11,.0f} {evaluation.learning_rate:14.4g}"
    )
