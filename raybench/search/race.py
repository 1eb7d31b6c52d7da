"""The race between the best single runs of a search: who runs again, and who is out.

Bookkeeping only: a `Race` says which runs are due, and learns what they took. Stages halve the
candidates while the runs of each add up (successive halving over seeds: Karnin et al., ICML
2013). Round r of every candidate has the same seed, so that what a seed does to all is in no
comparison. What `benchmarks/search/race.py` has shown stands in its results.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from raybench.spec.run import RunSpec
from raybench.stats.replicates import Noise, Replicate, is_apart, pooled, ranked, score, upper_score
from raybench.stats.standing import Axis, Candidate, ConfigurationRuns, RaceRun, Stages, group_of

DROP = 2.0
"""Standard errors behind the leader from which on a candidate runs no more."""
CAP = 2.0
"""A run is stopped at so many expected running times of the leader, at the upper end of what its
runs allow: the leader of few runs is a lucky one. Without that allowance a cap loses 5 studies of
100 at sigma 0.5; with it less than 1 (`benchmarks/search/race.py`)."""


@dataclass
class Race:
    """A race over one axis; learns runs in any order, so an earlier session's are learned again.

    Runs of configurations that do not race here are kept and change nothing: two races, over
    seconds and over worker-seconds, are told of all runs of both.
    """

    candidates: Sequence[Candidate]
    """Best single run first; those beyond the first stage never run."""
    stages: Stages
    axis: Axis = field(kw_only=True)
    is_timed: bool = field(default=True, kw_only=True)
    """Whether repeats are seconds to a target, else values (see `stats.replicates`)."""
    _learned: dict[str, dict[int, Replicate]] = field(default_factory=dict, init=False)
    """Results by candidate and round, in seconds."""
    _alive: list[str] = field(init=False)
    """Candidates of the present stage, or that stayed in to the end, best first."""
    _stage: int = field(default=0, init=False)
    dropped: dict[str, int] = field(default_factory=dict, init=False)
    """Candidates that were too far behind, and after which stage (from 0)."""
    _raced: dict[str, int] = field(default_factory=dict, init=False)
    """Rounds that each candidate has run in the stages that are over."""
    _order: list[str] | None = field(default=None, init=False)
    _noise: Noise | None = field(default=None, init=False)
    """Noise over all that is known; kept until the next run, as every run that starts asks for its
    cap."""

    def __post_init__(self) -> None:
        self._by_name = {candidate.name: candidate for candidate in self.candidates}
        count = self.stages[0][0] if self.stages else len(self.candidates)
        self._alive = [candidate.name for candidate in self.candidates[:count]]
        self._entered = tuple(self._alive)

    def has(self, name: str) -> bool:
        """Whether a configuration races here."""
        return name in self._by_name

    def learn(self, name: str, round: int, repeat: Replicate) -> None:  # noqa: A002
        """Take what a new run has taken, in seconds; end the stages whose runs are all known."""
        self._learned.setdefault(name, {})[round] = repeat
        self._order = self._noise = None
        while self._stage < len(self.stages) and not self._missing():
            self._end_stage()

    def due(self) -> list[RaceRun]:
        """Return the runs of the present stage that are not known yet, round by round.

        [] when the race is over.
        """
        return self._missing() if self._stage < len(self.stages) else []

    def cap_s(self, name: str) -> float | None:
        """Return the train seconds after which a run of `name` may be stopped: it has lost.

        None while the leader has run once only: the search's best run was the luckiest.
        """
        leader = self.leader() if self.is_timed else None
        if leader is None or len(self.runs_of(leader)) < 2:
            return None
        unit = self._by_name[name].cost if self.axis == "worker_seconds" else 1
        return cap_of(self.runs_of(leader), self.noise()) / unit

    def leader(self) -> str | None:
        """Return the best candidate by all that is known; None where nothing has hit."""
        first = next(iter(self.order()), None)
        if first is None or math.isinf(score(self.runs_of(first), is_timed=self.is_timed)):
            return None
        return first

    def order(self) -> list[str]:
        """Return all who entered, best first (`stats.replicates.ranked`)."""
        if self._order is None:
            groups = {name: self.runs_of(name) for name in self._entered}
            self._order = ranked(groups, self.noise())
        return list(self._order)

    def noise(self) -> Noise:
        """Return the noise pooled over all who entered."""
        if self._noise is None:
            groups = (self.runs_of(name) for name in self._entered)
            self._noise = pooled(groups, is_timed=self.is_timed)
        return self._noise

    def runs_of(self, name: str, rounds: int | None = None) -> list[Replicate]:
        """Return the runs of a candidate, its own first (and those of the first `rounds`, or all),
        in the unit of the axis."""
        return self.group(name).runs(rounds)

    def group(self, name: str) -> ConfigurationRuns:
        """Return the runs of a candidate by round, in the unit of the axis."""
        return group_of(self._by_name[name], self._learned.get(name, {}), axis=self.axis)

    def is_behind(
        self, best: Sequence[Replicate], other: Sequence[Replicate], noise: Noise
    ) -> bool:
        """Whether one is too far behind a stage's leader to run again; benchmarks vary it."""
        return is_apart(best, other, noise, errors=DROP)

    def _missing(self) -> list[RaceRun]:
        first = sum(runs for _, runs in self.stages[: self._stage])
        rounds = range(first, first + self.stages[self._stage][1])
        return [
            RaceRun(name, number)
            for number in rounds
            for name in self._alive
            if number not in self._learned.get(name, {})
        ]

    def _end_stage(self) -> None:
        """Order the candidates of the stage by the runs up to it, and keep the next stage's.

        Runs of later rounds, which another race may have asked for, wait until their stage: so the
        race does not depend on the order in which runs are learned.
        """
        rounds = sum(runs for _, runs in self.stages[: self._stage + 1])
        self._raced |= dict.fromkeys(self._alive, rounds)
        groups = {name: self.runs_of(name, rounds) for name in self._alive}
        raced = (self.runs_of(name, count) for name, count in self._raced.items())
        noise = pooled(raced, is_timed=self.is_timed)
        order = ranked(groups, noise)
        for name in order[1:]:
            if self.is_behind(groups[order[0]], groups[name], noise):
                self.dropped[name] = self._stage
        order = [name for name in order if name not in self.dropped]
        self._stage += 1
        if self._stage < len(self.stages):
            order = order[: self.stages[self._stage][0]]
        self._alive = order
        if len(order) < 2:
            self._stage = len(self.stages)


def cap_of(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the seconds after which a run beside such ones has missed; infinite without a hit."""
    return CAP * math.exp(upper_score(repeats, noise))


class Races:
    """Several races at once: a run that more than one of them asks for is run once."""

    def __init__(self, races: Iterable[Race]) -> None:
        self._races = list(races)

    def due(self) -> list[RaceRun]:
        """Return the runs of the present stages that are not known yet, each once, by rounds."""
        found = dict.fromkeys(run for race in self._races for run in race.due())
        return sorted(found, key=lambda run: run.round)

    def learn(self, run: RaceRun, repeat: Replicate) -> None:
        """Take what a run has taken."""
        for race in self._races:
            race.learn(run.name, run.round, repeat)

    def cap_s(self, run: RaceRun) -> float | None:
        """Return the train seconds after which a run has lost wherever it is asked for: in races
        without stages (`standing.more`) all their candidates are. None while it may still win."""
        caps = [
            race.cap_s(run.name)
            for race in self._races
            if (run in race.due() if race.stages else race.has(run.name))
        ]
        known = [cap for cap in caps if cap is not None]
        return max(known) if known and len(known) == len(caps) else None


def in_turns(runs: Sequence[RaceRun], specs: Mapping[str, RunSpec]) -> list[RaceRun]:
    """Return runs round by round, in the order in which they shall begin.

    Those that need equal worker groups follow one another, so that few are opened; each round
    begins with another one, so that nobody is always the last, which has no company.
    """
    found: list[RaceRun] = []
    for number, of_round in groupby(runs, key=lambda run: run.round):
        row = sorted(of_round, key=lambda run: repr(specs[run.name].placement.group))
        turn = number % len(row)
        found += [*row[turn:], *row[:turn]]
    return found
