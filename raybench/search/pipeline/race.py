"""The race as it is run: contenders with new seeds, side by side in the search's slots."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from raybench.core.objective import TIME
from raybench.core.record import Evaluation, RunRecord, StopReason
from raybench.core.repeats import Repeat
from raybench.core.standing import (
    Axis,
    Contender,
    Run,
    Stages,
    first_trial,
    is_told,
    more,
    repeat_of,
)
from raybench.results.records import Records
from raybench.search.confirm_budget import ConfirmBudget, Cost
from raybench.search.pipeline.single_run import SingleRun, side_by_side
from raybench.search.race import Race, Races, in_turns

SEEDS_FROM = 3000
"""How far the seeds of a race are from the search's; those of a reference and of runs alone lie
before."""
TRIES = 2
"""Times that a run is begun whose machines break it; then its contender is out, until the same
command is given again. Those of all earlier sessions count as one: each tries it once more."""


@dataclass
class LiveRace:
    """Runs what the races ask for, and tells them what it took."""

    budget: ConfirmBudget
    single_run: SingleRun
    records: Records
    """What was recorded before."""
    slots: int
    """Runs at the same time at most; the pool admits fewer where they are wide."""
    out: list[str] = field(default_factory=list)
    """Contenders whose runs the machines broke, or laid out so that they compare with no other."""
    is_cut: bool = False
    """Whether runs were left to be done when it ended."""
    _learned: dict[tuple[str, int], Repeat] = field(default_factory=dict)
    _alone: dict[str, list[Repeat]] = field(default_factory=dict)
    """Runs alone of earlier sessions: they may overrule the race."""
    _learning: threading.RLock = field(default_factory=threading.RLock)
    _tries: Counter[Run] = field(default_factory=Counter)
    _num_done: int = 0

    def __post_init__(self) -> None:
        self._is_timed = self.budget.study.objective.kind == TIME
        found = self.budget.contenders()
        self._cold = first_trial(self.records.runs.values())
        self._costs = {cost.trial: cost for cost in (*found.fastest, *found.cheapest)}
        for record in self.records.runs.values():
            if record.role not in ("race", "confirm") or record.source not in self._costs:
                continue
            if record.role == "confirm":
                if self._says(record):
                    curve = self.records.curves.get(record.trial, [])
                    self._alone.setdefault(record.source, []).append(self._repeat(record, curve))
                continue
            number = int(record.trial.removeprefix(f"{record.source}-race"))
            if self._says(record):
                curve = self.records.curves.get(record.trial, [])
                self._learned[record.source, number] = self._repeat(record, curve)
                self._num_done += 1
            elif record.stop not in ("interrupted", "time_budget"):
                self._tries[Run(record.source, number)] = 1

    def run(self, stages: Stages, *, after_s: float) -> None:
        """Run the race to its end, or until the deadline; `after_s` is what is to follow."""
        races = self._races(stages)
        number = sum(count * runs for count, runs in stages)
        most = max(self.budget.race_runs(number), self._num_done)
        self._begin(most, self.budget.race_s(number), after_s)
        while (due := races.due()) and not self.single_run.deadline.over:
            if self._num_done + len(due) > most:  # the two races have parted more than was foreseen
                most = self._num_done + len(due)
                self._begin(most, self.budget.race_s(number), after_s)
            self._run(due, races)
            if self._put_out(due):
                races = self._races(stages)
        self.is_cut = bool(due)

    def more(self, number: int) -> int:
        """Run `number` more of who is still undecided; return how many it took.

        First to find the fastest, then the cheapest.
        """
        num_run, due = 0, list[Run]()
        while num_run < number and not self.single_run.deadline.over:
            due = self._more(min(number - num_run, self.slots))
            if not due:
                return num_run
            self._begin(self._num_done + number - num_run)
            self._run(due, self._races(()))
            num_run += len(due)
            self._put_out(due)
        self.is_cut = num_run < number or not all(map(self._knows, due))
        return num_run

    def _put_out(self, due: list[Run]) -> bool:
        """Count a try of each run; put contenders out that had all of theirs, and say if any."""
        if self.single_run.deadline.over:
            return False  # they may have been ended by it
        self._tries.update(due)
        broken = {run.name for run in due if self._tries[run] == TRIES and not self._knows(run)}
        self.out += sorted(broken)
        return bool(broken)

    def _more(self, number: int) -> list[Run]:
        for axis, contenders in self._fields().items():
            due = more(
                contenders,
                self._learned,
                number,
                axis=axis,
                is_timed=self._is_timed,
                alone=self._alone,
            )
            if due:
                return due
        return []

    def _races(self, stages: Stages) -> Races:
        fields = self._fields()
        races = [
            Race(contenders, stages, axis=axis, is_timed=self._is_timed)
            for axis, contenders in fields.items()
        ]
        found = Races(races)
        for (name, number), repeat in self._learned.items():
            found.learn(Run(name, number), repeat)
        return found

    def _fields(self) -> dict[Axis, list[Contender]]:
        """Return who races, on each axis that there is, best first."""
        found = self.budget.contenders()
        fields: dict[Axis, list[Cost]] = {"seconds": found.fastest}
        if self._is_timed:
            fields["worker_seconds"] = found.cheapest
        return {
            axis: [self._contender(cost) for cost in costs if cost.trial not in self.out]
            for axis, costs in fields.items()
        }

    def _contender(self, cost: Cost) -> Contender:
        record, curve = self.records.runs[cost.trial], self.records.curves.get(cost.trial, [])
        counts = cost.trial != self._cold and is_told(record)
        own = self._repeat(record, curve) if counts else None
        return Contender(cost.trial, own, cost.spec.num_workers)

    def _begin(self, most: int, race_s: float | None = None, after_s: float = 0.0) -> None:
        """Show how many runs there are at most, those of an earlier session among them."""
        done, progress = self._num_done, self.single_run.progress
        left_s = None if race_s is None else race_s * (most - done) / max(most, 1)
        progress.begin("race", most, num_done=done, expect_s=left_s)
        progress.after_s = after_s

    def _run(self, due: list[Run], races: Races) -> None:
        specs = {run.name: self._costs[run.name].spec for run in due}
        jobs = [partial(self._train, run, races) for run in in_turns(due, specs)]
        side_by_side(jobs, slots=self.slots, deadline=self.single_run.deadline)

    def _train(self, run: Run, races: Races) -> None:
        seed = (self.budget.study.search.seed + SEEDS_FROM + run.round) % 2**32
        spec = self._costs[run.name].spec.model_copy(update={"seed": seed})
        metric, target = spec.objective.judged_by, spec.objective.target
        curve: list[Evaluation] = []

        def judge(evaluation: Evaluation) -> StopReason | None:
            # What its machines broke goes on from a checkpoint, and passes some of them again.
            curve[:] = [point for point in curve if point.index < evaluation.index] + [evaluation]
            if target is not None and metric.reaches(evaluation.value, target):
                return None  # if it holds the target, the first evaluation there counts
            with self._learning:
                cap_s = races.cap_s(run)
            return "cap" if cap_s is not None and evaluation.train_s > cap_s else None

        name = f"{run.name}-race{run.round}"
        record = self.single_run.train(spec, name, "race", source=run.name, judge=judge)
        if self._says(record):
            with self._learning:
                repeat = self._repeat(record, curve)
                self._learned[run.name, run.round] = repeat
                races.learn(run, repeat)
                self._num_done += 1

    def _knows(self, run: Run) -> bool:
        return (run.name, run.round) in self._learned

    def _says(self, record: RunRecord) -> bool:
        """Whether a run says something of its contender: an answer, on machines as the others'."""
        return is_told(record) and self.budget.is_comparable(record)

    def _repeat(self, record: RunRecord, curve: list[Evaluation]) -> Repeat:
        return repeat_of(record, curve, chance=self.budget.chance)
