"""`Sink`, the interface to an experiment tracker, and the names and values written to it."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from raybench.spec.documents import flat_keys
from raybench.spec.run import RunSpec
from raybench.spec.text import HIDDEN, KEY, clean, redact_text
from raybench.stats.record import Evaluation, Role, RunRecord

if TYPE_CHECKING:  # pandas takes a second to import, so only when training has ended
    from raybench.results.ranking import ConfigurationResult
    from raybench.results.study import Study

Value = str | int | float | bool
Figures = Mapping[str, float]
WINNERS = "winners"
"""Name of the run that holds the winners; no run of a study has that name."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run that is written to an experiment tracker."""

    name: str
    """Name in the study, without control characters."""
    role: Role
    spec: RunSpec
    began: float
    """Unix time at which training would have begun had it never paused."""


@dataclass(frozen=True, kw_only=True)
class LoggedWinner:
    """A configuration that won."""

    title: str
    """`fastest` or `cheapest`, or `best` without a target; on GPUs, for example `fastest on
    H100`."""
    trial: str
    config: str
    """Configuration in one line, without secrets."""
    is_confirmed: bool
    """Whether `figures` come from runs with new seeds; otherwise they come from the search run."""
    figures: dict[str, float]
    """Numbers such as seconds to the target, worker-seconds, number of runs, and the metric."""
    spec: RunSpec

    @property
    def proof(self) -> str:
        """`confirmed by new runs`, or `one run, not confirmed`."""
        return "confirmed by new runs" if self.is_confirmed else "one run, not confirmed"


class Sink(Protocol):
    """Writes to one experiment tracker. An exception ends the logging to this tracker only.

    For each run, `start` is called, then `points` any number of times, then `end` or `cut_off`; the
    calls of several runs interleave. A run that is started again (its workers were lost, or the
    study was interrupted) replaces its earlier attempt, so that the tracker shows it once.
    """

    def start(self, run: LoggedRun) -> None:
        """Start a run, which replaces any earlier attempt of the same name."""

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        """Add evaluations to the learning curve of a run, each as `curve_values` returns it."""

    def end(self, run: LoggedRun, figures: Figures, words: Mapping[str, str]) -> None:
        """End a run and write its numbers (`run_figures`) and text (`run_words`)."""

    def cut_off(self, run: LoggedRun) -> None:
        """End a run that stopped before its final record was written."""

    def winners(self, winners: Sequence[LoggedWinner]) -> None:
        """Write the winners, which replace earlier winners of the study."""

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


def winners_of(results: "Study") -> list[LoggedWinner]:
    """Return the fastest and the cheapest configuration for each GPU model; [] unless the study is
    a search."""
    from raybench.results.ranking import result_of
    from raybench.results.verdict import judge_each

    if results.is_scaling or results.study["study"].get("run"):
        return []
    found = []
    for kind, verdict in judge_each(results).items():
        both = {"fastest": verdict.fastest, "cheapest": verdict.cheapest}
        for title, trial in (both if results.is_timed else {"best": verdict.fastest}).items():
            one = result_of(results, trial, is_confirmed=verdict.is_confirmed)
            winner = LoggedWinner(
                title=f"{title} on {kind}" if kind else title,
                trial=one.trial,
                config=shown(one.config),
                is_confirmed=verdict.is_confirmed,
                figures=_figures(results, one, is_confirmed=verdict.is_confirmed),
                spec=results.specs[one.trial],
            )
            found.append(winner)
    return found


def _figures(
    results: "Study", one: "ConfigurationResult", *, is_confirmed: bool
) -> dict[str, float]:
    metric = results.metric
    seconds = one.printed_s if is_confirmed else one.search_s
    found: dict[str, float | None] = {
        "runs": one.new_runs if is_confirmed else 1,
        "hits": one.new_hits if is_confirmed else int(math.isfinite(seconds)),
        metric.name: one.value,
        metric.test_column: one.test,
    }
    if results.is_timed:
        found["time_to_target_s"] = seconds
        found["worker_seconds_to_target"] = one.num_workers * seconds
        found["interval_low_s"], found["interval_high_s"] = one.interval_low_s, one.interval_high_s
        found["search_s"] = one.search_s
    return _finite(found)
