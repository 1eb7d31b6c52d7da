"""How much of a time budget is set aside for confirming, and how many runs what is left buys."""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from raybench.core.record import RunRecord
from raybench.core.study import TIME, StudySpec
from raybench.results.topology import Layout, Usual, layout_of, usual_of

SLACK = 1.5
"""A confirming run may take so much longer than the search's, which was a lucky one."""
MOST = 0.4
"""Share of the budget that is set aside at most, unless one run alone needs more."""
BESIDE = ("setup", "compile", "eval", "report")
"""Phases of a run that take time beside training, in warm workers."""
NUM_FINALISTS = 3
"""Runs of splits that were only predicted come before the confirming ones."""


@dataclass(frozen=True)
class Cost:
    """What a run that can be confirmed took."""

    trial: str
    framework: str
    rank: float
    """Lower is better: seconds to the target, or the metric, its sign turned where more is."""
    worker_seconds: float
    train_s: float
    layout: Layout


@dataclass
class ConfirmBudget:
    """Follows the runs of a search, and says how long it takes to confirm the best of them."""

    study: StudySpec
    _costs: dict[str, Cost] = field(default_factory=dict)
    _usual: Usual = field(init=False)
    _best: list[Cost] = field(default_factory=list)
    _first: dict[tuple[str, ...], Cost] = field(default_factory=dict)
    """The best on each model of GPU."""
    _cheapest: Cost | None = None
    _beside: dict[str, float] = field(default_factory=dict)
    """Seconds beside training of a run in warm workers, by framework."""

    def __post_init__(self) -> None:
        self._usual = usual_of((), self.study.space, self.study.fixed)

    def learn(self, runs: Iterable[RunRecord]) -> None:
        """Take the runs that an earlier session, or an earlier phase, has recorded."""
        for record in runs:
            if record.phase == "search":
                self.add(record)

    def add(self, record: RunRecord) -> None:
        """Take a run of the search; those that cannot be confirmed are left out.

        Left out too are those laid out unlike others of their size (`results.topology`).
        """
        is_time, ledger, spec = self.study.objective.kind == TIME, record.ledger, record.spec
        seconds = record.time_to_target_s if is_time else ledger["train"]
        if record.failure is not None or seconds is None or record.best_value is None:
            return
        # The first runs of a worker import much of the framework: the least is that of warm ones.
        beside = sum(ledger[phase] for phase in BESIDE)
        self._beside[spec.framework] = min(beside, self._beside.get(spec.framework, beside))
        metric = self.study.objective.judged_by
        rank = seconds if is_time else -metric.sign * record.best_value
        cost = spec.num_workers * seconds
        layout = layout_of(record)
        # An earlier run of the trial, or those on more hosts, may be among the best.
        is_changed = self._usual.add(layout) or record.trial in self._costs
        found = Cost(record.trial, spec.framework, rank, cost, seconds, layout)
        self._costs[record.trial] = found
        if is_changed:
            self._best, self._first, self._cheapest = [], {}, None
        for one in self._costs.values() if is_changed else [found]:
            self._compare(one)

    def _compare(self, cost: Cost) -> None:
        """Keep the best and the cheapest; of equal ones, those that came first."""
        if self._usual.objection(cost.layout):
            return
        bisect.insort(self._best, cost, key=lambda one: one.rank)
        del self._best[self.study.confirm.top :]
        first = self._first.setdefault(cost.layout.accelerators, cost)
        if cost.rank < first.rank:
            self._first[cost.layout.accelerators] = cost
        if self._cheapest is None or cost.worker_seconds < self._cheapest.worker_seconds:
            self._cheapest = cost

    def _run_s(self, cost: Cost) -> float:
        longer = SLACK if self.study.objective.kind == TIME else 1.0
        return longer * (cost.train_s + self._beside[cost.framework])

    def chosen(self) -> list[Cost]:
        """Return what is to be confirmed, as far as is known: the fastest, then the cheapest.

        Or "cheapest" would only be asked of the fast. Where seconds are the same for all, the
        best by the metric alone. Of several models of GPU, the best on each besides.
        """
        if not self._best or self._cheapest is None:
            return []
        found = list(self._best)
        if self.study.objective.kind == TIME and self._cheapest not in found:
            found.append(self._cheapest)
        kinds = {cost.layout.accelerators for cost in found}
        return found + [one for kind, one in self._first.items() if kind not in kinds]

    def confirming_s(self) -> float:
        """Return the seconds that confirming as the study asks for takes."""
        return self.study.confirm.repeats * sum(map(self._run_s, self.chosen()))

    def confirmable(self, answered: Iterable[RunRecord], left_s: float) -> tuple[int, int]:
        """Return how many of the chosen ones can be confirmed, and how often, within `left_s`.

        `answered` are confirming runs of an earlier session: they cost nothing any more.
        """
        expected = {cost.trial: self._run_s(cost) for cost in self.chosen()}
        left_s += sum(expected.get(str(one.source), 0.0) for one in answered)
        found = affordable(list(expected.values()), self.study.confirm.repeats, left_s)
        # The expectation has room for bad luck; one run is worth trying without it.
        is_worth_it = bool(expected) and next(iter(expected.values())) < SLACK * left_s
        return (1, 1) if found == (0, 0) and is_worth_it else found

    def reserve_s(self) -> float:
        """Return the seconds to set aside of the study's time budget while it searches."""
        chosen, budget = self.chosen(), self.study.search.time_budget_s
        if not chosen or budget is None:
            return 0.0
        one = self._run_s(chosen[0])
        return min(self.confirming_s() + NUM_FINALISTS * one, max(MOST * budget, one))


def affordable(run_s: list[float], repeats: int, left_s: float) -> tuple[int, int]:
    """Return how many configurations, the first ones, can be run how often within `left_s`.

    `run_s` are the seconds of a run of each. As many runs as fit, at most `repeats` of each;
    of equally many, fewer configurations more often. (0, 0) if not even one fits.
    """
    best = (0, 0)
    for count in range(1, len(run_s) + 1):
        for times in range(1, repeats + 1):
            is_better = (count * times, times) > (best[0] * best[1], best[1])
            if is_better and times * sum(run_s[:count]) <= left_s:
                best = (count, times)
    return best
