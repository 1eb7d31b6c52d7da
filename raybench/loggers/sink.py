"""What a tool is told of a study, in which order, and under which names."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raybench.results.ranking import confirmed
from raybench.spec.run import RunSpec
from raybench.spec.text import HIDDEN, KEY, clean, redact_text
from raybench.stats.record import Evaluation, Role, RunRecord

if TYPE_CHECKING:  # pandas takes a second to import: not before all is trained
    from raybench.results.study import Study

Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as a tool is told of it."""

    name: str
    """Its own in the study; cleaned, but from a file all the same."""
    role: Role
    spec: RunSpec
    began: float
    """Unix seconds at which its training clock would have been at 0, had it run through."""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """A configuration that won."""

    title: str
    """What it is: `fastest`, `cheapest`; of several models of GPU `fastest on H100`."""
    trial: str
    config: str
    """It in one line."""
    is_confirmed: bool
    """Whether `figures` are of runs with new seeds; otherwise of the search's one run."""
    figures: dict[str, float]
    """Seconds to the target and their 90 % interval, worker-seconds, runs, hits, the metric."""
    spec: RunSpec


class Sink(Protocol):
    """Writes to one tool; whatever goes wrong is raised, and ends this tool's logging alone.

    Calls for a run are `start`, then `points`, then `end` or `cut_off`; runs overlap. A run that
    is started again (its workers were lost, the study was interrupted) stands in the tool once:
    `start` is given what it returned for the earlier attempt, and takes that away.
    """

    place: str
    """Where it writes, without secrets: what lies elsewhere has not been written here."""

    def has(self, name: str) -> bool:
        """Whether a run that was written is still there, as far as that is known."""

    def start(self, run: Run, earlier: str | None) -> str:
        """Begin a run, in place of the `earlier` one; return its name in the tool."""

    def points(self, run: Run, points: Sequence[Evaluation]) -> None:
        """Add evaluations to a run's curve."""

    def end(self, run: Run, record: RunRecord) -> None:
        """End a run with what is known of it."""

    def cut_off(self, run: Run) -> None:
        """End a run that has no record: nobody trains it any more."""

    def winners(self, winners: Sequence[Winner], earlier: str | None) -> str:
        """Write a study's winners, in place of what was written of it `earlier`; return its
        name in the tool."""

    def flush(self) -> None:
        """Let what was written be seen."""

    def close(self) -> str:
        """End; return where to look, for the end of a sentence."""


def params_of(spec: RunSpec) -> dict[str, Value]:
    """Return a spec's keys, `dataset.name` for those that lie deeper, without those not set.

    Lists are JSON; what looks secret is hidden.
    """
    found: dict[str, Value] = {}
    _flatten(spec.document(), "", found)
    return found


def curve_values(point: Evaluation, metric_name: str) -> dict[str, float]:
    """Return what is drawn of an evaluation, without what is not finite.

    | name | of it |
    |---|---|
    | validation_accuracy | the metric (or another one) on the validation split |
    | train_loss | mean since the last evaluation |
    | learning_rate | of the last step |
    | samples_per_s | training samples per second of training |
    | epoch, samples, train_s | how far the training is; the last is seconds |
    """
    values = {
        f"validation_{metric_name}": point.value,
        "train_loss": point.train_loss,
        "learning_rate": point.learning_rate,
        "samples_per_s": point.samples_per_s,
        "epoch": point.epoch,
        "samples": float(point.samples),
        "train_s": point.train_s,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def run_figures(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a run that has ended, without those it has none of.

    `time_to_target_s`, `worker_seconds_to_target`, `best_accuracy` and `test_accuracy` (or of
    another metric), `train_s`, `wall_s`, `samples`, `num_parameters`, and seconds of every phase
    as `ledger.<phase>_s`.
    """
    metric, seconds = record.spec.objective.judged_by, record.time_to_target_s
    found: dict[str, float | None] = {
        "time_to_target_s": seconds,
        "worker_seconds_to_target": seconds and seconds * record.spec.num_workers,
        metric.best_column: record.best_value,
        metric.test_column: record.test_value,
        "train_s": record.ledger["train"],
        "wall_s": record.wall_s,
        "samples": record.samples,
        "num_parameters": record.num_parameters,
    }
    found |= {f"ledger.{clean(phase)}_s": spent for phase, spent in record.ledger.items()}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def run_words(record: RunRecord) -> dict[str, str]:
    """Return the words of a run that has ended: role, state, stop, failure, message, source."""
    found = {
        "role": record.role,
        "state": record.state,
        "stop": record.stop,
        "failure": record.failure,
        "message": record.message,
        "source": record.source,
    }
    return {name: shown(value) for name, value in found.items() if value is not None}


def shown(text: str) -> str:
    """Return a text from outside, in one line and without secrets."""
    return redact_text(clean(text), os.environ)


def _flatten(content: Mapping[str, Any], above: str, found: dict[str, Value]) -> None:
    for key, value in content.items():
        name = f"{above}{clean(str(key))}"
        if isinstance(value, dict):
            _flatten(value, f"{name}.", found)
        elif isinstance(value, bool | int | float):
            found[name] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            is_secret = KEY.search(f"{name}=x") is not None
            found[name] = HIDDEN if is_secret else shown(text)


CONFIRMED = {
    "time_to_target_s": "printed_s",
    "interval_low_s": "interval_low_s",
    "interval_high_s": "interval_high_s",
    "worker_seconds_to_target": "worker_seconds_to_target",
    "runs": "new_runs",
    "hits": "new_hits",
    "search_s": "search_s",
}
"""Figures of a winner, and the columns of `confirmed` that hold them."""


def winners_of(results: "Study") -> list[Winner]:
    """Return the fastest and the cheapest of every model of GPU; none of what is no search."""
    from raybench.results.verdict import judge_each

    if results.is_scaling or results.study["study"].get("run"):
        return []
    found = []
    for kind, verdict in judge_each(results).items():
        where = f" on {kind}" if kind else ""
        best = "fastest" if results.is_timed else "best"
        trials = {best: verdict.fastest, "cheapest": verdict.cheapest}
        if not results.is_timed:
            del trials["cheapest"]
        for title, trial in trials.items():
            spec = results.runs[trial].spec
            found.append(
                Winner(
                    title=f"{title}{where}",
                    trial=trial,
                    config=results.label(spec),
                    is_confirmed=verdict.is_confirmed,
                    figures=_figures(results, trial, is_confirmed=verdict.is_confirmed),
                    spec=spec,
                )
            )
    return found


def _figures(results: "Study", trial: str, *, is_confirmed: bool) -> dict[str, float]:
    import pandas as pd

    metric = results.metric
    table = confirmed(results) if is_confirmed else results.trials
    row = table.set_index("trial").loc[trial].to_dict()
    if is_confirmed:
        found = {name: row.get(column) for name, column in CONFIRMED.items()}
        found |= {metric.name: row[f"median_{metric.name}"]}
        found |= {metric.test_column: row[metric.test_column]}
    else:
        seconds = row["crossed_s"] if results.is_timed else math.nan
        found = {"time_to_target_s": seconds, "runs": 1, "hits": int(pd.notna(seconds))}
        found |= {"worker_seconds_to_target": seconds * row["num_workers"]}
        found |= {metric.name: row[metric.best_column]}
    return {
        name: float(value)
        for name, value in found.items()
        if pd.notna(value) and math.isfinite(value)
    }
