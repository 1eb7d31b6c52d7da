"""Who runs again: so many in the stages of a race, after it those who may still be the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from raybench.core.repeats import Repeat, is_apart, pooled, ranked

Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""(contenders, new runs of each), ..."""
MOST = 200
"""New runs of a race at most."""


REVERSAL = 1.0
"""Standard errors by which another has to be ahead of the race's first that never missed alone."""


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


def group_of(
    contender: Contender, new: Mapping[int, Repeat], *, axis: Axis, rounds: int | None = None
) -> list[Repeat]:
    """Return a contender's own run and its `new` ones (of the first `rounds`), by round."""
    found = [] if contender.own is None else [contender.own]
    found += [new[number] for number in sorted(new) if rounds is None or number < rounds]
    return on_axis(found, contender.num_workers, axis)


def on_axis(repeats: Sequence[Repeat], cost: float, axis: Axis) -> list[Repeat]:
    """Return runs in the unit of an axis; `cost`: worker-seconds per second of training."""
    factor = cost if axis == "worker_seconds" else 1
    return [repeat.times(factor) for repeat in repeats] if factor != 1 else list(repeats)


def best_first(
    raced: Mapping[str, Sequence[Repeat]],
    alone: Mapping[str, Sequence[Repeat]],
    *,
    is_timed: bool = True,
) -> dict[str, Sequence[Repeat]]:
    """Return configurations and the runs that they are judged by, best first: in the order of the
    race and by its runs, unless runs alone overrule its first.

    `alone` are the runs alone of those that had any. Then all runs decide: another takes its place
    that is ahead of it by these, if it ran alone too, or the first has missed alone, or lies behind
    by more than REVERSAL standard errors. In the simulated studies of `benchmarks/race.py` that
    moves the printed time by -1.8 % at sigma 0.3 and by -6.4 % at sigma 0.5.
    """
    order = ranked(raced, pooled(raced.values(), is_timed=is_timed), is_timed=is_timed)
    by_race = {name: raced[name] for name in order}
    first = order[0] if order else ""
    if not alone.get(first):
        return by_race
    every = {name: [*raced[name], *alone.get(name, ())] for name in order}
    noise = pooled(every.values(), is_timed=is_timed)
    has_missed = not all(repeat.is_hit for repeat in alone[first])
    for name in ranked(every, noise, is_timed=is_timed):
        if name == first:
            break
        pair = every[name], every[first]
        if (
            has_missed
            or alone.get(name)
            or is_apart(*pair, noise, errors=REVERSAL, is_timed=is_timed)
        ):
            return {one: every[one] for one in (name, *(one for one in order if one != name))}
    return by_race


def undecided(
    raced: Mapping[str, Sequence[Repeat]],
    alone: Mapping[str, Sequence[Repeat]] = MappingProxyType({}),
    *,
    is_timed: bool = True,
) -> list[str]:
    """Return who may be the best: the first (`best_first`), and what is statistically tied with
    it, by the noise of the race. That nothing is known of one yet excludes nobody."""
    noise = pooled(raced.values(), is_timed=is_timed)
    groups = best_first(raced, alone, is_timed=is_timed)
    best = next(iter(groups.values()), ())
    return [
        name
        for name, runs in groups.items()
        if not runs or not is_apart(best, runs, noise, is_timed=is_timed)
    ]


def next_to_run(
    raced: Mapping[str, Sequence[Repeat]],
    alone: Mapping[str, Sequence[Repeat]],
    *,
    is_timed: bool = True,
) -> list[str]:
    """Return the undecided with the fewest runs of the race, best first; [] when one is left."""
    found = undecided(raced, alone, is_timed=is_timed)
    fewest = min((len(raced[name]) for name in found), default=0)
    return [name for name in found if len(raced[name]) == fewest] if len(found) > 1 else []


def more(
    contenders: Sequence[Contender],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    is_timed: bool = True,
    alone: Mapping[str, Sequence[Repeat]] = MappingProxyType({}),
) -> list[Run]:
    """Return the next runs, at most `number`, that distinguish undecided contenders, by the runs
    that a verdict judges by: `alone` are those alone, in seconds.

    One of each of those with the fewest runs, best first; ask again when they are learned. [] when
    one is left.
    """
    new: dict[str, dict[int, Repeat]] = {one.name: {} for one in contenders}
    for (name, done), repeat in learned.items():
        if name in new:
            new[name][done] = repeat
    groups = {one.name: group_of(one, new[one.name], axis=axis) for one in contenders}
    others = {
        one.name: on_axis(alone.get(one.name, ()), one.num_workers, axis) for one in contenders
    }
    return [
        Run(name, min(set(range(len(new[name]) + 1)) - set(new[name])))
        for name in next_to_run(groups, others, is_timed=is_timed)[:number]
    ]
