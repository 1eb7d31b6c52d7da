"""Which trials the confirmation repeats, and how many repeated runs fit into the time budget.

The confirmation first repeats the best trials with new seeds, several at a time (the race), then
runs the winners alone on the machine (solo runs).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.results.trials import TrialsLayout, TypicalNodes, layout_of, typical_of
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec
from raybench.spec.study import StudySpec
from raybench.stats.record import Evaluation, Phase, Purpose, Role, RunRecord
from raybench.stats.standing import replicate_of, stages

SOLO_SLACK = 1.5
"""Factor by which a solo run is expected to train longer than the same trial in the search, because
the winner of a search was partly lucky (selection bias)."""
RACE_SLACK = 1.2
"""Factor by which a race run is expected to train longer than the same trial in the search. It is
smaller than SOLO_SLACK because slow race runs are stopped early."""
MOST_RESERVED = 0.4
"""Largest fraction of the remaining time to reserve for the confirmation, unless a single solo run
needs more."""
MOST_FRESH = 0.5
"""Largest fraction of the remaining time that the solo runs get if time is short."""
PHASES_ONCE, PHASES_PER_EVALUATION = ("setup", "compile"), ("eval", "report")
"""Phases of a run besides training, if its workers have already started: phases that occur once per
run, and phases that occur at every evaluation."""
SIMILAR_RATE = 1.3
"""Factor below which two learning rates count as similar. Of configurations that differ only in
similar learning rates, only the best is a candidate."""
NUM_PLACEMENT_CHECKS = 3
"""Expected number of placement checks before the race: runs that measure predicted placements
(`check_placements`)."""


@dataclass(frozen=True)
class Cost:
    """Trial of the search that the confirmation may repeat, with its rank and its cost."""

    trial: str
    spec: RunSpec
    rank: float
    """Value by which trials are ranked; lower is better. With a target, it is the seconds to the
    target. Without one, it is the metric value, negated if the metric is maximized."""
    worker_seconds: float
    """Worker-seconds to the target, or of the whole training if there is no target. If the study
    has a price, setup and evaluations are included."""
    train_s: float
    """Expected training seconds of a repeat, not yet multiplied by SOLO_SLACK or RACE_SLACK."""
    layout: TrialsLayout


@dataclass(frozen=True)
class Candidates:
    """Candidates for the race (repeated runs): the best trials on one GPU model, best first."""

    fastest: list[Cost] = field(default_factory=list)
    """Sorted by seconds to the target, or by metric value."""
    cheapest: list[Cost] = field(default_factory=list)
    """Sorted by worker-seconds. Empty if the study has no target, since all runs then train for the
    same time."""

    def first(self, count: int) -> list[Cost]:
        """Return the first `count` trials of each list, without duplicates."""
        costs = [*self.fastest[:count], *self.cheapest[:count]]
        return list({cost.trial: cost for cost in costs}.values())


def _dissimilar(costs: list[Cost], number: int) -> list[Cost]:
    """Return the first `number` trials, skipping those similar to a trial already chosen."""
    chosen: list[Cost] = []
    for cost in costs:
        if len(chosen) < number and not any(are_similar(cost.spec, other.spec) for other in chosen):
            chosen.append(cost)
    return chosen


def are_similar(spec: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs are nearly equal: only the seeds and the learning rates may differ,
    the learning rates by less than a factor of SIMILAR_RATE."""
    if abs(math.log(spec.learning_rate / other.learning_rate)) >= math.log(SIMILAR_RATE):
        return False
    changes = {"learning_rate": other.learning_rate, "seed": other.seed}
    return spec.model_copy(update=changes) == other


class Plan(NamedTuple):
    """Size of the confirmation that fits into the time budget."""

    race: int
    """Number of runs of one race (`confirm.race`)."""
    fresh: int
    """Number of solo runs of each winner (`confirm.fresh`)."""


@dataclass
class ConfirmBudget:
    """Estimates from the runs of the search how many seconds the confirmation will take."""

    study: StudySpec
    at_once: Callable[[RunSpec], int] = lambda spec: 1
    """Function that returns how many runs with a given spec can run at the same time."""
    least_race: int = 0
    """Number of race runs that determines the number of candidates if it exceeds `confirm.race` of
    the study."""
    left_s: float | None = None
    """Seconds that were left of the time budget when the search began; None for the whole
    budget."""
    baseline_value: float | None = None
    """Metric value of a constant prediction, used if the objective does not set it; None if
    unknown."""
    _costs: dict[str, Cost] = field(default_factory=dict)
    _typical: TypicalNodes = field(init=False)
    _cached: tuple[Candidates, list[Cost]] | None = None
    """Cached candidates and winners; None after a run was added."""
    _overhead_s: dict[str, float] = field(default_factory=dict)
    """Fewest seconds that a run spent in PHASES_ONCE and PHASES_PER_EVALUATION, keyed by
    framework."""

    def __post_init__(self) -> None:
        self._typical = typical_of((), self.study.space, self.study.fixed)
        planned = stages(max(self.study.confirm.race, self.least_race))
        self._num_candidates = planned[0][0] if planned else 0

    def learn(
        self, runs: Iterable[RunRecord], curves: Mapping[str, list[Evaluation]] | None = None
    ) -> None:
        """Add the recorded runs of the search; records of other phases are ignored.

        Args:
            runs: Records of earlier sessions or phases.
            curves: Evaluations by run name, from which the time to the target is interpolated.
        """
        for record in runs:
            if record.phase == Phase.SEARCH:
                self.add(record, (curves or {}).get(record.trial, ()))

    def add(self, record: RunRecord, curve: Iterable[Evaluation] = ()) -> None:
        """Add a run of the search; a run that failed or missed the target is ignored.

        Args:
            record: Record of the run.
            curve: Evaluations of the run, from which the time to the target is interpolated.
        """
        ledger, spec = record.ledger, record.spec
        if record.failure is not None or record.best_value is None:
            return
        repeat = replicate_of(record, tuple(curve), baseline_value=self.baseline_value)
        if not repeat.is_hit:
            return
        # A run trains past its interpolated time to the target, up to the next evaluation.
        train_s, share = ledger["train"], 1.0
        if record.time_to_target_s is not None and record.trial.startswith("reference"):
            train_s = record.time_to_target_s  # a reference run continues after the target
            share = min(1.0, train_s / max(ledger["train"], 1e-9))
        if not self._is_timed and not record.counts_for(Purpose.COMPARISON):
            # The trial was stopped early; a repeat trains to the end.
            train_s = max(train_s, spec.objective.max_train_seconds)
        # The minimum, since the first run of a worker also imports the framework.
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
        """Return the current candidates for the race.

        All of them ran on the same GPU model as the best trial and with a comparable worker layout
        (see `results.trials`).
        """
        return self._candidates_and_winners()[0]

    def winners(self) -> list[Cost]:
        """Return the trials expected to win: the fastest and the cheapest candidate, and the
        fastest trial on each other GPU model."""
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
        """Return whether a repeated run is comparable with its trial.

        A repeated run is comparable if it failed, or if it ran on the same GPU model and on a usual
        node layout.
        """
        if record.failure is not None:
            return True
        layout, cost = layout_of(record), self._costs.get(record.source or "")
        if cost is None or cost.layout.accelerators != layout.accelerators:
            return False
        return self._typical.objection(layout) is None

    def solo_run_s(self, cost: Cost) -> float:
        """Return the expected seconds of a solo run of a trial."""
        return self._run_s(cost, SOLO_SLACK)

    def _race_run_s(self, cost: Cost) -> float:
        """Return the expected seconds by which a race run prolongs the race: the seconds of the run
        divided by the number of concurrent runs."""
        return self._run_s(cost, RACE_SLACK) / self.at_once(cost.spec)

    def _run_s(self, cost: Cost, slack: float) -> float:
        run_s = cost.train_s + self._overhead_s[cost.spec.framework]
        return slack * run_s if self._is_timed else run_s

    def race_s(self, number: int) -> float:
        """Return the expected seconds of a race of `number` runs if no candidate drops out."""
        return sum(self._race_run_s(cost) for racing in self._rounds(number) for cost in racing)

    def _rounds(self, number: int) -> list[list[Cost]]:
        """Return the candidates that run in each round of a race, if none drops out."""
        rounds = list[list[Cost]]()
        for count, runs in stages(number):
            racing = self.candidates().first(count)
            rounds += [racing] * runs
            if len(racing) == 1:
                break  # the race is over
        return rounds

    def race_runs(self, number: int) -> int:
        """Return the largest number of distinct runs in two races of `number` runs each.

        One race finds the fastest candidate and the other the cheapest; a run that both need counts
        once.
        """
        return sum(len(racing) for racing in self._rounds(number))

    def fresh_s(self, times: int) -> float:
        """Return the expected total seconds of `times` solo runs of each winner."""
        return times * sum(map(self.solo_run_s, self.winners()))

    def confirming_s(self) -> float:
        """Return the expected seconds of a confirmation of the size set in the study
        (`confirm`)."""
        return self.race_s(self.study.confirm.race) + self.fresh_s(self.study.confirm.fresh)

    def plan(self, finished: Iterable[RunRecord], left_s: float) -> Plan:
        """Return the largest confirmation that fits into the remaining time.

        The confirmation is at most as large as the study sets (`confirm`). If time is short, the
        solo runs get up to half of the time (MOST_FRESH), and the race gets the rest.

        Args:
            finished: Confirmation runs of earlier sessions, which are not repeated.
            left_s: Remaining seconds.
        """
        confirm = self.study.confirm
        if not self.winners():
            return Plan(0, 0)
        raced_s = solo_s = 0.0
        for record in finished:
            cost = self._costs.get(record.source or "")
            if cost is not None and record.role == Role.RACE:
                raced_s += self._race_run_s(cost)
            elif cost is not None:
                solo_s += self.solo_run_s(cost)
        left_s += min(raced_s, self.race_s(confirm.race)) + min(solo_s, self.fresh_s(confirm.fresh))
        if self.confirming_s() <= left_s:
            return Plan(confirm.race, confirm.fresh)
        fresh = 1
        while fresh < confirm.fresh and self.fresh_s(fresh + 1) <= MOST_FRESH * left_s:
            fresh += 1
        race = confirm.race
        while race and self.race_s(race) + self.fresh_s(fresh) > left_s:
            race -= 1
        # A single solo run is started even if it fits only without SOLO_SLACK.
        is_worth_it = self.solo_run_s(self.winners()[0]) < SOLO_SLACK * left_s
        return Plan(race, fresh if is_worth_it else 0)

    def num_solo_runs(
        self, winners: Sequence[str], finished: Iterable[RunRecord], left_s: float
    ) -> tuple[int, int]:
        """Return how many winners can have solo runs, and how many solo runs each of them can have.

        Args:
            winners: Names of the winning trials, best first.
            finished: Solo runs of earlier sessions, which are not repeated.
            left_s: Remaining seconds.
        """
        expected = {trial: self.solo_run_s(self._costs[trial]) for trial in winners}
        left_s += sum(expected.get(record.source or "", 0.0) for record in finished)
        fitting = affordable(list(expected.values()), self.study.confirm.fresh, left_s)
        is_worth_it = bool(expected) and next(iter(expected.values())) < SOLO_SLACK * left_s
        return (1, 1) if fitting == (0, 0) and is_worth_it else fitting

    def reserve_s(self) -> float:
        """Return how many seconds of the time budget to reserve for the confirmation."""
        winners, budget = self.winners(), self.study.search.time_budget_s
        if not winners or budget is None:
            return 0.0
        run_s, left_s = self.solo_run_s(winners[0]), budget if self.left_s is None else self.left_s
        return min(
            self.confirming_s() + NUM_PLACEMENT_CHECKS * run_s, max(MOST_RESERVED * left_s, run_s)
        )


def affordable(run_s: list[float], repeats: int, left_s: float) -> tuple[int, int]:
    """Return how many configurations, and how many repeats of each, fit into the remaining time.

    The total number of runs is maximized. Among equal totals, more repeats of fewer configurations
    are preferred.

    Args:
        run_s: Seconds of one run of each configuration, in order of preference.
        repeats: Largest number of repeats per configuration.
        left_s: Remaining seconds.

    Returns:
        (number of configurations, repeats of each); (0, 0) if not even one run fits.
    """
    options = [
        (count, times)
        for count in range(1, len(run_s) + 1)
        for times in range(1, repeats + 1)
        if times * sum(run_s[:count]) <= left_s
    ]
    return max(options, key=lambda option: (option[0] * option[1], option[1]), default=(0, 0))
