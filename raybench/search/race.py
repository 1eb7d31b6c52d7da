"""The race between the best single runs of a search: who runs again, and who is out.

Bookkeeping only: a `Race` says which runs are due, and learns what they took. Stages halve the
contenders while the runs of each add up (successive halving over seeds: Karnin et al., ICML
2013). Round r of every contender has the same seed, so that what a seed does to all is in no
comparison. What `benchmarks/race.py` has shown stands in its results.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raybench.core.repeats import Noise, Repeat, is_apart, pooled, ranked, score

Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""(contenders, new runs of each), ..."""

DROP = 2.0
"""Standard errors behind the leader from which on a contender runs no more."""
CAP = 2.0
"""A run is stopped at so many expected running times of the leader."""
MOST = 200
"""New runs of a race at most."""


@dataclass(frozen=True)
class Contender:
    """A configuration of the race, by its trial in the search."""

    name: str
    own: Repeat | None
    """The search's own run; None where it does not count: the first trial has a cold start."""
    num_workers: int


@dataclass(frozen=True)
class Run:
    """A run that is to be done."""

    name: str
    round: int
    """From 0; the same seed for every contender."""


Learned = Mapping[tuple[str, int], Repeat]
"""New runs by contender and round, in seconds (never worker-seconds)."""


def stages(number: int) -> Stages:
    """Return the stages of a race of `number` new runs; () for 0.

    Half of the runs go to as many contenders, a quarter to the better half of them, what is left
    to an eighth (two at least): 24 is ((12, 1), (6, 1), (3, 2)).
    """
    if not 0 <= number <= MOST:
        raise ValueError(f"a race has 0 to {MOST} new runs, not {number}")
    if number < 4:
        return ((number, 1),) if number else ()
    first, last = number // 2, max(2, number // 8)
    second = max(last, number // 4)
    rest, each = number - first - second, (number - first - second) // last
    second += rest - each * last if each else rest  # what does not divide
    first, second = max(first, second), min(first, second)
    return tuple((count, runs) for count, runs in ((first, 1), (second, 1), (last, each)) if runs)


def fit(
    expected: Sequence[tuple[float, int]], *, left_s: float, slots: int, most: int = 24
) -> Stages:
    """Return the stages of the longest race that ends within `left_s` seconds.

    `expected` are seconds and slots of one run of each contender, best first; `most` new runs are
    asked for. A stage takes at most its slot-seconds over the slots and its longest run besides
    (Graham, 1969). No run is cut off: races that do not fit wholly are left out.
    """
    for number in range(min(most, MOST), 0, -1):
        found = stages(number)
        if sum(_stage_s(expected[:count], runs, slots) for count, runs in found) <= left_s:
            return found
    return ()


def _stage_s(expected: Sequence[tuple[float, int]], runs: int, slots: int) -> float:
    if not expected:
        return 0.0
    work = runs * sum(seconds * width for seconds, width in expected) / slots
    return work + (1 - 1 / slots) * max(seconds for seconds, _ in expected)


@dataclass
class Race:
    """A race over one axis; learns runs in any order, so an earlier session's are learned again.

    Runs of configurations that do not race here are kept and change nothing: two races, over
    seconds and over worker-seconds, are told of all runs of both.
    """

    contenders: Sequence[Contender]
    """Best single run first; those beyond the first stage never run."""
    stages: Stages
    axis: Axis = field(kw_only=True)
    is_timed: bool = field(default=True, kw_only=True)
    """Whether repeats are seconds to a target, else values (see `core.repeats`)."""
    _learned: dict[tuple[str, int], Repeat] = field(default_factory=dict, init=False)
    _alive: list[str] = field(init=False)
    """Who runs in the present stage, or stayed in to the end, best first."""
    _stage: int = field(default=0, init=False)
    _dropped: dict[str, int] = field(default_factory=dict, init=False)
    _raced: dict[str, int] = field(default_factory=dict, init=False)
    """Rounds that each contender has run in the stages that are over."""

    def __post_init__(self) -> None:
        self._by_name = {contender.name: contender for contender in self.contenders}
        count = self.stages[0][0] if self.stages else len(self.contenders)
        self._alive = [contender.name for contender in self.contenders[:count]]
        self._entered = tuple(self._alive)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Contenders that were too far behind, and after which stage (from 0)."""
        return self._dropped

    def learn(self, name: str, round: int, repeat: Repeat) -> None:  # noqa: A002
        """Take what a new run has taken, in seconds; end the stages whose runs are all known."""
        self._learned[name, round] = repeat
        while self._stage < len(self.stages) and not self._missing():
            self._end_stage()

    def due(self) -> list[Run]:
        """Return the runs of the present stage that are not known yet, round by round.

        None when the race is over.
        """
        return self._missing() if self._stage < len(self.stages) else []

    def cap_s(self, name: str) -> float | None:
        """Return the train seconds after which a run of `name` may be stopped: it has lost.

        None while the leader has run once only: the search's best run was the luckiest.
        """
        leader = self.leader()
        if not self.is_timed or leader is None or len(self._group(leader)) < 2:
            return None
        expected = math.exp(score(self._group(leader)))
        return CAP * expected / self._unit(name)

    def leader(self) -> str | None:
        """Return the best contender by all that is known; None where nothing has hit."""
        first = next(iter(self.order()), None)
        if first is None or math.isinf(score(self._group(first), is_timed=self.is_timed)):
            return None
        return first

    def order(self) -> list[str]:
        """Return all who entered, best first (`core.repeats.ranked`)."""
        groups = {name: self._group(name) for name in self._entered}
        return ranked(groups, self.noise(), is_timed=self.is_timed)

    def noise(self) -> Noise:
        """Return the noise pooled over all who entered."""
        return pooled((self._group(name) for name in self._entered), is_timed=self.is_timed)

    def groups(self) -> dict[str, list[Repeat]]:
        """Return what is known of each who entered, best first, on the race's axis."""
        return {name: self._group(name) for name in self.order()}

    def _missing(self) -> list[Run]:
        first = sum(runs for _, runs in self.stages[: self._stage])
        rounds = range(first, first + self.stages[self._stage][1])
        return [
            Run(name, number)
            for number in rounds
            for name in self._alive
            if (name, number) not in self._learned
        ]

    def _end_stage(self) -> None:
        """Order the contenders of the stage by the runs up to it, and keep the next stage's.

        Runs of later rounds, which another race may have asked for, wait until their stage: so the
        race does not depend on the order in which runs are learned.
        """
        rounds = sum(runs for _, runs in self.stages[: self._stage + 1])
        self._raced |= dict.fromkeys(self._alive, rounds)
        groups = {name: self._group(name, rounds) for name in self._alive}
        raced = (self._group(name, count) for name, count in self._raced.items())
        noise = pooled(raced, is_timed=self.is_timed)
        order = ranked(groups, noise, is_timed=self.is_timed)
        for name in order[1:]:
            if is_apart(groups[order[0]], groups[name], noise, errors=DROP, is_timed=self.is_timed):
                self._dropped[name] = self._stage
        order = [name for name in order if name not in self._dropped]
        self._stage += 1
        if self._stage < len(self.stages):
            order = order[: self.stages[self._stage][0]]
        self._alive = order
        if len(order) < 2:
            self._stage = len(self.stages)

    def _group(self, name: str, rounds: int | None = None) -> list[Repeat]:
        """Return the runs of a contender, of the first `rounds`, in the unit of the axis."""
        return group_of(self._by_name[name], self._learned, axis=self.axis, rounds=rounds)

    def _unit(self, name: str) -> int:
        return self._by_name[name].num_workers if self.axis == "worker_seconds" else 1


def group_of(
    contender: Contender, learned: Learned, *, axis: Axis, rounds: int | None = None
) -> list[Repeat]:
    """Return a contender's own run and its new ones (of the first `rounds`), by round."""
    new = sorted(
        (number, repeat)
        for (name, number), repeat in learned.items()
        if name == contender.name and (rounds is None or number < rounds)
    )
    found = [repeat for _, repeat in new]
    if contender.own is not None:
        found.insert(0, contender.own)
    factor = contender.num_workers if axis == "worker_seconds" else 1
    return [repeat.times(factor) for repeat in found] if factor > 1 else found


def more(
    contenders: Sequence[Contender],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    is_timed: bool = True,
) -> list[Run]:
    """Return the next runs, at most `number`, that tell undecided contenders apart.

    One of each whom chance could have kept from the lead, the leader among them, those with the
    fewest runs first; ask again when they are learned. [] when one is left.
    """
    groups = {one.name: group_of(one, learned, axis=axis) for one in contenders}
    noise = pooled(groups.values(), is_timed=is_timed)
    order = ranked(groups, noise, is_timed=is_timed)
    if not order:
        return []
    best = groups[order[0]]
    undecided = [
        name for name in order if not is_apart(best, groups[name], noise, is_timed=is_timed)
    ]
    if len(undecided) < 2:
        return []
    fewest = min(len(groups[name]) for name in undecided)
    chosen = [name for name in undecided if len(groups[name]) == fewest][:number]
    return [Run(name, next_round(name, learned)) for name in chosen]


def next_round(name: str, learned: Collection[tuple[str, int]]) -> int:
    """Return the first round that a contender has not run."""
    number = 0
    while (name, number) in learned:
        number += 1
    return number
