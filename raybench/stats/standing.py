"""How recorded runs are compared, and which configurations run again; used by race and results.

A run is known to be at the target only at its next evaluation, half a period too late on average:
6, 16, 24 and 34 % of the time to target for periods of 0.1, 0.3, 0.5 and 0.8 of it. Interpolating
linearly between the evaluations before and after keeps the error below 4 %; for short periods that
would only add the noise of the two values.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Literal

from raybench.spec.objective import MIN_SECONDS, TIME
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import Evaluation, RunRecord
from raybench.stats.replicates import Replicate, is_apart, pooled, ranked, score
from raybench.stats.sequential import PairOutcome, outcome_of

LONG_PERIOD = 0.25
"""Evaluation period, as a share of the time to target, above which times are interpolated."""
NEAR = 1e-9
"""Relative tolerance of times that were written and read."""


@dataclass(frozen=True)
class TimeToTarget:
    """Time at which a run reached its target."""

    seconds: float
    """Training seconds: recorded, or interpolated to an earlier time."""
    is_interpolated: bool
    """Whether it lies between two evaluations."""


def interpolated_time(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> TimeToTarget | None:
    """Return the time at which a run reached its target; None if it never reached (and held) it.

    Args:
        record: The run.
        points: Its evaluations in order. If the one before the target is missing or not finite, the
            recorded time is returned.
        baseline_value: Value at 0 s if the objective has none, to interpolate a first evaluation.
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
    """Return the time at which the line between two evaluations crosses the target.

    If the value before is not known or the period is short, the time of the later one.
    """
    raw = TimeToTarget(reached_s, is_interpolated=False)
    period = reached_s - before_s
    if before is None or period <= LONG_PERIOD * reached_s:
        return raw
    way, rest = value - before, target - before
    if not math.isfinite(way) or way * rest <= 0:
        return raw
    return TimeToTarget(before_s + period * min(rest / way, 1.0), is_interpolated=True)


def replicate_of(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> Replicate:
    """Return a run as a replicate of its configuration; arguments: see `interpolated_time`.

    A hit counts with its train seconds to the target. A miss counts with all its training (a crash
    also with the time since its last evaluation) plus set-up and compilation of the next run, so
    that diverging at once is not free. With best_at_budget the best value, negated if more is
    better.
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
    """Return the ratio of billed worker-seconds (all but the queue) to those of training."""
    phases = [phase for phase in (*PHASES, OTHER) if phase != "queue"]
    held = trained = 0.0
    for run in runs:
        held += run.spec.num_workers * sum(run.ledger.get(phase, 0.0) for phase in phases)
        trained += run.spec.num_workers * run.ledger["train"]
    return held / trained if trained else 1.0


def cost_per_s(price: float | None, num_workers: int, runs: Sequence[RunRecord]) -> float:
    """Return the cost of a second of training: the number of workers, times the ratio of billed to
    training seconds of these runs if there is a price."""
    return num_workers * (1.0 if price is None else held_per_trained(runs))


def first_trial(runs: Iterable[RunRecord]) -> str | None:
    """Return the first trial of a study, whose own run had a cold start and is not compared.

    The trial with the least number, or a reference run that counts as a trial; None without trials.
    """
    names = (one.trial for one in runs if one.role == "trial")
    return min(names, key=lambda name: (name.isdigit(), len(name), name), default=None)


Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""(candidates, new runs of each), ..."""
MOST = 200
"""Most new runs of a race."""
REVERSAL = 1.0
"""Standard errors by which another configuration must lead to overrule the winner of the race."""


@dataclass(frozen=True)
class Candidate:
    """A configuration of the race."""

    name: str
    own: Replicate | None
    """The search's own run; None if it does not count (cold start)."""
    cost: float
    """Cost of a second of training: see `cost_per_s`."""


@dataclass(frozen=True)
class RaceRun:
    """A run of the race."""

    name: str
    round: int
    """Round, from 0: the same seed for every candidate."""


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


@dataclass(frozen=True)
class ConfigurationRuns:
    """Runs of a configuration, in the unit of an axis."""

    own: Replicate | None = None
    """The search's own run; None if it does not count."""
    rounds: Mapping[int, Replicate] = field(default_factory=dict)
    """New runs by round: a round has the same seed for every configuration."""
    alone: Sequence[Replicate] = ()
    """Runs alone, which may overrule the rounds."""

    def runs(self, rounds: int | None = None, *, with_alone: bool = False) -> list[Replicate]:
        """Return the own run, those of the first `rounds` (or all), and those alone if asked."""
        found = [] if self.own is None else [self.own]
        found += [self.rounds[at] for at in sorted(self.rounds) if rounds is None or at < rounds]
        return [*found, *self.alone] if with_alone else found

    def times(self, factor: float) -> "ConfigurationRuns":
        """Return the same runs in another unit."""
        own = None if self.own is None else self.own.times(factor)
        rounds = {at: run.times(factor) for at, run in self.rounds.items()}
        return ConfigurationRuns(own, rounds, [run.times(factor) for run in self.alone])


def group_of(
    candidate: Candidate,
    new: Mapping[int, Replicate],
    *,
    axis: Axis,
    alone: Sequence[Replicate] = (),
) -> ConfigurationRuns:
    """Return a candidate's runs on an axis; `new` ones by round, and those `alone`, in seconds."""
    group = ConfigurationRuns(candidate.own, new, alone)
    return group.times(candidate.cost) if axis == "worker_seconds" else group


def best_first(
    groups: Mapping[str, ConfigurationRuns], *, is_timed: bool = True
) -> tuple[list[str], bool]:
    """Return configurations, best first, and whether runs alone overruled the race.

    The order is that of the race, unless its winner ran alone and another configuration leads by
    all runs: that one wins if it ran alone too, if the winner missed alone, or if it leads by more
    than REVERSAL standard errors. In `benchmarks/search/race.py` that changes the printed time by
    -1.8 % at sigma 0.3 and by -6.4 % at sigma 0.5.
    """
    raced = {name: group.runs() for name, group in groups.items()}
    order = ranked(raced, pooled(raced.values(), is_timed=is_timed))
    first = order[0] if order else ""
    if not order or not groups[first].alone:
        return order, False
    every = {name: groups[name].runs(with_alone=True) for name in order}
    noise = pooled(every.values(), is_timed=is_timed)
    has_missed = not all(repeat.is_hit for repeat in groups[first].alone)
    for name in ranked(every, noise):
        if name == first:
            break
        is_ahead = has_missed or groups[name].alone
        if is_ahead or is_apart(every[name], every[first], noise, errors=REVERSAL):
            return [name, *(one for one in order if one != name)], True
    return order, False


TESTED_ROUNDS = 4
"""Rounds of a race that are tested once, with half of the error rate; `--more` continues after them
with a sequential test, with the other half."""
MORE_ERRORS = 0.025
"""Error rate of the sequential test on each side."""
SMALLEST = 0.05
"""Least relative difference that matters: `--more` ends when none is left."""


@dataclass(frozen=True)
class Ties:
    """Configurations that are statistically tied with the best of several."""

    repeated: tuple[str, ...] = ()
    """Configurations that ran twice or more, best first."""
    once: tuple[str, ...] = ()
    """Configurations that ran once and are not significantly slower."""
    undecided: tuple[str, ...] = ()
    """Repeated ones other than the best that are neither significantly worse nor shown to differ by
    less than SMALLEST: more runs may decide."""


def ties_of(
    groups: Mapping[str, ConfigurationRuns],
    once: Mapping[str, ConfigurationRuns] = MappingProxyType({}),
    *,
    is_timed: bool = True,
) -> Ties:
    """Return the configurations that are statistically tied with the best of `groups`.

    Those of `once`, which only ran in the search, are listed separately: they are selection-biased.
    A configuration without runs is not excluded.
    """
    order, is_overruled = best_first(groups, is_timed=is_timed)
    if not order:
        return Ties()
    judged = {name: groups[name].runs(TESTED_ROUNDS, with_alone=is_overruled) for name in order}
    judged |= {name: group.runs() for name, group in once.items()}
    noise, first = pooled(judged.values(), is_timed=is_timed), groups[order[0]]
    shown = {name: _shown(first, groups[name], is_timed=is_timed) for name in order[1:]}
    near = [
        name
        for name, runs in judged.items()
        if not (runs and is_apart(judged[order[0]], runs, noise)) and shown.get(name) != "worse"
    ]
    runs = {name: len({**once, **groups}[name].runs()) for name in near}
    return Ties(
        repeated=tuple(name for name in near if name == order[0] or runs[name] > 1),
        once=tuple(name for name in near[1:] if runs[name] == 1),
        undecided=tuple(name for name in near[1:] if shown.get(name, "same") != "same"),
    )


def _shown(first: ConfigurationRuns, other: ConfigurationRuns, *, is_timed: bool) -> PairOutcome:
    """Return the outcome of the sequential test of `other` against `first` by common rounds."""
    common = [(first.rounds[at], other.rounds[at]) for at in first.rounds if at in other.rounds]
    found = [difference(*pair, is_timed=is_timed) for pair in common]
    known = [one for one in found if not math.isnan(one)]
    unit = 1.0 if is_timed else abs(score(first.runs(), is_timed=False))
    smallest = -math.log1p(-SMALLEST) if is_timed else SMALLEST * unit
    return outcome_of(known, smallest=smallest, errors=MORE_ERRORS)


def difference(one: Replicate, other: Replicate, *, is_timed: bool) -> float:
    """Return by how much `other` is better: log ratio of seconds, or difference of values.

    Infinite if one of the two missed, NaN if both did.
    """
    if one.is_hit != other.is_hit:
        return math.inf if other.is_hit else -math.inf
    if not one.is_hit:
        return math.nan
    return math.log(one.seconds / other.seconds) if is_timed else one.seconds - other.seconds


def next_to_run(groups: Mapping[str, ConfigurationRuns], *, is_timed: bool = True) -> list[str]:
    """Return the undecided configurations with the fewest new runs, best first; [] if none."""
    ties = ties_of(groups, is_timed=is_timed)
    if not ties.undecided:
        return []
    found = ties.repeated[0], *ties.undecided
    fewest = min(len(groups[name].rounds) for name in found)
    return [name for name in found if len(groups[name].rounds) == fewest]


def more(
    candidates: Sequence[Candidate],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    is_timed: bool = True,
    alone: Mapping[str, Sequence[Replicate]] = MappingProxyType({}),
) -> list[RaceRun]:
    """Return the next runs to distinguish undecided candidates; [] when nothing is left to decide.

    Args:
        candidates: The candidates.
        learned: New runs so far, in seconds.
        number: Most runs to return; one for each of the candidates with the fewest runs.
        axis: Seconds or worker-seconds.
        is_timed: Whether runs are compared by seconds, not by values.
        alone: Runs alone by candidate, in seconds.
    """
    new = {
        one.name: {done: run for (name, done), run in learned.items() if name == one.name}
        for one in candidates
    }
    groups = {
        one.name: group_of(one, new[one.name], axis=axis, alone=alone.get(one.name, ()))
        for one in candidates
    }
    return [
        RaceRun(name, min(set(range(len(new[name]) + 1)) - set(new[name])))
        for name in next_to_run(groups, is_timed=is_timed)[:number]
    ]
