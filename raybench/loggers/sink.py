"""Sinks: what is written of a study to a tool, in which order, and under which names."""

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

if TYPE_CHECKING:  # pandas takes a second to import: not before all is trained
    from raybench.results.study import Study
    from raybench.results.verdict import Winner as Named

Value = str | int | float | bool
Figures = Mapping[str, float]
WINNERS = "winners"
"""The run that holds a study's winners. No run of a study has such a name."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run as a tool knows it."""

    name: str
    """Its own in the study; cleaned, but from a file all the same."""
    role: Role
    spec: RunSpec
    began: float
    """Unix seconds at which its training clock would have been at 0, had it run through."""


@dataclass(frozen=True, kw_only=True)
class LoggedWinner:
    """A configuration that won."""

    title: str
    """Title: `fastest`, `cheapest`; of several models of GPU `fastest on H100`."""
    trial: str
    config: str
    """Configuration in one line, without secrets."""
    is_confirmed: bool
    """Whether `figures` are of runs with new seeds; otherwise of the search's one run."""
    figures: dict[str, float]
    """Seconds to the target and their 90 % interval, worker-seconds, runs, hits, the metric."""
    spec: RunSpec

    @property
    def proof(self) -> str:
        """`is_confirmed` in words."""
        return "confirmed by new runs" if self.is_confirmed else "one run, not confirmed"


class Sink(Protocol):
    """Writes to one tool; whatever goes wrong is raised, and ends this tool's logging alone.

    Calls for a run are `start`, then `points`, then `end` or `cut_off`; runs overlap. A run that
    is started again (its workers were lost, the study was interrupted) stands in the tool once:
    `start` is given what it returned for the earlier attempt, and takes that away.
    """

    place: str
    """Place that it writes to, without secrets: what lies elsewhere was not written here."""

    def has(self, name: str) -> bool:
        """Whether a run that was written is still there. Where it cannot be known it is believed:
        what the user has deleted stays away."""
        del name
        return True

    def start(self, run: LoggedRun, earlier: str | None) -> str:
        """Begin a run, in place of the `earlier` one; return its name in the tool."""

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        """Add evaluations, as `curve_values` has them, to a run's curve."""

    def end(self, run: LoggedRun, figures: Figures, words: Mapping[str, str]) -> None:
        """End a run with what is known of it: its `run_figures` and `run_words`."""

    def cut_off(self, run: LoggedRun) -> None:
        """End a run that has no record: nobody trains it any more."""

    def winners(self, winners: Sequence[LoggedWinner], earlier: str | None) -> str:
        """Write a study's winners in place of the `earlier` ones; return their name in the tool."""

    def flush(self) -> None:
        """Let what was written be seen; nothing where the tool holds nothing back."""
        return

    def close(self) -> str:
        """End; return where to look, for the end of a sentence."""


def params_of(spec: RunSpec) -> dict[str, Value]:
    """Return a spec's keys, `dataset.name` for those that lie deeper, without those not set.

    Lists are JSON; what looks secret is hidden.
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
    """Return a text from outside, in one line and without secrets."""
    return redact_text(clean(text), os.environ)


def curve_values(point: Evaluation, metric_name: str) -> dict[str, float]:
    """Return what is drawn of an evaluation: the metric on the validation split, the mean training
    loss since the last one, the rate of the last step, speed, and how far the training is."""
    names = ("train_loss", "learning_rate", "samples_per_s", "epoch", "samples", "train_s")
    values = {name: getattr(point, name) for name in names}
    return _finite({f"validation_{metric_name}": point.value} | values)


def run_figures(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a run that has ended; seconds of a phase are `ledger.<phase>_s`."""
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
    """Return the words of a run that has ended."""
    names = ("role", "state", "stop", "failure", "message", "source")
    found = {name: getattr(record, name) for name in names}
    return {name: shown(value) for name, value in found.items() if value is not None}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    known = {name: value for name, value in values.items() if value is not None}
    return {name: float(value) for name, value in known.items() if math.isfinite(value)}


def winners_of(results: "Study") -> list[LoggedWinner]:
    """Return the fastest and the cheapest of every model of GPU; none of what is no search."""
    from raybench.results.verdict import facts_of, judge_each

    if results.is_scaling or results.study["study"].get("run"):
        return []
    found = []
    for kind, verdict in judge_each(results).items():
        facts = facts_of(results, verdict)
        both = {"fastest": facts.fastest, "cheapest": facts.cheapest}
        for title, one in (both if results.is_timed else {"best": facts.fastest}).items():
            winner = LoggedWinner(
                title=f"{title} on {kind}" if kind else title,
                trial=one.trial,
                config=shown(one.label),
                is_confirmed=facts.is_confirmed,
                figures=_figures(results, one, is_confirmed=facts.is_confirmed),
                spec=one.spec,
            )
            found.append(winner)
    return found


def _figures(results: "Study", one: "Named", *, is_confirmed: bool) -> dict[str, float]:
    metric = results.metric
    seconds = one.printed_s if is_confirmed else one.search_s
    found: dict[str, float | None] = {
        "runs": one.runs if is_confirmed else 1,
        "hits": one.hits if is_confirmed else int(math.isfinite(seconds)),
        metric.name: one.value,
        metric.test_column: one.test_value,
    }
    if results.is_timed:
        found["time_to_target_s"] = seconds
        found["worker_seconds_to_target"] = one.spec.num_workers * seconds
        found["interval_low_s"], found["interval_high_s"] = one.ends_s
        found["search_s"] = one.search_s
    return _finite(found)
