"""Candidates for the confirmation, its seconds, and how much of it a time budget has room for."""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.results.trials import TrialsLayout, TypicalNodes, layout_of, typical_of
from raybench.spec.run import RunSpec
from raybench.spec.study import TIME, StudySpec
from raybench.stats.record import Evaluation, RunRecord
from raybench.stats.standing import is_informative, replicate_of, stages

SLACK = 1.5
"""A winner's run alone may take so much longer than the search's, which was a lucky one."""
RACE_SLACK = 1.2
"""Factor by which the runs of a race may take longer together: not all were lucky, and the slow are
capped."""
MOST = 0.4
"""Share of the time left that is set aside at most, unless one run alone needs more."""
MOST_FRESH = 0.5
"""Share of what is left that runs of the winners alone take at most, where there is little."""
ONCE, EACH = ("setup", "compile"), ("eval", "report")
"""Phases of a run that take time beside training, in warm workers: once, with each evaluation."""
ALIKE = 1.3
"""Rates within this factor of each other train alike, where all else is the same."""
NUM_PLACEMENT_CHECKS = 3
"""Runs of splits that were only predicted come before the race."""


@dataclass(frozen=True)
class Cost:
    """Cost of a run that can be confirmed."""

    trial: str
    spec: RunSpec
    rank: float
    """Lower is better: seconds to the target, or the metric, its sign turned where more is."""
    worker_seconds: float
    """To the target; with a price all that are held for it, once workers have started."""
    train_s: float
    """Training seconds of a run in all."""
    layout: TrialsLayout


@dataclass(frozen=True)
class Candidates:
    """The best runs of a search on one model of GPU, best first."""

    fastest: list[Cost] = field(default_factory=list)
    cheapest: list[Cost] = field(default_factory=list)
    """The cheapest by worker-seconds; empty where seconds are the same for all."""

    def first(self, count: int) -> list[Cost]:
        """Return the first so many of both, each once."""
        both = [*self.fastest[:count], *self.cheapest[:count]]
        return list({cost.trial: cost for cost in both}.values())

    def apart(self, most: int) -> "Candidates":
        """Return at most so many, each the best of those alike (`are_alike`): a race of twins would
        leave no room for others."""
        return Candidates(_apart(self.fastest, most), _apart(self.cheapest, most))


def _apart(costs: list[Cost], most: int) -> list[Cost]:
    kept: list[Cost] = []
    for cost in costs:
        if len(kept) < most and not any(are_alike(cost.spec, one.spec) for one in kept):
            kept.append(cost)
    return kept


def are_alike(one: RunSpec, other: RunSpec) -> bool:
    """Whether two runs are of one configuration, or of rates within `ALIKE` of each other."""
    if abs(math.log(one.learning_rate / other.learning_rate)) >= math.log(ALIKE):
        return False
    own = {"learning_rate": other.learning_rate, "seed": other.seed}
    return one.model_copy(update=own) == other


class Plan(NamedTuple):
    """Runs that there is time for: of the race (`ConfirmSpec`), and of each winner alone."""

    race: int
    fresh: int


@dataclass
class ConfirmBudget:
    """Follows the runs of a search, and says how long it takes to confirm the best of them."""

    study: StudySpec
    at_once: Callable[[RunSpec], int] = lambda spec: 1
    """Number of runs of a spec that there is room for at the same time."""
    least_race: int = 0
    """Race whose candidates are kept even where the study asks for a smaller one."""
    left_s: float | None = None
    """Seconds of the time budget that were left when the search began; None: all of it."""
    baseline_value: float | None = None
    """Value of the metric before a run has begun, where the objective does not say it."""
    _costs: dict[str, Cost] = field(default_factory=dict)
    _typical: TypicalNodes = field(init=False)
    _of_kind: dict[tuple[str, ...], Candidates] = field(default_factory=dict)
    """All on each model of GPU."""
    _found: Candidates | None = None
    """Candidates of the race, until another run is added."""
    _beside: dict[str, float] = field(default_factory=dict)
    """Seconds beside training of a run in warm workers, by framework."""

    def __post_init__(self) -> None:
        self._typical = typical_of((), self.study.space, self.study.fixed)
        planned = stages(max(self.study.confirm.race, self.least_race))
        self._most = planned[0][0] if planned else 0

    def learn(
        self, runs: Iterable[RunRecord], curves: Mapping[str, list[Evaluation]] | None = None
    ) -> None:
        """Take the runs that an earlier session, or an earlier phase, has recorded.

        With `curves`, the evaluations by run, the best are told by when they crossed the target.
        """
        for record in runs:
            if record.phase == "search":
                self.add(record, (curves or {}).get(record.trial, ()))

    def add(self, record: RunRecord, curve: Iterable[Evaluation] = ()) -> None:
        """Take a run of the search; those that cannot be confirmed are left out.

        Left out too are those laid out unlike others of their size (`results.trials`).
        """
        ledger, spec = record.ledger, record.spec
        if record.failure is not None or record.best_value is None:
            return
        repeat = replicate_of(record, tuple(curve), baseline_value=self.baseline_value)
        if not repeat.is_hit:
            return
        # Not only to where the target was crossed: to the evaluation that saw it, and was held.
        train_s, share = ledger["train"], 1.0
        if record.time_to_target_s is not None and record.trial.startswith("reference"):
            train_s = record.time_to_target_s  # it went on, where a trial ends
            share = min(1.0, train_s / max(ledger["train"], 1e-9))
        if not self._is_timed and not is_informative(
            record
        ):  # stopped early; again it trains to its end
            train_s = max(train_s, spec.objective.max_train_seconds)
        # The first runs of a worker import much of the framework: the least is that of warm ones.
        beside = sum(ledger[phase] for phase in ONCE) + share * sum(ledger[one] for one in EACH)
        self._beside[spec.framework] = min(beside, self._beside.get(spec.framework, beside))
        layout = layout_of(record)
        # An earlier run of the trial, or those on more hosts, may be among the best.
        is_changed = self._typical.add(layout) or record.trial in self._costs
        worker_seconds = spec.num_workers * (repeat.seconds if self._is_timed else train_s)
        if self.study.price is not None:
            worker_seconds *= 1 + beside / max(train_s, 1e-9)
        cost = Cost(record.trial, spec, repeat.seconds, worker_seconds, train_s, layout)
        self._costs[record.trial], self._found = cost, None
        if is_changed:
            self._of_kind = {}
        for one in self._costs.values() if is_changed else [cost]:
            self._compare(one)

    @property
    def _is_timed(self) -> bool:
        return self.study.objective.kind == TIME

    def _compare(self, cost: Cost) -> None:
        """Sort it in; of equal ones, those that came first stay first."""
        if self._typical.objection(cost.layout):
            return
        best = self._of_kind.setdefault(cost.layout.accelerators, Candidates())
        bisect.insort(best.fastest, cost, key=lambda one: one.rank)
        if self._is_timed:
            bisect.insort(best.cheapest, cost, key=lambda one: one.worker_seconds)

    def candidates(self) -> Candidates:
        """Return who races, as far as is known: runs on the model of GPU that the best was on."""
        if self._found is None:
            kinds = [one for one in self._of_kind.values() if one.fastest]
            best = min(kinds, key=lambda one: one.fastest[0].rank, default=Candidates())
            self._found = best.apart(self._most)
        return self._found

    def winners(self) -> list[Cost]:
        """Return who is run alone, as far as is known: the fastest, the cheapest (or it would only
        be asked of the fast), and of several models of GPU the best on each besides."""
        found = self.candidates()
        if not found.fastest:  # of a race of none
            return []
        others = [one.fastest[0] for one in self._of_kind.values() if one.fastest]
        return [*found.first(1), *(one for one in others if one not in found.fastest)]

    def is_comparable(self, record: RunRecord) -> bool:
        """Whether a run was laid out as that of the search, on the same model of GPU, or failed."""
        if record.failure is not None:
            return True
        layout, cost = layout_of(record), self._costs.get(record.source or "")
        if cost is None or cost.layout.accelerators != layout.accelerators:
            return False
        return self._typical.objection(layout) is None

    def alone_s(self, cost: Cost) -> float:
        """Return the seconds to expect of a run alone, with room for bad luck."""
        longer = SLACK if self._is_timed else 1.0
        return longer * (cost.train_s + self._beside[cost.spec.framework])

    def _beside_s(self, cost: Cost) -> float:
        """Return the seconds to expect of a run of the race, of which several run at once."""
        longer = RACE_SLACK if self._is_timed else 1.0
        run_s = longer * (cost.train_s + self._beside[cost.spec.framework])
        return run_s / self.at_once(cost.spec)

    def race_s(self, number: int) -> float:
        """Return the seconds that a race of `number` runs takes, about: nobody is dropped early."""
        found, total = self.candidates(), 0.0
        for count, runs in stages(number):
            racing = found.first(count)
            total += runs * sum(map(self._beside_s, racing))
            if len(racing) == 1:
                break  # the race is over
        return total

    def race_runs(self, number: int) -> int:
        """Return how many runs such a race has at most, to find both the fastest and cheapest."""
        found = self.candidates()
        return sum(runs * len(found.first(count)) for count, runs in stages(number))

    def fresh_s(self, times: int) -> float:
        """Return the seconds that so many runs of each winner alone take."""
        return times * sum(map(self.alone_s, self.winners()))

    def confirming_s(self) -> float:
        """Return the seconds that confirming as the study asks for takes."""
        return self.race_s(self.study.confirm.race) + self.fresh_s(self.study.confirm.fresh)

    def plan(self, answered: Iterable[RunRecord], left_s: float) -> Plan:
        """Return what can be run within `left_s`: at most what the study asks for.

        Where there is little time, runs alone take up to half of it, and the race what they leave.
        `answered` are confirming runs of an earlier session: they cost nothing any more, though
        runs besides those that are planned (of `--more`, of who has won before) spare no time.
        """
        wanted = self.study.confirm
        if not self.winners():
            return Plan(0, 0)
        raced_s = alone_s = 0.0
        for record in answered:
            cost = self._costs.get(record.source or "")
            if cost is not None and record.role == "race":
                raced_s += self._beside_s(cost)
            elif cost is not None:
                alone_s += self.alone_s(cost)
        left_s += min(raced_s, self.race_s(wanted.race)) + min(alone_s, self.fresh_s(wanted.fresh))
        if self.confirming_s() <= left_s:
            return Plan(wanted.race, wanted.fresh)
        fresh = 1
        while fresh < wanted.fresh and self.fresh_s(fresh + 1) <= MOST_FRESH * left_s:
            fresh += 1
        race = wanted.race
        while race and self.race_s(race) + self.fresh_s(fresh) > left_s:
            race -= 1
        # The expectation has room for bad luck; one run is worth trying without it.
        is_worth_it = self.alone_s(self.winners()[0]) < SLACK * left_s
        return Plan(race, fresh if is_worth_it else 0)

    def runs_alone(
        self, winners: Sequence[str], answered: Iterable[RunRecord], left_s: float
    ) -> tuple[int, int]:
        """Return how many of the winners can be run alone, and how often, within `left_s`;
        `answered` are runs alone of an earlier session."""
        expected = {trial: self.alone_s(self._costs[trial]) for trial in winners}
        left_s += sum(expected.get(record.source or "", 0.0) for record in answered)
        found = affordable(list(expected.values()), self.study.confirm.fresh, left_s)
        is_worth_it = bool(expected) and next(iter(expected.values())) < SLACK * left_s
        return (1, 1) if found == (0, 0) and is_worth_it else found

    def reserve_s(self) -> float:
        """Return the seconds to set aside of the study's time budget while it searches."""
        winners, budget = self.winners(), self.study.search.time_budget_s
        if not winners or budget is None:
            return 0.0
        one, left_s = self.alone_s(winners[0]), budget if self.left_s is None else self.left_s
        return min(self.confirming_s() + NUM_PLACEMENT_CHECKS * one, max(MOST * left_s, one))


def affordable(run_s: list[float], repeats: int, left_s: float) -> tuple[int, int]:
    """Return how many configurations, the first ones, can be run how often within `left_s`.

    `run_s` are the seconds of a run of each. As many runs as fit, at most `repeats` of each;
    of equally many, fewer configurations more often. (0, 0) if not even one fits.
    """
    found = [
        (count, times)
        for count in range(1, len(run_s) + 1)
        for times in range(1, repeats + 1)
        if times * sum(run_s[:count]) <= left_s
    ]
    return max(found, key=lambda one: (one[0] * one[1], one[1]), default=(0, 0))
