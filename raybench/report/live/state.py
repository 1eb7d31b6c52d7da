"""State of a study, as its events tell it: counts, the best so far, what runs and failed, and
how long the runs of a phase that are left will take.

Events in, numbers out: no clock, no terminal, no files. Every event is given the moment at which
it happened, in seconds of any one clock.
"""

import bisect
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.report.tables import cause_of
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe
from raybench.stats.record import Evaluation, RunRecord

ENOUGH_RUNS = 3
"""Finished runs of a phase before a time left is shown, where nothing was expected before."""
EXPECTED_RUNS = 3
"""Runs of a phase that the expectation of its seconds counts for."""
MOST_OF_RUN = 0.9
"""A run that lasts longer than the others is taken to be nearly done."""
LEAST_RECENT, MOST_RECENT = 8, 256
"""The newest half of the runs is asked, within these: a search's runs become shorter, as groups
are warm and the bad ones are stopped early."""


class _Done(NamedTuple):
    at: float
    run_s: float
    """Seconds without those in which it waited for workers."""


@dataclass
class Pace:
    """The runs of one phase, and when they were done; times are seconds of the state's clock."""

    began_s: float
    num_runs: int
    """Runs of the phase."""
    num_done: int = 0
    expect_s: float | None = None
    """Seconds that all of its runs that were left in the beginning take, as was known before."""

    def __post_init__(self) -> None:
        self._num_before = self.num_done
        self._recent: deque[_Done] = deque(maxlen=2 * MOST_RECENT)

    def finished(self, record: RunRecord, at: float) -> None:
        """Count a run."""
        self.num_done += 1
        self._recent.append(_Done(at, max(record.wall_s - record.ledger["queue"], 0.0)))

    def left_s(self, at: float, ages: Iterable[float] = ()) -> float | None:
        """Return the seconds until the phase ends; `ages` are those of the runs that train.

        None while it is not known.
        """
        num_new = self.num_done - self._num_before
        if num_new < ENOUGH_RUNS and self.expect_s is None:
            return None
        recent = list(self._recent)[-min(max(num_new // 2, LEAST_RECENT), MOST_RECENT) :]
        is_all = len(recent) == num_new
        since_s = self.began_s if is_all else self._recent[-len(recent) - 1].at
        mean_s = sum(done.run_s for done in recent) / len(recent) if recent else 0.0
        begun = sum(min(age / mean_s, MOST_OF_RUN) for age in ages) if mean_s else 0.0
        weight, expected_s = 0, 0.0
        if self.expect_s is not None:
            weight = EXPECTED_RUNS
            expected_s = self.expect_s / max(self.num_runs - self._num_before, 1)
        # Those that had begun when the recent ones did are as many as have begun now.
        units = len(recent) + (begun if is_all else 0.0)
        each_s = (weight * expected_s + at - since_s) / max(weight + units, 1.0)
        return max(self.num_runs - self.num_done - begun, 0.0) * each_s


class TimeLeft(NamedTuple):
    """Time that is left of a study."""

    seconds: float
    is_budget: bool
    """Whether the time budget ends it before its work would."""


@dataclass
class LiveRun:
    """A run that was asked for and has not ended."""

    name: str
    asked_s: float
    label: str = ""
    metric: Metric = ACCURACY
    num_workers: int = 1
    evaluation: Evaluation | None = None
    """The newest one."""
    trains_since_s: float = 0.0
    """Moment at which its training began, judged by its first evaluation."""
    heard_s: float = 0.0
    """Moment at which it was last heard of."""
    values: list[float] = field(default_factory=list)
    """The metric at its evaluations."""
    _indices: list[int] = field(default_factory=list)

    def add(self, evaluation: Evaluation, at: float) -> None:
        """Take an evaluation; one that is repeated after a restart drops what followed it."""
        if self.evaluation is None:
            self.trains_since_s = max(self.asked_s, at - evaluation.train_s)
        self.evaluation, self.heard_s = evaluation, at
        kept = bisect.bisect_left(self._indices, evaluation.index)
        del self._indices[kept:], self.values[kept:]
        self._indices.append(evaluation.index)
        self.values.append(evaluation.value)


@dataclass
class Cause:
    """Failures of one cause: the first of them, and how many."""

    trial: str
    failure: str
    message: str | None
    count: int = 0


class LiveState:
    """A study from its first event on."""

    def __init__(self, at: float, *, num_runs: int = 0, keys: Iterable[str] = ()) -> None:
        self.began_s = at
        self.phase, self.pace = "search", Pace(at, num_runs)
        self.after_s = 0.0
        """Seconds of what follows this phase; a part of the time left."""
        self.ends_s: float | None = None
        """Moment at which the time budget ends."""
        self.num_workers: int | None = None
        """All that the machines have room for; None where it is not known."""
        self.runs: dict[str, LiveRun] = {}
        """Runs that were asked for, in that order."""
        self.waiting: Mapping[str, tuple[str, float]] = {}
        """Resource that a run without workers waits for, and seconds waited."""
        self.causes: dict[str, Cause] = {}
        self.best: RunRecord | None = None
        self.metric: Metric = ACCURACY
        """Metric of the runs begun last; all runs of a study have one."""
        self.target: float | None = None
        """Value of the metric that the search asks for."""
        self.num_finished = 0
        """Runs of all phases that are done."""
        self.num_searched, self.num_reached = 0, 0
        """Runs of the search that are done, and those of them that reached the target."""
        self.keys = tuple(keys)
        """Keys that labels show (`results.label.label_keys`)."""

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
    ) -> None:
        """Start counting another phase's runs, or a phase anew that has come to have other ones.

        `expect_s`: what its runs take together, as far as it was known before. What follows the
        phase is 0 again.
        """
        self.phase, self.after_s = phase, 0.0
        self.pace = Pace(at, num_runs, num_done, expect_s)

    def started(self, name: str, spec: RunSpec, at: float) -> None:
        """Take a run that was asked for."""
        self.metric = spec.objective.judged_by
        label = self.label(spec)
        self.runs[name] = LiveRun(name, at, label, self.metric, spec.num_workers, heard_s=at)
        if self.phase == "search":
            self._aim(spec)

    def evaluated(self, name: str, evaluation: Evaluation, at: float) -> None:
        """Take a run's newest evaluation."""
        if name in self.runs:
            self.runs[name].add(evaluation, at)

    def finished(self, record: RunRecord, at: float) -> Cause | None:
        """Count a run that has ended; return the cause of its failure, if it failed."""
        self.runs.pop(record.trial, None)
        self.num_finished += 1
        self.pace.finished(record, at)
        if record.phase == "search":
            self.num_searched += 1
            self.metric = record.spec.objective.judged_by
            self._aim(record.spec)
        if record.failure is not None:
            key = cause_of(record.failure, record.message)
            first = Cause(record.trial, record.failure, record.message)
            cause = self.causes.setdefault(key, first)
            cause.count += 1
            return cause
        if record.phase == "search":  # others are lucky, or judged otherwise
            self.num_reached += record.time_to_target_s is not None
            if record.samples and (self.best is None or record.score < self.best.score):
                self.best = record
        return None

    def _aim(self, spec: RunSpec) -> None:
        objective = spec.objective
        self.target = objective.target if objective.kind == TIME else None

    @property
    def training(self) -> list[LiveRun]:
        """The runs that have shown an evaluation."""
        return [run for run in list(self.runs.values()) if run.evaluation is not None]

    @property
    def is_starting(self) -> bool:
        """Whether a run was asked for that has shown nothing yet."""
        return any(run.evaluation is None for run in list(self.runs.values()))

    @property
    def num_training(self) -> int:
        """Workers that train now."""
        return sum(run.num_workers for run in self.training)

    def time_left(self, at: float) -> TimeLeft | None:
        """Return the time left, what follows the phase included; None if nothing is known of it.

        The time budget is the longest that it can be.
        """
        found = self.pace.left_s(at, [at - run.trains_since_s for run in self.training])
        is_known = self.phase != "reference"  # nobody knows how long the search after it takes
        work_s = found + self.after_s if is_known and found is not None else None
        budget_s = None if self.ends_s is None else max(self.ends_s - at, 0.0)
        if budget_s is not None and (work_s is None or budget_s < work_s):
            return TimeLeft(budget_s, is_budget=True)
        return None if work_s is None else TimeLeft(work_s, is_budget=False)
