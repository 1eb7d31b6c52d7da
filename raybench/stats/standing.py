"""Compare configurations by their recorded runs, and choose which configurations to run again.

A run is seen to reach the target only at its next evaluation, on average half an interval late. The
delay is 6, 16, 24 and 34 % of the time to target for an evaluation interval of 0.1, 0.3, 0.5 and
0.8 times that time. Linear interpolation between the evaluations before and after keeps the error
below 4 %; for short intervals, it would only add the noise of the two values.
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
"""Evaluation interval, as a fraction of the time to target, above which times are interpolated."""
TIME_TOLERANCE = 1e-9
"""Relative tolerance for comparing times read from a file."""


@dataclass(frozen=True)
class TimeToTarget:
    """Time at which a run reached its target."""

    seconds: float
    """Training seconds, as recorded or interpolated."""
    is_interpolated: bool
    """Whether `seconds` was interpolated between two evaluations."""


def interpolated_time(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> TimeToTarget | None:
    """Return the time at which a run reached its target; None if it never reached (and held) it.

    The time is where the line between the last two evaluations crosses the target. If their
    interval is short, it is the recorded time.

    Args:
        record: The run.
        points: Evaluations of the run in order. If the evaluation before the one that reached the
            target is missing or not finite, the recorded time is returned.
        baseline_value: Metric value before training, if the objective has none; used when the first
            evaluation already reached the target.
    """
    reached_s, objective = record.time_to_target_s, record.spec.objective
    if reached_s is None:
        return None
    raw = TimeToTarget(reached_s, is_interpolated=False)
    if objective.kind != TIME or objective.target is None:
        return raw
    index = bisect_left(points, reached_s * (1 - TIME_TOLERANCE), key=attrgetter("train_s"))
    if index == len(points) or not math.isclose(
        points[index].train_s, reached_s, rel_tol=TIME_TOLERANCE
    ):
        return raw
    point, before_s, value_before = points[index], 0.0, objective.baseline_value
    if value_before is None:
        value_before = baseline_value
    if point.index > 0:
        if index == 0 or points[index - 1].index != point.index - 1:
            return raw
        before_s, value_before = points[index - 1].train_s, points[index - 1].value
    period = reached_s - before_s
    if value_before is None or period <= LONG_PERIOD * reached_s:
        return raw
    change, missing = point.value - value_before, objective.target - value_before
    if not math.isfinite(change) or change * missing <= 0:
        return raw
    return TimeToTarget(before_s + period * min(missing / change, 1.0), is_interpolated=True)


def replicate_of(
    record: RunRecord, points: Sequence[Evaluation], *, baseline_value: float | None = None
) -> Replicate:
    """Return a run record as a `Replicate`; for the arguments see `interpolated_time`.

    `seconds` is one of:

    - for a run that reached the target, its training seconds to the target;
    - for a run that missed it, all its training seconds (after a crash, also the time since the
      last evaluation) plus setup and compilation, which a new run would repeat;
    - with `best_at_budget`, the best metric value, negated if larger is better.
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
    """Return the ratio of billed worker-seconds (all phases but `queue`) to training
    worker-seconds."""
    phases = [phase for phase in (*PHASES, OTHER) if phase != "queue"]
    billed_s = trained_s = 0.0
    for run in runs:
        billed_s += run.spec.num_workers * sum(run.ledger.get(phase, 0.0) for phase in phases)
        trained_s += run.spec.num_workers * run.ledger["train"]
    return billed_s / trained_s if trained_s else 1.0


def cost_per_s(price: float | None, num_workers: int, runs: Sequence[RunRecord]) -> float:
    """Return the cost of one second of training: the number of workers, multiplied by the ratio of
    billed to training seconds of `runs` if there is a price."""
    return num_workers * (1.0 if price is None else held_per_trained(runs))


def first_trial(runs: Iterable[RunRecord]) -> str | None:
    """Return the name of a study's first trial, which had a cold start and is not compared.

    This is a reference run with the role `trial` if there is one, else the trial with the lowest
    number; None without trials.
    """
    names = (run.trial for run in runs if run.role == "trial")
    return min(names, key=lambda name: (name.isdigit(), len(name), name), default=None)


Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""For each stage of a race: (number of candidates, new runs per candidate)."""
MOST_RACE_RUNS = 200
"""Maximum number of new runs in a race."""
REVERSAL_ERRORS = 1.0
"""Number of standard errors by which a configuration must lead to overrule the race's winner."""


@dataclass(frozen=True)
class Candidate:
    """A configuration in the race (repeated runs of the best trials)."""

    name: str
    search_run: Replicate | None
    """Run of the configuration in the search; None if excluded (cold start, or stopped early)."""
    cost: float
    """Cost of a second of training, as returned by `cost_per_s`."""


@dataclass(frozen=True)
class RaceRun:
    """A run of a candidate in the race."""

    name: str
    round: int
    """Round, from 0; all candidates use the same seed in a round."""


Learned = Mapping[tuple[str, int], Replicate]
"""New runs by candidate and round, in seconds (never worker-seconds)."""


def stages(number: int) -> Stages:
    """Return the stages of a race of `number` new runs; () for 0.

    Successive halving: number // 2 candidates run once, the better half of them once more, and the
    best number // 8 (at least 2) share the remaining runs. 24 runs give ((12, 1), (6, 1), (3, 2)).
    """
    if not 0 <= number <= MOST_RACE_RUNS:
        raise ValueError(f"a race has 0 to {MOST_RACE_RUNS} new runs, not {number}")
    if number < 4:
        return ((number, 1),) if number else ()
    first, last = number // 2, max(2, number // 8)
    second = max(last, number // 4)
    remaining, rounds = number - first - second, (number - first - second) // last
    second += remaining - rounds * last if rounds else remaining  # the remainder
    first, second = max(first, second), min(first, second)
    return tuple((count, runs) for count, runs in ((first, 1), (second, 1), (last, rounds)) if runs)


@dataclass(frozen=True)
class ConfigurationRuns:
    """Runs of one configuration, in seconds or worker-seconds (`Axis`)."""

    search_run: Replicate | None = None
    """Its run in the search; None if excluded."""
    rounds: Mapping[int, Replicate] = field(default_factory=dict)
    """New runs by round; all configurations use the same seed in a round."""
    alone: Sequence[Replicate] = ()
    """Solo runs (nothing else on the machine), which may overrule the race: see `best_first`."""

    def runs(self, rounds: int | None = None, *, with_alone: bool = False) -> list[Replicate]:
        """Return the run of the search, the race runs of the first `rounds` rounds (None: all), and
        with `with_alone` the solo runs."""
        runs = [] if self.search_run is None else [self.search_run]
        runs += [
            self.rounds[number]
            for number in sorted(self.rounds)
            if rounds is None or number < rounds
        ]
        return [*runs, *self.alone] if with_alone else runs

    def times(self, factor: float) -> "ConfigurationRuns":
        """Return the same runs with seconds multiplied by `factor`."""
        search_run = None if self.search_run is None else self.search_run.times(factor)
        rounds = {number: run.times(factor) for number, run in self.rounds.items()}
        return ConfigurationRuns(search_run, rounds, [run.times(factor) for run in self.alone])


def group_of(
    candidate: Candidate,
    new: Mapping[int, Replicate],
    *,
    axis: Axis,
    alone: Sequence[Replicate] = (),
) -> ConfigurationRuns:
    """Return a candidate's runs in the unit of `axis`; `new` (by round) and `alone` are in
    seconds."""
    group = ConfigurationRuns(candidate.search_run, new, alone)
    return group.times(candidate.cost) if axis == "worker_seconds" else group


def best_first(
    groups: Mapping[str, ConfigurationRuns], *, is_timed: bool = True
) -> tuple[list[str], bool]:
    """Return configuration names, best first, and whether solo runs overruled the race.

    The race decides the order, unless its winner has solo runs (alone on the machine) and another
    configuration leads when all runs count. The latter then wins in each of these cases:

    - It has solo runs too.
    - A solo run of the race winner missed the target.
    - It leads by more than REVERSAL_ERRORS standard errors.

    In the simulations of `benchmarks/search/race.py`, this lowers the reported time by 1.8 % at
    sigma 0.3 and by 6.4 % at sigma 0.5.
    """
    raced = {name: group.runs() for name, group in groups.items()}
    order = ranked(raced, pooled(raced.values(), is_timed=is_timed))
    first = order[0] if order else ""
    if not order or not groups[first].alone:
        return order, False
    all_runs = {name: groups[name].runs(with_alone=True) for name in order}
    noise = pooled(all_runs.values(), is_timed=is_timed)
    has_missed = not all(repeat.is_hit for repeat in groups[first].alone)
    for name in ranked(all_runs, noise):
        if name == first:
            break
        is_ahead = has_missed or groups[name].alone
        if is_ahead or is_apart(all_runs[name], all_runs[first], noise, errors=REVERSAL_ERRORS):
            return [name, *(other for other in order if other != name)], True
    return order, False


TESTED_ROUNDS = 4
"""Number of rounds that the test after the race uses. This test spends half of the error rate; the
sequential test of `--more` spends the other half."""
MORE_ALPHA = 0.025
"""One-sided error rate of the sequential test."""
SMALLEST = 0.05
"""Equivalence margin (relative): `--more` ends when every difference is significant or shown to be
smaller."""


@dataclass(frozen=True)
class Ties:
    """Configurations that are statistically tied with the best of several."""

    repeated: tuple[str, ...] = ()
    """Configurations that ran twice or more, best first."""
    once: tuple[str, ...] = ()
    """Configurations that ran once, or only in the search, and are not significantly worse."""
    undecided: tuple[str, ...] = ()
    """Repeated configurations (without the best) that are neither significantly worse nor shown to
    be equivalent within SMALLEST; more runs may decide."""


def ties_of(
    groups: Mapping[str, ConfigurationRuns],
    once: Mapping[str, ConfigurationRuns] = MappingProxyType({}),
    *,
    is_timed: bool = True,
) -> Ties:
    """Return the configurations that are statistically tied with the best of `groups`.

    Configurations in `once`, which ran only in the search, are listed separately, because they are
    selection-biased. A configuration none of whose runs count stays undecided.
    """
    order, is_overruled = best_first(groups, is_timed=is_timed)
    if not order:
        return Ties()
    judged = {name: groups[name].runs(TESTED_ROUNDS, with_alone=is_overruled) for name in order}
    judged |= {name: group.runs() for name, group in once.items()}
    noise, best = pooled(judged.values(), is_timed=is_timed), groups[order[0]]
    outcomes = {name: _pair_outcome(best, groups[name], is_timed=is_timed) for name in order[1:]}
    near = [
        name
        for name, runs in judged.items()
        if not (runs and is_apart(judged[order[0]], runs, noise)) and outcomes.get(name) != "worse"
    ]
    runs = {name: len({**once, **groups}[name].runs()) for name in near}
    return Ties(
        repeated=tuple(
            name for name in near if name == order[0] or (name not in once and runs[name] > 1)
        ),
        once=tuple(name for name in near[1:] if name in once or runs[name] == 1),
        undecided=tuple(name for name in near[1:] if outcomes.get(name, "same") != "same"),
    )


def _pair_outcome(
    best: ConfigurationRuns, other: ConfigurationRuns, *, is_timed: bool
) -> PairOutcome:
    """Return the outcome of the sequential test of `other` against `best`, paired by round (same
    seed)."""
    common = [
        (best.rounds[number], other.rounds[number])
        for number in best.rounds
        if number in other.rounds
    ]
    differences = [difference(*pair, is_timed=is_timed) for pair in common]
    valid = [value for value in differences if not math.isnan(value)]
    unit = 1.0 if is_timed else abs(score(best.runs(), is_timed=False))
    smallest = -math.log1p(-SMALLEST) if is_timed else SMALLEST * unit
    return outcome_of(valid, smallest=smallest, errors=MORE_ALPHA)


def difference(first: Replicate, other: Replicate, *, is_timed: bool) -> float:
    """Return by how much `other` is better than `first`: log ratio of seconds, or difference of
    metric values.

    Infinite if one of the two missed, NaN if both did.
    """
    if first.is_hit != other.is_hit:
        return math.inf if other.is_hit else -math.inf
    if not first.is_hit:
        return math.nan
    return math.log(first.seconds / other.seconds) if is_timed else first.seconds - other.seconds


def runs_to_decide(
    candidates: Sequence[Candidate],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    is_timed: bool = True,
    alone: Mapping[str, Sequence[Replicate]] = MappingProxyType({}),
) -> list[RaceRun]:
    """Return the next runs to distinguish undecided candidates; [] when nothing is left to decide.

    Of the best and the undecided candidates, those with the fewest new runs get one each, best
    candidate first.

    Args:
        candidates: The candidates.
        learned: New runs so far, in seconds.
        number: Largest number of runs to return.
        axis: Seconds or worker-seconds.
        is_timed: True to compare seconds, False to compare metric values.
        alone: Solo runs by candidate, in seconds.
    """
    new = {
        candidate.name: {
            done: run for (name, done), run in learned.items() if name == candidate.name
        }
        for candidate in candidates
    }
    groups = {
        candidate.name: group_of(
            candidate, new[candidate.name], axis=axis, alone=alone.get(candidate.name, ())
        )
        for candidate in candidates
    }
    ties = ties_of(groups, is_timed=is_timed)
    if not ties.undecided:
        return []
    due = [ties.repeated[0], *ties.undecided]
    fewest = min(len(new[name]) for name in due)
    return [
        RaceRun(name, min(set(range(fewest + 1)) - set(new[name])))
        for name in [candidate for candidate in due if len(new[candidate]) == fewest][:number]
    ]
