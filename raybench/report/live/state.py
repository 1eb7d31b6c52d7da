"""State of a running study: counts, the best run so far, open and failed runs, and the time left.

The state depends only on events, not on a clock, terminal or files. The time `at` of an event is in
seconds of any monotonic clock. Open runs were requested and have not ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.report.tables import cause_of
from raybench.results.records import add_point
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe
from raybench.stats.record import Evaluation, RunRecord

ENOUGH_RUNS = 3
"""Finished runs needed to estimate the time left of a phase whose duration was not predicted."""


@dataclass
class Pace:
    """The runs of one phase, and when they finished."""

    began_s: float
    num_runs: int
    """Runs of the phase, finished or not."""
    num_done: int = 0
    expect_s: float | None = None
    """Predicted total seconds of the runs that remained when the phase began."""

    def __post_init__(self) -> None:
        self._num_before, self._ends = self.num_done, [self.began_s]

    def finished(self, at: float) -> None:
        """Count a finished run."""
        self.num_done += 1
        self._ends.append(at)

    def left_s(self, at: float) -> float | None:
        """Return the seconds until the phase ends, at the pace of the later half of its finished
        runs (runs of a search become shorter); None if unknown."""
        num_new, num_left = self.num_done - self._num_before, max(self.num_runs - self.num_done, 0)
        if num_new >= ENOUGH_RUNS:
            half = num_new // 2
            return num_left * (at - self._ends[half]) / (num_new - half)
        planned = max(self.num_runs - self._num_before, 1)
        return None if self.expect_s is None else self.expect_s * num_left / planned


class TimeLeft(NamedTuple):
    """Time until a study ends."""

    seconds: float
    is_budget: bool
    """Whether the study ends because of its time budget."""


@dataclass
class LiveRun:
    """A run that was requested and has not ended."""

    name: str
    asked_s: float
    label: str = ""
    metric: Metric = ACCURACY
    num_workers: int = 1
    evaluation: Evaluation | None = None
    """The latest evaluation; other threads read it while `curve` changes."""
    curve: list[Evaluation] = field(default_factory=list)
    """Evaluations of the run's current attempt."""

    @property
    def values(self) -> list[float]:
        """Value of the metric at each evaluation."""
        return [point.value for point in self.curve]


@dataclass
class Cause:
    """Failures of one cause: the first failure, and their number."""

    trial: str
    failure: str
    message: str | None
    count: int = 0


class LiveState:
    """State of a study since its first event."""

    def __init__(self, at: float, *, num_runs: int = 0, keys: Iterable[str] = ()) -> None:
        self.began_s = at
        self.phase, self.pace = "search", Pace(at, num_runs)
        self.after_s = 0.0
        """Predicted seconds of later phases, added to the time left."""
        self.ends_s: float | None = None
        """Time at which the time budget ends."""
        self.num_workers: int | None = None
        """Maximum number of workers that the machines can run; None if unknown."""
        self.runs: dict[str, LiveRun] = {}
        """Open runs in the order they were requested."""
        self.waiting: Mapping[str, tuple[str, float]] = {}
        """For each run without workers, the resource that it waits for, and the seconds waited."""
        self.causes: dict[str, Cause] = {}
        self.best: RunRecord | None = None
        self.metric: Metric = ACCURACY
        """Metric of the study, known from its first run on."""
        self.target: float | None = None
        """Target value of the search, if any."""
        self.num_searched, self.num_reached = 0, 0
        """Finished search runs, and those that reached the target."""
        self.keys = tuple(keys)
        """Keys shown in labels of configurations; see `spec.run.label_keys`."""

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
        """Start a phase, or start it again with another number of runs; resets `after_s`.

        Args:
            phase: Name of the phase.
            num_runs: Number of its runs.
            at: Current time.
            num_done: Number of its runs that have finished already.
            expect_s: Predicted total seconds of its remaining runs.
        """
        self.phase, self.after_s = phase, 0.0
        self.pace = Pace(at, num_runs, num_done, expect_s)

    def started(self, name: str, spec: RunSpec, at: float) -> None:
        """Add a run that was requested."""
        self.metric = spec.objective.judged_by
        label = self.label(spec)
        self.runs[name] = LiveRun(name, at, label, self.metric, spec.num_workers)
        if self.phase == "search":
            self._aim(spec)

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """Add an evaluation to its run."""
        if name in self.runs:
            self.runs[name].evaluation = evaluation
            add_point(self.runs[name].curve, evaluation)

    def finished(self, record: RunRecord, at: float) -> Cause | None:
        """Count a finished run; return the cause of its failure, or None."""
        self.runs.pop(record.trial, None)
        self.pace.finished(at)
        if record.phase == "search":
            self.num_searched += 1
            self.metric = record.spec.objective.judged_by
            self._aim(record.spec)
        if record.failure is not None:
            key = cause_of(record.failure, record.message)
            new_cause = Cause(record.trial, record.failure, record.message)
            cause = self.causes.setdefault(key, new_cause)
            cause.count += 1
            return cause
        if record.phase == "search":  # other phases repeat the best, or have other objectives
            self.num_reached += record.time_to_target_s is not None
            if record.samples and (self.best is None or record.score < self.best.score):
                self.best = record
        return None

    def _aim(self, spec: RunSpec) -> None:
        objective = spec.objective
        self.target = objective.target if objective.kind == TIME else None

    @property
    def training(self) -> list[LiveRun]:
        """Open runs with an evaluation."""
        return [run for run in list(self.runs.values()) if run.evaluation is not None]

    @property
    def is_starting(self) -> bool:
        """Whether an open run has no evaluation yet."""
        return any(run.evaluation is None for run in list(self.runs.values()))

    @property
    def num_training(self) -> int:
        """Workers of the runs in `training`."""
        return sum(run.num_workers for run in self.training)

    def time_left(self, at: float) -> TimeLeft | None:
        """Return the time left, including later phases, but no more than is left of the time
        budget; None if unknown."""
        phase_s = self.pace.left_s(at)
        is_known = self.phase != "reference"  # the search follows, for an unknown time
        work_s = phase_s + self.after_s if is_known and phase_s is not None else None
        budget_s = None if self.ends_s is None else max(self.ends_s - at, 0.0)
        if budget_s is not None and (work_s is None or budget_s < work_s):
            return TimeLeft(budget_s, is_budget=True)
        return None if work_s is None else TimeLeft(work_s, is_budget=False)
