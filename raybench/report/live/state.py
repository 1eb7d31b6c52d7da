"""State of a running study: counts, the best run so far, open and failed runs, and the remaining
time.

The state depends only on events, not on a clock, a terminal or files. Times (`at`) are in seconds
of any monotonic clock. An open run was requested and has not ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.report.tables import cause_of
from raybench.results.records import add_point
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe
from raybench.stats.record import Evaluation, Phase, RunRecord

ENOUGH_RUNS = 3
"""Number of finished runs from which the remaining time of a phase is estimated by their pace."""


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
    """Whether the time budget ends the study."""


@dataclass
class LiveRun:
    """A run that was requested and has not ended."""

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
    """A cause of failures: the first trial that failed by it, and the number of failures."""

    trial: str
    failure: str
    message: str | None
    count: int = 0


class LiveState:
    """State of a study since its first event."""

    def __init__(self, at: float, *, num_runs: int = 0, keys: Iterable[str] = ()) -> None:
        self.began_s = at
        self.phase: str = Phase.SEARCH
        self.pace = Pace(at, num_runs)
        self.after_s = 0.0
        """Predicted seconds of later phases, which are added to the remaining time."""
        self.ends_s: float | None = None
        """Time at which the time budget ends; None without a time budget."""
        self.num_workers: int | None = None
        """Maximum number of workers that can run at the same time; None if unknown."""
        self.runs: dict[str, LiveRun] = {}
        """Open runs by name, in the order in which they were requested."""
        self.waiting: Mapping[str, tuple[str, float]] = {}
        """Resource for which each run without workers waits, and the seconds waited, by run
        name."""
        self.causes: dict[str, Cause] = {}
        self.best: RunRecord | None = None
        self.metric: Metric = ACCURACY
        """Metric of the study; it is known once the first run has started."""
        self.target: float | None = None
        """Target value of the search; None if there is none."""
        self.num_searched, self.num_reached = 0, 0
        """Number of finished search runs, and number of those that reached the target."""
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
