"""The race: the best trials of a search run again with new seeds, and slow ones drop out.

A `Race` trains nothing: it lists the runs that are due and stores their results. The method is
successive halving over seeds (Karnin et al., ICML 2013): each stage keeps about half of the
candidates and runs them again. A stage has one or more rounds. In a round, every candidate runs
once with the same seed, so that the effect of the seed cancels in comparisons.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from raybench.spec.run import RunSpec
from raybench.stats.replicates import Noise, Replicate, is_apart, pooled, ranked, score, upper_score
from raybench.stats.standing import Axis, Candidate, ConfigurationRuns, RaceRun, Stages, group_of

DROP_ERRORS = 2.0
"""Number of standard errors behind the leader at which a candidate drops out."""
CAP_FACTOR = 2.0
"""Cutoff of a run, as a multiple of the upper confidence bound on the leader's expected running
time. The upper bound is used because a leader with few runs was partly lucky. With the expected
running time itself, the cutoff loses a good winner in 5 of 100 studies if the standard deviation of
log seconds over seeds is 0.5; with the bound, in less than 1 of 100
(`benchmarks/search/race.py`)."""


@dataclass
class Race:
    """A race by seconds or by worker-seconds (the axis); results may be added in any order.

    A study has one race on each axis. Both receive all results, and a race ignores the results of
    configurations that are not among its candidates.
    """

    candidates: Sequence[Candidate]
    """Candidates, best trial first. Only as many run as the first stage admits."""
    stages: Stages
    axis: Axis = field(kw_only=True)
    _learned: dict[str, dict[int, Replicate]] = field(default_factory=dict, init=False)
    """Results in seconds, keyed by candidate and then by round."""
    _alive: list[str] = field(init=False)
    """Candidates of the current stage, best first; after the last stage, the candidates that
    remain."""
    _stage: int = field(default=0, init=False)
    dropped: dict[str, int] = field(default_factory=dict, init=False)
    """Stage (from 0) after which each dropped candidate left the race."""
    _raced: dict[str, int] = field(default_factory=dict, init=False)
    """Number of rounds that each candidate has run in finished stages."""

    def __post_init__(self) -> None:
        self._by_name = {candidate.name: candidate for candidate in self.candidates}
        count = self.stages[0][0] if self.stages else len(self.candidates)
        self._alive = [candidate.name for candidate in self.candidates[:count]]
        self._entered = tuple(self._alive)

    def needs(self, run: RaceRun) -> bool:
        """Return whether the race needs the result of a run.

        A race without stages (`--more`) needs all runs of its candidates.
        """
        return run in self.due() if self.stages else run.name in self._by_name

    def learn(self, name: str, round: int, repeat: Replicate) -> None:  # noqa: A002
        """Add the result of a run (in seconds on both axes), and end each stage that is now
        complete."""
        self._learned.setdefault(name, {})[round] = repeat
        while self._stage < len(self.stages) and not self._missing_runs():
            self._end_stage()

    def due(self) -> list[RaceRun]:
        """Return the runs of the current stage that have no result yet, round by round; [] when the
        race is over."""
        return self._missing_runs() if self._stage < len(self.stages) else []

    def cap_s(self, name: str) -> float | None:
        """Return the training seconds after which a run of a candidate has lost and may be stopped.

        The result is None with `best_at_budget`, without a leader, and while the leader has only
        its result from the search, which was probably lucky.
        """
        noise = self.noise()
        leader = self.leader() if noise.is_timed else None
        if leader is None or len(self.runs_of(leader)) < 2:
            return None
        unit = self._by_name[name].cost if self.axis == "worker_seconds" else 1
        return cap_of(self.runs_of(leader), noise) / unit

    def leader(self) -> str | None:
        """Return the name of the best candidate given all results; None if no run reached the
        target."""
        first = next(iter(self.order()), None)
        if first is None or math.isinf(score(self.runs_of(first))):
            return None
        return first

    def order(self) -> list[str]:
        """Return the names of all candidates of the first stage, best first
        (`stats.replicates.ranked`)."""
        return ranked({name: self.runs_of(name) for name in self._entered}, self.noise())

    def noise(self) -> Noise:
        """Return the run-to-run noise, pooled over all candidates of the first stage."""
        return pooled(map(self.runs_of, self._entered))

    def runs_of(self, name: str, rounds: int | None = None) -> list[Replicate]:
        """Return the results of a candidate, in the unit of this race (see `axis`).

        The result from the search comes first, then those of the first `rounds` rounds (None: all
        rounds).
        """
        return self.group(name).runs(rounds)

    def group(self, name: str) -> ConfigurationRuns:
        """Return the results of a candidate by round, in the unit of this race (see `axis`)."""
        return group_of(self._by_name[name], self._learned.get(name, {}), axis=self.axis)

    def _missing_runs(self) -> list[RaceRun]:
        """Return the runs of the current stage that have no result yet, round by round."""
        first = sum(runs for _, runs in self.stages[: self._stage])
        rounds = range(first, first + self.stages[self._stage][1])
        return [
            RaceRun(name, number)
            for number in rounds
            for name in self._alive
            if number not in self._learned.get(name, {})
        ]

    def _end_stage(self) -> None:
        """Rank the candidates of the current stage, and keep those that enter the next stage.

        Results of later rounds, which the race on the other axis may have needed, are ignored until
        their stage, so that the outcome does not depend on the order in which results arrive.
        """
        rounds = sum(runs for _, runs in self.stages[: self._stage + 1])
        self._raced |= dict.fromkeys(self._alive, rounds)
        groups = {name: self.runs_of(name, rounds) for name in self._alive}
        raced = (self.runs_of(name, count) for name, count in self._raced.items())
        noise = pooled(raced)
        order = ranked(groups, noise)
        for name in order[1:]:
            if is_apart(groups[order[0]], groups[name], noise, errors=DROP_ERRORS):
                self.dropped[name] = self._stage
        order = [name for name in order if name not in self.dropped]
        self._stage += 1
        if self._stage < len(self.stages):
            order = order[: self.stages[self._stage][0]]
        self._alive = order
        if len(order) < 2:
            self._stage = len(self.stages)


def cap_of(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the training time after which a run has lost to another configuration.

    Args:
        repeats: Results of the other configuration, in seconds or worker-seconds.
        noise: Run-to-run noise.

    Returns:
        Training time in the unit of `repeats`; infinite if none of them reached the target.
    """
    return CAP_FACTOR * math.exp(upper_score(repeats, noise))


class Races:
    """Several races that share runs: a run that more than one of them needs is run once."""

    def __init__(self, races: Iterable[Race]) -> None:
        self._races = list(races)

    def due(self) -> list[RaceRun]:
        """Return the runs of all current stages that have no result yet, sorted by round; a run
        that several races need appears once."""
        runs = dict.fromkeys(run for race in self._races for run in race.due())
        return sorted(runs, key=lambda run: run.round)

    def learn(self, run: RaceRun, repeat: Replicate) -> None:
        """Add the result of a run to every race."""
        for race in self._races:
            race.learn(run.name, run.round, repeat)

    def cap_s(self, run: RaceRun) -> float | None:
        """Return the training seconds after which a run has lost every race that needs it; None for
        no limit."""
        caps = [race.cap_s(run.name) for race in self._races if race.needs(run)]
        known_caps = [cap for cap in caps if cap is not None]
        return max(known_caps) if known_caps and len(known_caps) == len(caps) else None


def in_turns(runs: Sequence[RaceRun], specs: Mapping[str, RunSpec]) -> list[RaceRun]:
    """Sort runs into starting order, round by round.

    Runs that can use the same worker group follow each other, so that few groups are started. Each
    round starts with a different candidate, because the last runs of a round share the machine with
    fewer other runs.

    Args:
        runs: The runs, sorted by round.
        specs: Run spec of each candidate by name.
    """
    ordered: list[RaceRun] = []
    for number, of_round in groupby(runs, key=lambda run: run.round):
        round_runs = sorted(of_round, key=lambda run: repr(specs[run.name].resources))
        turn = number % len(round_runs)
        ordered += [*round_runs[turn:], *round_runs[:turn]]
    return ordered
