"""What a recorded run counts as when configurations are compared, and which run again.

Race and results have this one rule. A run is seen to be at the target only when it is next
evaluated, which is late by half a period on average: 6, 16, 24 and 34 % of the time where the
period is 0.1, 0.3, 0.5 and 0.8 of it. A straight line between the evaluations before and after
keeps that below 4 %; where the period is short, the line would only add the noise of the two
values.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Literal

from raybench.spec.objective import MIN_SECONDS, TIME
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import MACHINE_FAULTS, Evaluation, RunRecord
from raybench.stats.replicates import Replicate, is_apart, pooled, ranked

LONG_PERIOD = 0.25
"""Share of the time to target from which on its period of evaluation is too long to be ignored."""
NEAR = 1e-9
"""Share of a time by which it may be another after it was written and read."""


@dataclass(frozen=True)
class TimeToTarget:
    """When a run reached its target, for choosing and for printing."""

    seconds: float
    """On the training clock; the recorded time or, interpolated, a time before it."""
    is_interpolated: bool
    """Whether it lies between two evaluations."""


def interpolated_time(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> TimeToTarget | None:
    """Return when a run reached its target; None if it never reached (and held) it.

    `points` are its evaluations in order. `baseline_value` is what is reached at 0 s, where the
    objective does not say it: a first evaluation at the target is interpolated only if it is known.
    Where the evaluation before is not recorded or not finite, the recorded time stands.
    """
    reached_s, objective = record.time_to_target_s, record.spec.objective
    if reached_s is None:
        return None
    raw = TimeToTarget(reached_s, is_interpolated=False)
    if objective.kind != TIME or objective.target is None:
        return raw
    place = bisect_left(points, reached_s * (1 - NEAR), key=attrgetter("train_s"))
    if place == len(points) or not math.isclose(points[place].train_s, reached_s, rel_tol=NEAR):
        return raw
    at, before_s, before = points[place], 0.0, objective.baseline_value
    if before is None:
        before = baseline_value
    if at.index > 0:
        if place == 0 or points[place - 1].index != at.index - 1:
            return raw
        before_s, before = points[place - 1].train_s, points[place - 1].value
    return crossing(reached_s, at.value, before_s, before, objective.target)


def crossing(
    reached_s: float, value: float, before_s: float, before: float | None, target: float
) -> TimeToTarget:
    """Return when the line from the evaluation before crosses the target; where that is not known,
    or the period is short, the time of the evaluation that was at the target."""
    raw = TimeToTarget(reached_s, is_interpolated=False)
    period = reached_s - before_s
    if before is None or period <= LONG_PERIOD * reached_s:
        return raw
    way, rest = value - before, target - before
    if not math.isfinite(way) or way * rest <= 0:
        return raw
    return TimeToTarget(before_s + period * min(rest / way, 1.0), is_interpolated=True)


def is_informative(record: RunRecord) -> bool:
    """Whether a run that was repeated says something of its configuration.

    Not if it was cut off, by the user or by the time budget, or lost; a run of a race that was
    stopped because it had lost (`cap`) does: it missed.
    """
    if record.failure in MACHINE_FAULTS:
        return False
    return record.state != "stopped" or record.stop == "cap"


def replicate_of(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> Replicate:
    """Return what a run counts as; the arguments are those of `interpolated_time`.

    Train seconds to the target, a miss with all that it has spent (one that crashed with what it
    spent since its last evaluation too, taken as training) and the set-up and
    compilation of the run that begins in its place: what diverges at once is not free. With
    best_at_budget the best value, its sign turned where more is better.
    """
    is_failed = record.failure is not None
    if record.spec.objective.kind == TIME:
        reached = interpolated_time(record, points, baseline_value=baseline_value)
        if is_failed or reached is None:
            unseen_s = max(record.ledger.get(OTHER, 0.0), 0.0) if is_failed else 0.0
            anew_s = record.ledger.get("setup", 0.0) + record.ledger.get("compile", 0.0)
            return Replicate(record.ledger["train"] + unseen_s + anew_s, is_hit=False)
        return Replicate(max(reached.seconds, MIN_SECONDS), is_hit=True)
    if is_failed or record.best_value is None:
        return Replicate(0.0, is_hit=False)
    return Replicate(-record.spec.objective.judged_by.sign * record.best_value, is_hit=True)


def held_per_trained(runs: Iterable[RunRecord]) -> float:
    """Return billed worker-seconds over those of training: start-up, set-up, compilation and
    evaluation count too, the queue does not."""
    phases = [phase for phase in (*PHASES, OTHER) if phase != "queue"]
    held = trained = 0.0
    for run in runs:
        held += run.spec.num_workers * sum(run.ledger.get(phase, 0.0) for phase in phases)
        trained += run.spec.num_workers * run.ledger["train"]
    return held / trained if trained else 1.0


ENERGY: Final = "energy"
"""The price of a study whose cheapest is what draws the fewest joules."""


def price_by(price: object, runs: Iterable[RunRecord]) -> object:
    """Return the price of a study; None where it is energy and a run that reached the target does
    not know its own."""
    if price != ENERGY:
        return price
    hits = [run.energy_j for run in runs if run.time_to_target_s is not None]
    return None if None in hits else price


def cost_per_s(price: object, num_workers: int, runs: Sequence[RunRecord]) -> float:
    """Return the cost of a second of training, by these runs of a configuration: its workers, with
    a price the workers that are held and billed, by energy the watts; `price`: of `price_by`."""
    if price is None:
        return num_workers
    if price != ENERGY:
        return num_workers * held_per_trained(runs)
    watts = [run.energy_j / run.ledger["train"] for run in runs if run.energy_j is not None]
    return statistics.median(watts) if watts else float(num_workers)


def first_trial(runs: Iterable[RunRecord]) -> str | None:
    """Return the trial that a study began with, whose own run had a cold start and is not used: the
    one with the least number, or the reference run that counts as one; None without any."""
    names = (one.trial for one in runs if one.role == "trial")
    return min(names, key=lambda name: (name.isdigit(), len(name), name), default=None)


Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""(candidates, new runs of each), ..."""
MOST = 200
"""New runs of a race at most."""


REVERSAL = 1.0
"""Standard errors by which another has to be ahead of the race's first that never missed alone."""


@dataclass(frozen=True)
class Candidate:
    """A configuration of the race, by its trial in the search."""

    name: str
    own: Replicate | None
    """The search's own run; None where it does not count: the first trial has a cold start."""
    cost: float
    """Of a second of training: see `cost_per_s`."""


@dataclass(frozen=True)
class Run:
    """A run that is to be done."""

    name: str
    round: int
    """From 0; the same seed for every candidate."""


Learned = Mapping[tuple[str, int], Replicate]
"""New runs by candidate and round, in seconds (never worker-seconds)."""


def stages(number: int) -> Stages:
    """Return the stages of a race of `number` new runs; () for 0.

    Half of the runs go to as many candidates, a quarter to the better half of them, what is left
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
    candidate: Candidate, new: Mapping[int, Replicate], *, axis: Axis, rounds: int | None = None
) -> list[Replicate]:
    """Return a candidate's own run and its `new` ones (of the first `rounds`), by round."""
    found = [] if candidate.own is None else [candidate.own]
    found += [new[number] for number in sorted(new) if rounds is None or number < rounds]
    return on_axis(found, candidate.cost, axis)


def on_axis(repeats: Sequence[Replicate], cost: float, axis: Axis) -> list[Replicate]:
    """Return runs in the unit of an axis; `cost`: worker-seconds per second of training."""
    factor = cost if axis == "worker_seconds" else 1
    return [repeat.times(factor) for repeat in repeats] if factor != 1 else list(repeats)


def best_first(
    raced: Mapping[str, Sequence[Replicate]],
    alone: Mapping[str, Sequence[Replicate]],
    *,
    is_timed: bool = True,
) -> dict[str, Sequence[Replicate]]:
    """Return configurations and the runs that they are judged by, best first: in the order of the
    race and by its runs, unless runs alone overrule its first.

    `alone` are the runs alone of those that had any. Then all runs decide: another that is ahead by
    these takes its place if it ran alone too, or the first has missed alone, or lies behind by more
    than REVERSAL standard errors. In `benchmarks/search/race.py` that moves the printed time by
    -1.8 % at sigma 0.3 and by -6.4 % at sigma 0.5.
    """
    order = ranked(raced, pooled(raced.values(), is_timed=is_timed))
    by_race = {name: raced[name] for name in order}
    first = order[0] if order else ""
    if not alone.get(first):
        return by_race
    every = {name: [*raced[name], *alone.get(name, ())] for name in order}
    noise = pooled(every.values(), is_timed=is_timed)
    has_missed = not all(repeat.is_hit for repeat in alone[first])
    for name in ranked(every, noise):
        if name == first:
            break
        pair = every[name], every[first]
        is_ahead = has_missed or alone.get(name)
        if is_ahead or is_apart(*pair, noise, errors=REVERSAL):
            return {one: every[one] for one in (name, *(one for one in order if one != name))}
    return by_race


def undecided(
    raced: Mapping[str, Sequence[Replicate]],
    alone: Mapping[str, Sequence[Replicate]] = MappingProxyType({}),
    *,
    is_timed: bool = True,
) -> list[str]:
    """Return which may be the best: the first (`best_first`), and what is statistically tied with
    it, by the noise of the race. A candidate without runs yet is not excluded."""
    noise = pooled(raced.values(), is_timed=is_timed)
    groups = best_first(raced, alone, is_timed=is_timed)
    best = next(iter(groups.values()), ())
    return [name for name, runs in groups.items() if not runs or not is_apart(best, runs, noise)]


def next_to_run(
    raced: Mapping[str, Sequence[Replicate]],
    alone: Mapping[str, Sequence[Replicate]],
    *,
    is_timed: bool = True,
) -> list[str]:
    """Return the undecided with the fewest runs of the race, best first; [] when one is left."""
    found = undecided(raced, alone, is_timed=is_timed)
    fewest = min((len(raced[name]) for name in found), default=0)
    return [name for name in found if len(raced[name]) == fewest] if len(found) > 1 else []


def more(
    candidates: Sequence[Candidate],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    is_timed: bool = True,
    alone: Mapping[str, Sequence[Replicate]] = MappingProxyType({}),
) -> list[Run]:
    """Return the next runs, at most `number`, that distinguish undecided candidates, by the runs
    that a verdict judges by: `alone` are those alone, in seconds.

    One of each of those with the fewest runs, best first; ask again when they are learned. [] when
    one is left.
    """
    new = {
        one.name: {done: run for (name, done), run in learned.items() if name == one.name}
        for one in candidates
    }
    groups = {one.name: group_of(one, new[one.name], axis=axis) for one in candidates}
    others = {one.name: on_axis(alone.get(one.name, ()), one.cost, axis) for one in candidates}
    return [
        Run(name, min(set(range(len(new[name]) + 1)) - set(new[name])))
        for name in next_to_run(groups, others, is_timed=is_timed)[:number]
    ]
