"""What a study is doing, as its events tell it: counts, the best so far, what runs, what failed.

Events in, numbers out: no clock, no terminal, no files. Every event is given the moment at which
it happened, in seconds of any one clock, so a study is followed, replayed and tested alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.core.metric import ACCURACY, Metric
from raybench.core.objective import TIME
from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.failures import cause_of
from raybench.results.label import describe
from raybench.results.live.busy import Busy
from raybench.results.live.pace import Pace

SEARCHED = ("trial", "finalist")
"""Roles of runs of which one may be the best so far; others are lucky, or judged otherwise."""
OPEN_ENDED = ("reference",)
"""Phases that are followed by nobody knows yet how much."""
LONGEST_CURVE = 400
"""Values that are kept of a running curve; of more, every other one goes."""


class TimeLeft(NamedTuple):
    """What is left of a study."""

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
    num_workers: int | None = None
    """None where it is not known: of a run whose evaluations alone were read."""
    evaluation: Evaluation | None = None
    """The newest one."""
    trains_since_s: float = 0.0
    """When its training began, as far as its first evaluation tells it."""
    heard_s: float = 0.0
    """When it was last heard of."""
    _curve: list[tuple[int, float]] = field(default_factory=list)
    """(index, value) of its evaluations, thinned where there are many."""
    _every: int = 1

    @property
    def values(self) -> list[float]:
        """The metric at its evaluations."""
        return [value for _, value in list(self._curve)]

    def add(self, evaluation: Evaluation, at: float) -> None:
        """Take an evaluation; one that is repeated after a restart drops what followed it."""
        if self.evaluation is None:
            self.trains_since_s = max(self.asked_s, at - evaluation.train_s)
        self.evaluation, self.heard_s = evaluation, at
        while self._curve and self._curve[-1][0] >= evaluation.index:
            self._curve.pop()
        if evaluation.index % self._every == 0:
            self._curve.append((evaluation.index, evaluation.value))
        if len(self._curve) > LONGEST_CURVE:
            self._curve, self._every = self._curve[::2], 2 * self._every


@dataclass
class Cause:
    """Failures of one cause: the first of them, and how many."""

    trial: str
    failure: str
    message: str | None
    count: int = 0


class LiveState:
    """A study from its first event on."""

    def __init__(self, at: float, *, num_runs: int | None = None, keys: Iterable[str] = ()) -> None:
        self.began_s = at
        self.phase, self.pace = "search", Pace(at, num_runs)
        self.after_s = 0.0
        """Seconds of what follows this phase; a part of the time left."""
        self.ends_s: float | None = None
        """When the time budget ends."""
        self.is_over = False
        """Whether nothing runs any more."""
        self.num_workers: int | None = None
        """All that the machines have room for; None where it is not known."""
        self.runs: dict[str, LiveRun] = {}
        """Those that were asked for, in that order."""
        self.waiting: Mapping[str, tuple[str, float]] = {}
        """What a run without workers waits for, and for how many seconds by now."""
        self.causes: dict[str, Cause] = {}
        self.best: RunRecord | None = None
        self.metric, self.target = ACCURACY, None
        self.num_finished = 0
        """Runs of all phases that are done."""
        self.num_searched, self.num_reached = 0, 0
        """Runs of the search that are done, and those of them that reached the target."""
        self.keys = tuple(keys)
        """Those that labels tell (`results.label.label_keys`)."""
        self._busy = Busy()

    metric: Metric
    """Of the runs that were begun last; all runs of a study have one."""
    target: float | None
    """Value of the metric that the search asks for."""

    def label(self, spec: RunSpec) -> str:
        """Return a configuration in one line."""
        return describe(spec, self.keys)

    def begin(
        self,
        phase: str,
        num_runs: int | None,
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

    def started(self, name: str, spec: RunSpec | None, at: float) -> LiveRun:
        """Take a run that was asked for; `spec` is None where only its evaluations are known."""
        run = LiveRun(name, asked_s=at, heard_s=at, metric=self.metric)
        if spec is not None:
            self.metric = run.metric = spec.objective.judged_by
            run.label, run.num_workers = self.label(spec), spec.num_workers
            if self.phase == "search":
                self._aim(spec)
        self.runs[name] = run
        return run

    def evaluated(self, name: str, evaluation: Evaluation, at: float) -> None:
        """Take a run's newest evaluation."""
        if name in self.runs:
            self.runs[name].add(evaluation, at)

    def finished(self, record: RunRecord, at: float) -> Cause | None:
        """Count a run that has ended; return the cause of its failure, if it failed."""
        self.runs.pop(record.trial, None)
        self.num_finished += 1
        self.pace.finished(record, at)
        ledger = record.ledger
        trained_s = record.wall_s - sum(ledger[key] for key in ("queue", "start", "lost", "setup"))
        self._busy.ended(at - max(trained_s, 0.0), at, record.spec.num_workers)
        if record.role in SEARCHED:
            self.num_searched += 1
            self.metric = record.spec.objective.judged_by
            self._aim(record.spec)
        if record.failure is not None:
            key = cause_of(record.failure, record.message)
            first = Cause(record.trial, record.failure, record.message)
            cause = self.causes.setdefault(key, first)
            cause.count += 1
            return cause
        if record.role in SEARCHED:
            self.num_reached += record.time_to_target_s is not None
            if self.best is None or record.score < self.best.score:
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
    def num_training(self) -> int | None:
        """Workers that train now; None where it is not known of some."""
        each = [run.num_workers for run in self.training]
        return None if None in each else sum(one or 0 for one in each)

    def busy_share(self, at: float) -> float | None:
        """Return the share of the workers' last minute in which they trained; None if unknown."""
        if self.num_workers is None or self.num_training is None:
            return None
        running = [(run.trains_since_s, run.num_workers or 0) for run in self.training]
        return self._busy.share(at, running, of=self.num_workers, began_s=self.began_s)

    def time_left(self, at: float) -> TimeLeft | None:
        """Return the time left, what follows the phase included; None if nothing is known of it.

        The time budget is the longest that it can be.
        """
        if self.is_over:
            return None
        found = self.pace.left_s(at, [at - run.trains_since_s for run in self.training])
        is_open = found is None or self.phase in OPEN_ENDED
        work_s = None if is_open or found is None else found + self.after_s
        budget_s = None if self.ends_s is None else max(self.ends_s - at, 0.0)
        if budget_s is not None and (work_s is None or budget_s < work_s):
            return TimeLeft(budget_s, is_budget=True)
        return None if work_s is None else TimeLeft(work_s, is_budget=False)
