"""`Sink`, the interface to an experiment tracker, and the names and values written to it."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from raybench.spec.documents import flat_keys
from raybench.spec.run import RunSpec
from raybench.spec.text import HIDDEN, KEY, clean, redact_text
from raybench.stats.record import Evaluation, Role, RunRecord

Value = str | int | float | bool
Figures = Mapping[str, float]
CUT_OFF = {"state": "cut off"}
"""Text of a run without a final record; see `Sink.end`."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run that is written to an experiment tracker."""

    name: str
    """Name in the study, without control characters."""
    role: Role
    spec: RunSpec
    began: float
    """Unix time at which training would have begun had it never paused."""


class Sink(Protocol):
    """Writes to one experiment tracker. An exception ends the logging to this tracker only.

    For each run, `start` is called, then `points` any number of times, then `end`; the calls of
    several runs interleave. A run that is started again (its workers were lost, or the
    study was interrupted) replaces its earlier attempt, so that the tracker shows it once.
    """

    def start(self, run: LoggedRun) -> None:
        """Start a run, which replaces any earlier attempt of the same name."""

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        """Add evaluations to the learning curve of a run, each as `curve_values` returns it."""

    def end(self, run: LoggedRun, figures: Figures, words: Mapping[str, str]) -> None:
        """End a run and write its numbers (`run_figures`) and text (`run_words`).

        A run that stopped before its final record was written has no numbers, and the text CUT_OFF.
        """

    def flush(self) -> None:
        """Flush buffered data."""
        return

    def close(self) -> str:
        """Close the tracker; return where to find the output, as the end of a sentence."""


def params_of(spec: RunSpec) -> dict[str, Value]:
    """Return the keys and values of a spec, without None, with nested keys as `dataset.name`.

    Lists are JSON; values that look like secrets are hidden.
    """
    found: dict[str, Value] = {}
    for key, value in flat_keys(spec.document()).items():
        name = clean(key)
        if isinstance(value, bool | int | float):
            found[name] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            found[name] = HIDDEN if KEY.search(f"{name}=x") else shown(text)
    return found


def shown(text: str) -> str:
    """Return user-supplied text as one line without secrets."""
    return redact_text(clean(text), os.environ)


def curve_values(point: Evaluation, metric_name: str) -> dict[str, float]:
    """Return the numbers of an evaluation: validation metric, mean training loss since the previous
    evaluation, learning rate, samples per second, and progress."""
    names = ("train_loss", "learning_rate", "samples_per_s", "epoch", "samples", "train_s")
    values = {name: getattr(point, name) for name in names}
    return _finite({f"validation_{metric_name}": point.value} | values)


def run_figures(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a finished run; the seconds of a phase are `ledger.<phase>_s`."""
    metric, seconds = record.spec.objective.judged_by, record.time_to_target_s
    found = {
        "time_to_target_s": seconds,
        "worker_seconds_to_target": seconds and seconds * record.spec.num_workers,
        metric.best_column: record.best_value,
        metric.test_column: record.test_value,
        "train_s": record.ledger["train"],
        "wall_s": record.wall_s,
        "samples": record.samples,
        "num_parameters": record.num_parameters,
    }
    phases = {f"ledger.{clean(phase)}_s": spent for phase, spent in record.ledger.items()}
    return _finite(found | phases)


def run_words(record: RunRecord) -> dict[str, str]:
    """Return the text fields of a finished run: role, state, failure, ..."""
    names = ("role", "state", "stop", "failure", "message", "source")
    found = {name: getattr(record, name) for name in names}
    return {name: shown(value) for name, value in found.items() if value is not None}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    known = {name: value for name, value in values.items() if value is not None}
    return {name: float(value) for name, value in known.items() if math.isfinite(value)}
