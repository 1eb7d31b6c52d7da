"""Policies of `race.py`: ways to choose among the configurations of a search by more runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from race_worlds import Study

from raybench.search.race import Race
from raybench.stats.replicates import Replicate, expected_running_time
from raybench.stats.standing import Candidate, Stages, group_of, runs_to_decide, ties_of

NUM_BEST, NUM_RUNS = 3, 3
"""Number of best configurations that run again, and of their new runs, in `three_by_three`."""


@dataclass
class Outcome:
    """The winner of a policy and its new runs."""

    winner: int | None
    stages_s: list[list[float]] = field(default_factory=list)
    """Seconds of the new runs, stage by stage."""
    race: Race | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of all new runs."""
        return sum(map(sum, self.stages_s))


Policy = Callable[[Study], Outcome]


def single(study: Study) -> Outcome:
    """Name the configuration with the fastest single run."""
    return Outcome(next(iter(study.ranking()), None))


def three_by_three(study: Study) -> Outcome:
    """Run the three best again, three times each; name that of most hits, then least median."""
    found = {
        config: [study.run(config, number) for number in range(NUM_RUNS)]
        for config in study.ranking()[:NUM_BEST]
    }
    best = min(found, key=lambda config: (-_hits(found[config]), _median(found[config])))
    return Outcome(best, [[run.seconds for group in found.values() for run in group]])


def raced(stages: Stages, *, caps: bool = True, extra: int = 0) -> Policy:
    """Return raybench's race as a policy; afterwards `extra` runs go to tied configurations."""

    def policy(study: Study) -> Outcome:
        candidates = [Candidate(str(config), study.own(config), 1) for config in study.ranking()]
        race = Race(candidates, stages, axis="seconds")
        learned: dict[tuple[str, int], Replicate] = {}
        outcome = Outcome(None, race=race)
        while due := race.due():
            spent = []
            for run in due:
                found = study.run(int(run.name), run.round)
                cap_s = race.cap_s(run.name) if caps else None
                if cap_s is not None and found.seconds > cap_s:
                    found = Replicate(cap_s, is_hit=False)
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


def spend_more(
    study: Study,
    candidates: Sequence[Candidate],
    learned: dict[tuple[str, int], Replicate],
    number: int,
    outcome: Outcome,
) -> None:
    """Run tied configurations again, as `raybench tune --more` does, and name the winner anew."""
    left = number
    while left and (due := runs_to_decide(candidates, learned, left, axis="seconds")):
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
    outcome.winner = int(ties_of(groups).repeated[0])


def oracle(count: int) -> Policy:
    """Return an upper bound as a policy: `count` new runs of every configuration at no cost."""

    def policy(study: Study) -> Outcome:
        runs = {
            config: [study.own(config), *(study.run(config, i) for i in range(count))]
            for config in study.ranking()
        }
        return Outcome(min(runs, key=lambda config: expected_running_time(runs[config])))

    return policy


def _hits(runs: Sequence[Replicate]) -> int:
    return sum(run.is_hit for run in runs)


def _median(runs: Sequence[Replicate]) -> float:
    return median(run.seconds if run.is_hit else math.inf for run in runs)


def wall_s(stages_s: Sequence[Sequence[float]], slots: int) -> float:
    """Return the seconds of consecutive stages, with each run on the first free slot."""
    total = 0.0
    for runs in stages_s:
        free = [0.0] * slots
        for seconds in runs:
            first = free.index(min(free))
            free[first] += seconds
        total += max(free)
    return total
