"""What `race.py` compares: ways to choose among a search's configurations by running them again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from race_worlds import Study

from raybench.search.race import CAP, Race
from raybench.stats.replicates import Noise, Replicate, expected_running_time
from raybench.stats.standing import Candidate, Stages, group_of, more, undecided

TODAY = (3, 3)
"""Best single runs, new runs of each."""


@dataclass
class Outcome:
    """What a policy has named, and what it took."""

    winner: int | None
    stages_s: list[list[float]] = field(default_factory=list)
    """Seconds of its new runs, stage by stage."""
    race: Race | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of all new runs."""
        return sum(map(sum, self.stages_s))


Policy = Callable[[Study], Outcome]


def single(study: Study) -> Outcome:
    """Name the best single run."""
    return Outcome(next(iter(study.ranking()), None))


def today(study: Study) -> Outcome:
    """Run the three best again, three times each; most hits, then the least median."""
    count, runs = TODAY
    found = {
        config: [study.run(config, number) for number in range(runs)]
        for config in study.ranking()[:count]
    }
    best = min(found, key=lambda config: (-_hits(found[config]), _median(found[config])))
    return Outcome(best, [[run.seconds for group in found.values() for run in group]])


def raced(
    stages: Stages, *, with_own: bool = True, drop: bool = True, cap: str = "upper", extra: int = 0
) -> Policy:
    """The product's race, run after run; or with one of its ingredients left out.

    `cap` is "upper" (the product's), "expected" (of the leader's ERT itself) or "none"; `extra`
    runs are spent on the undecided afterwards.
    """

    def policy(study: Study) -> Outcome:
        candidates = [
            Candidate(str(config), study.own(config) if with_own else None, 1)
            for config in study.ranking()
        ]
        race = (Race if drop else KeepsAll)(candidates, stages, axis="seconds")
        learned: dict[tuple[str, int], Replicate] = {}
        outcome = Outcome(None, race=race)
        while due := race.due():
            spent = []
            for run in due:
                found = capped(study.run(int(run.name), run.round), CAPS[cap](race, run.name))
                race.learn(run.name, run.round, found)
                learned[run.name, run.round] = found
                spent.append(found.seconds)
            outcome.stages_s.append(spent)
        leader = race.leader()
        outcome.winner = None if leader is None else int(leader)
        if extra:
            spend_more(study, candidates, learned, extra, outcome)
        return outcome

    return policy


class KeepsAll(Race):
    """A race that halves, and drops nobody besides."""

    def is_behind(
        self, best: Sequence[Replicate], other: Sequence[Replicate], noise: Noise
    ) -> bool:
        """Never."""
        return False


def cap_of_expected(race: Race, name: str) -> float | None:
    """Return twice the leader's expected running time, however few its runs."""
    leader = None if race.cap_s(name) is None else race.leader()
    return None if leader is None else CAP * expected_running_time(race.runs_of(leader))


CAPS: dict[str, Callable[[Race, str], float | None]] = {
    "upper": Race.cap_s,
    "expected": cap_of_expected,
    "none": lambda race, name: None,
}


def spend_more(
    study: Study,
    candidates: Sequence[Candidate],
    learned: dict[tuple[str, int], Replicate],
    number: int,
    outcome: Outcome,
) -> None:
    """Run the undecided again, as `raybench.tune --more` does, and name the winner anew."""
    left = number
    while left and (due := more(candidates, learned, left, axis="seconds")):
        for run in due:
            learned[run.name, run.round] = study.run(int(run.name), run.round)
        outcome.stages_s.append([learned[run.name, run.round].seconds for run in due])
        left -= len(due)
    groups = {
        one.name: group_of(
            one,
            {done: run for (name, done), run in learned.items() if name == one.name},
            axis="seconds",
        )
        for one in candidates
    }
    outcome.winner = int(undecided(groups)[0])


def halving(stages: Stages, score: Callable[[Sequence[Replicate]], float]) -> Policy:
    """A race by another score, without dropping and without caps."""

    def policy(study: Study) -> Outcome:
        order, number, outcome = study.ranking(), 0, Outcome(None)
        runs = {config: [study.own(config)] for config in order}
        for count, each in stages:
            order = order[:count]
            spent = []
            for config in order:
                new = [study.run(config, number + i) for i in range(each)]
                runs[config] += new
                spent += [run.seconds for run in new]
            number += each
            order = sorted(order, key=lambda config: score(runs[config]))
            outcome.stages_s.append(spent)
        outcome.winner = order[0]
        return outcome

    return policy


def oracle(count: int) -> Policy:
    """A bound: the least mean of logs when every contender's runs are `count` and cost nothing."""

    def policy(study: Study) -> Outcome:
        runs = {
            config: [study.own(config), *(study.run(config, i) for i in range(count))]
            for config in study.ranking()
        }
        return Outcome(min(runs, key=lambda config: expected(runs[config])))

    return policy


def capped(run: Replicate, cap_s: float | None) -> Replicate:
    if cap_s is None or run.seconds <= cap_s:
        return run
    return Replicate(cap_s, is_hit=False)


def expected(runs: Sequence[Replicate]) -> float:
    return expected_running_time(runs)


def mean_log(runs: Sequence[Replicate]) -> float:
    """The mean of logs of the hits, a miss as twice what it spent."""
    return fmean(math.log(run.seconds * (1 if run.is_hit else 2)) for run in runs)


def median_of_runs(runs: Sequence[Replicate]) -> float:
    return _median(runs)


def median_of_hits(runs: Sequence[Replicate]) -> float:
    hits = [run.seconds for run in runs if run.is_hit]
    return median(hits) if hits else math.inf


def _hits(runs: Sequence[Replicate]) -> int:
    return sum(run.is_hit for run in runs)


def _median(runs: Sequence[Replicate]) -> float:
    return median(run.seconds if run.is_hit else math.inf for run in runs)


def wall_s(stages_s: Sequence[Sequence[float]], slots: int) -> float:
    """Seconds of stages one after another, each one's runs in order on the first free slot."""
    total = 0.0
    for runs in stages_s:
        free = [0.0] * slots
        for seconds in runs:
            first = free.index(min(free))
            free[first] += seconds
        total += max(free)
    return total
