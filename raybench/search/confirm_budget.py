"""Candidates of the confirmation (repeated runs), and how many runs fit into the time budget."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.results.trials import TrialsLayout, TypicalNodes, layout_of, typical_of
from raybench.spec.run import RunSpec
from raybench.spec.study import TIME, StudySpec
from raybench.stats.record import Evaluation, RunRecord
from raybench.stats.standing import replicate_of, stages

SOLO_SLACK = 1.5
"""Assumed ratio of the time of a solo run to that of the winner's run in the search, which is
selection-biased."""
RACE_SLACK = 1.2
"""The same ratio for a run of the race; it is smaller because slow runs are cut off."""
MOST_RESERVED = 0.4
"""Largest fraction of the remaining time to reserve for it, unless one solo run needs more."""
MOST_FRESH = 0.5
"""Largest fraction of the remaining time for the solo runs, if time is short."""
PHASES_ONCE, PHASES_PER_EVALUATION = ("setup", "compile"), ("eval", "report")
"""Phases other than training of a run whose workers are already running: those that occur once per
run, and those of every evaluation."""
SIMILAR_RATE = 1.3
"""Learning rates within this factor count as one configuration in the race."""
NUM_PLACEMENT_CHECKS = 3
"""Expected number of placement checks (`verify.py`) before the race."""


@dataclass(frozen=True)
class Cost:
    """A run of the search that may be repeated, and its cost."""

    trial: str
    spec: RunSpec
    rank: float
    """Seconds to the target, or the metric (negated if it is maximized); lower is better."""
    worker_seconds: float
    """Worker-seconds to the target; if the study has a price, with setup and evaluations."""
    train_s: float
    """Total training seconds of the run."""
    layout: TrialsLayout


@dataclass(frozen=True)
class Candidates:
    """Candidates for the race (repeated runs): the best trials on one GPU model, best first."""

    fastest: list[Cost] = field(default_factory=list)
    cheapest: list[Cost] = field(default_factory=list)
    """Sorted by worker-seconds; empty if all runs train for the same seconds."""

    def first(self, count: int) -> list[Cost]:
        """Return the first `count` of each list, without duplicates."""
        costs = [*self.fastest[:count], *self.cheapest[:count]]
        return list({cost.trial: cost for cost in costs}.values())


def _dissimilar(costs: list[Cost], number: int) -> list[Cost]:
    """Return the first `number` runs, without those similar (`are_similar`) to an earlier run."""
    chosen: list[Cost] = []
    for cost in costs:
        if len(chosen) < number and not any(are_similar(cost.spec, other.spec) for other in chosen):
            chosen.append(cost)
    return chosen


def are_similar(spec: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs differ at most in the seed and in learning rates within a factor of
    SIMILAR_RATE."""
    if abs(math.log(spec.learning_rate / other.learning_rate)) >= math.log(SIMILAR_RATE):
        return False
    changes = {"learning_rate": other.learning_rate, "seed": other.seed}
    return spec.model_copy(update=changes) == other


class Plan(NamedTuple):
    """Number of runs in the race, and of runs of each winner alone."""

    race: int
    fresh: int


@dataclass
class ConfirmBudget:
    """Estimates the seconds of the confirmation from the runs of the search."""

    study: StudySpec
    at_once: Callable[[RunSpec], int] = lambda spec: 1
    """Returns the number of concurrent runs of a spec that fit."""
    least_race: int = 0
    """Race size that determines the number of candidates, if larger than that of the study."""
    left_s: float | None = None
    """Seconds of the time budget left when the search began; None: all."""
    baseline_value: float | None = None
    """Value of the metric before training, if the objective does not state it."""
    _costs: dict[str, Cost] = field(default_factory=dict)
    _typical: TypicalNodes = field(init=False)
    _cached: tuple[Candidates, list[Cost]] | None = None
    """Candidates and winners, until another run is added."""
    _overhead_s: dict[str, float] = field(default_factory=dict)
    """Fewest seconds of a run in the phases PHASES_ONCE and PHASES_PER_EVALUATION, by framework."""

    def __post_init__(self) -> None:
        self._typical = typical_of((), self.study.space, self.study.fixed)
        planned = stages(max(self.study.confirm.race, self.least_race))
        self._num_candidates = planned[0][0] if planned else 0

    def learn(
        self, runs: Iterable[RunRecord], curves: Mapping[str, list[Evaluation]] | None = None
    ) -> None:
        """Add recorded runs.

        Args:
            runs: Records of earlier sessions or phases.
            curves: Evaluations by run, for interpolated times to the target.
        """
        for record in runs:
            if record.phase == "search":
                self.add(record, (curves or {}).get(record.trial, ()))

    def add(self, record: RunRecord, curve: Iterable[Evaluation] = ()) -> None:
        """Add a run of the search; ignore it if it failed, missed the target, or ran on an unusual
        node layout (`results.trials`)."""
        ledger, spec = record.ledger, record.spec
        if record.failure is not None or record.best_value is None:
            return
        repeat = replicate_of(record, tuple(curve), baseline_value=self.baseline_value)
        if not repeat.is_hit:
            return
        # Training goes on, past the interpolated time, to the evaluation that sees the target.
        train_s, share = ledger["train"], 1.0
        if record.time_to_target_s is not None and record.trial.startswith("reference"):
            train_s = record.time_to_target_s  # a reference run goes on after the target
            share = min(1.0, train_s / max(ledger["train"], 1e-9))
        if not self._is_timed and not record.counts_for("comparison"):
            # The trial was stopped early; a repeat trains to the end.
            train_s = max(train_s, spec.objective.max_train_seconds)
        # The first runs of a worker also import the framework: take the minimum.
        overhead_s = sum(ledger[phase] for phase in PHASES_ONCE) + share * sum(
            ledger[phase] for phase in PHASES_PER_EVALUATION
        )
        self._overhead_s[spec.framework] = min(
            overhead_s, self._overhead_s.get(spec.framework, overhead_s)
        )
        layout = layout_of(record)
        self._typical.add(layout)
        worker_seconds = spec.num_workers * (repeat.seconds if self._is_timed else train_s)
        if self.study.price is not None:
            worker_seconds *= 1 + overhead_s / max(train_s, 1e-9)
        cost = Cost(record.trial, spec, repeat.seconds, worker_seconds, train_s, layout)
        self._costs[record.trial], self._cached = cost, None

    @property
    def _is_timed(self) -> bool:
        return self.study.objective.kind == TIME

    def candidates(self) -> Candidates:
        """Return the current candidates for the race: trials on the GPU model of the best run."""
        return self._candidates_and_winners()[0]

    def winners(self) -> list[Cost]:
        """Return the expected winners: the fastest, the cheapest, and with several GPU models also
        the fastest on each of the others."""
        return self._candidates_and_winners()[1]

    def _candidates_and_winners(self) -> tuple[Candidates, list[Cost]]:
        if self._cached is None:
            by_model: dict[tuple[str, ...], list[Cost]] = {}
            for cost in sorted(self._costs.values(), key=lambda cost: cost.rank):
                if self._typical.objection(cost.layout) is None:
                    by_model.setdefault(cost.layout.accelerators, []).append(cost)
            fastest = next(iter(by_model.values()), [])
            by_cost = (
                sorted(fastest, key=lambda cost: cost.worker_seconds) if self._is_timed else []
            )
            candidates = Candidates(
                _dissimilar(fastest, self._num_candidates),
                _dissimilar(by_cost, self._num_candidates),
            )
            others = [costs[0] for costs in list(by_model.values())[1:]]
            self._cached = candidates, [*candidates.first(1), *others] if candidates.fastest else []
        return self._cached

    def is_comparable(self, record: RunRecord) -> bool:
        """Return whether a repeated run ran on its trial's GPU model and a usual node layout; True
        if it failed."""
        if record.failure is not None:
            return True
        layout, cost = layout_of(record), self._costs.get(record.source or "")
        if cost is None or cost.layout.accelerators != layout.accelerators:
            return False
        return self._typical.objection(layout) is None

    def alone_s(self, cost: Cost) -> float:
        """Return the expected seconds of a run alone on the machine, times SOLO_SLACK if timed."""
        slack = SOLO_SLACK if self._is_timed else 1.0
        return slack * (cost.train_s + self._overhead_s[cost.spec.framework])

    def _race_run_s(self, cost: Cost) -> float:
        """Return the expected seconds of a race run, divided by the number of concurrent runs."""
        slack = RACE_SLACK if self._is_timed else 1.0
        run_s = slack * (cost.train_s + self._overhead_s[cost.spec.framework])
        return run_s / self.at_once(cost.spec)

    def race_s(self, number: int) -> float:
        """Return the expected seconds of a race of `number` runs if no candidate drops out."""
        return sum(self._race_run_s(cost) for racing in self._rounds(number) for cost in racing)

    def _rounds(self, number: int) -> list[list[Cost]]:
        """Return the candidates of each round of a race in which none drops out."""
        rounds = list[list[Cost]]()
        for count, runs in stages(number):
            racing = self.candidates().first(count)
            rounds += [racing] * runs
            if len(racing) == 1:
                break  # the race is over
        return rounds

    def race_runs(self, number: int) -> int:
        """Return the largest number of runs of a race for the fastest and one for the cheapest with
        `number` runs each; runs that both share count once."""
        return sum(len(racing) for racing in self._rounds(number))

    def fresh_s(self, times: int) -> float:
        """Return the expected total seconds of running each winner `times` times, alone on the
        machine."""
        return times * sum(map(self.alone_s, self.winners()))

    def confirming_s(self) -> float:
        """Return the expected seconds of the confirmation that the study asks for."""
        return self.race_s(self.study.confirm.race) + self.fresh_s(self.study.confirm.fresh)

    def plan(self, answered: Iterable[RunRecord], left_s: float) -> Plan:
        """Plan the largest confirmation within `left_s` seconds, at most what the study asks for.

        If time is short, solo runs take up to half of it and the race the rest.

        Args:
            answered: Confirmation runs of an earlier session, which are not repeated.
            left_s: Remaining seconds.
        """
        confirm = self.study.confirm
        if not self.winners():
            return Plan(0, 0)
        raced_s = alone_s = 0.0
        for record in answered:
            cost = self._costs.get(record.source or "")
            if cost is not None and record.role == "race":
                raced_s += self._race_run_s(cost)
            elif cost is not None:
                alone_s += self.alone_s(cost)
        left_s += min(raced_s, self.race_s(confirm.race)) + min(
            alone_s, self.fresh_s(confirm.fresh)
        )
        if self.confirming_s() <= left_s:
            return Plan(confirm.race, confirm.fresh)
        fresh = 1
        while fresh < confirm.fresh and self.fresh_s(fresh + 1) <= MOST_FRESH * left_s:
            fresh += 1
        race = confirm.race
        while race and self.race_s(race) + self.fresh_s(fresh) > left_s:
            race -= 1
        # One run is worth trying even without the slack.
        is_worth_it = self.alone_s(self.winners()[0]) < SOLO_SLACK * left_s
        return Plan(race, fresh if is_worth_it else 0)

    def runs_alone(
        self, winners: Sequence[str], answered: Iterable[RunRecord], left_s: float
    ) -> tuple[int, int]:
        """Return how many winners can run alone within `left_s` seconds, and how often each.
        `answered`: such runs of an earlier session, which are not repeated."""
        expected = {trial: self.alone_s(self._costs[trial]) for trial in winners}
        left_s += sum(expected.get(record.source or "", 0.0) for record in answered)
        fitting = affordable(list(expected.values()), self.study.confirm.fresh, left_s)
        is_worth_it = bool(expected) and next(iter(expected.values())) < SOLO_SLACK * left_s
        return (1, 1) if fitting == (0, 0) and is_worth_it else fitting

    def reserve_s(self) -> float:
        """Return the seconds of the time budget to reserve for the confirmation."""
        winners, budget = self.winners(), self.study.search.time_budget_s
        if not winners or budget is None:
            return 0.0
        run_s, left_s = self.alone_s(winners[0]), budget if self.left_s is None else self.left_s
        return min(
            self.confirming_s() + NUM_PLACEMENT_CHECKS * run_s, max(MOST_RESERVED * left_s, run_s)
        )


def affordable(run_s: list[float], repeats: int, left_s: float) -> tuple[int, int]:
    """Return (number of configurations, repeats) that fit into `left_s` seconds.

    The total number of runs is maximized; among equal totals, more repeats of fewer configurations
    are preferred. (0, 0) if no run fits.

    Args:
        run_s: Seconds of one run, by configuration.
        repeats: Largest number of repeats.
        left_s: Remaining seconds.
    """
    options = [
        (count, times)
        for count in range(1, len(run_s) + 1)
        for times in range(1, repeats + 1)
        if times * sum(run_s[:count]) <= left_s
    ]
    return max(options, key=lambda option: (option[0] * option[1], option[1]), default=(0, 0))
