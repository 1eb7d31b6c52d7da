"""Comparison of configurations by their recorded runs, and the choice of configurations to run
again.

A run that reaches the target is noticed only at its next evaluation, on average half an evaluation
interval late. If the interval is 0.1, 0.3, 0.5 or 0.8 of the time to target, the delay is 6, 16, 24
or 34 % of that time. Linear interpolation between the last evaluation below the target and the
first that reached it keeps the error below 4 %. For short intervals, interpolation would only add
the noise of the two metric values.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Literal

from raybench.spec.objective import MIN_SECONDS, TIME
from raybench.spec.study import MOST_RACE_RUNS
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import Evaluation, Role, RunRecord
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
    """Return the time at which a run reached its target; None if the run did not reach it.

    The time is interpolated linearly between the evaluation that reached the target and the
    evaluation before. If the interval between them is at most LONG_PERIOD of the time to target,
    the recorded time is returned.

    Args:
        record: The run.
        points: Evaluations of the run in order. If the evaluation before the one that reached the
            target is missing or not finite, the recorded time is returned.
        baseline_value: Metric value before training, if the objective does not set it; used if the
            first evaluation already reached the target.
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
    """Convert a run record to a `Replicate`; for the arguments see `interpolated_time`.

    The field `seconds` of the result is

    - for a run that reached the target: its training seconds to the target;
    - for a run that missed the target or failed: its training seconds plus the seconds of setup and
      compilation, which a new run would repeat, and after a failure also the seconds that no phase
      accounts for (`OTHER`);
    - with `best_at_budget`: the best metric value, negated if larger values are better.
    """
    is_failed = record.failure is not None
    if record.spec.objective.kind == TIME:
        reached = interpolated_time(record, points, baseline_value=baseline_value)
        if is_failed or reached is None:
            unrecorded_s = max(record.ledger.get(OTHER, 0.0), 0.0) if is_failed else 0.0
            startup_s = record.ledger.get("setup", 0.0) + record.ledger.get("compile", 0.0)
            return Replicate(record.ledger["train"] + unrecorded_s + startup_s, is_hit=False)
        return Replicate(max(reached.seconds, MIN_SECONDS), is_hit=True)
    if is_failed or record.best_value is None:
        return Replicate(0.0, is_hit=False, is_timed=False)
    value = -record.spec.objective.judged_by.sign * record.best_value
    return Replicate(value, is_hit=True, is_timed=False)


def billing_ratio(runs: Iterable[RunRecord]) -> float:
    """Return the ratio of billed to training worker-seconds of several runs; 1 if no run trained.

    All phases except `queue` are billed, since a run occupies its workers in these phases.
    """
    phases = [phase for phase in (*PHASES, OTHER) if phase != "queue"]
    billed_s = trained_s = 0.0
    for run in runs:
        billed_s += run.spec.num_workers * sum(run.ledger.get(phase, 0.0) for phase in phases)
        trained_s += run.spec.num_workers * run.ledger["train"]
    return billed_s / trained_s if trained_s else 1.0


def cost_per_s(price: float | None, num_workers: int, runs: Sequence[RunRecord]) -> float:
    """Return the cost of one second of training, in worker-seconds.

    Args:
        price: Price of a worker-hour; None if the study does not set it.
        num_workers: Number of workers of the configuration, which is the cost if there is no price.
            With a price, the cost is this number times the ratio of billed to training seconds.
        runs: Runs from which this ratio is computed.
    """
    return num_workers * (1.0 if price is None else billing_ratio(runs))


def first_trial(runs: Iterable[RunRecord]) -> str | None:
    """Return the name of a study's first trial; None if there are no trials.

    The first trial is not compared with others, because it included a cold start. It is the
    reference run with the role `trial` if there is one, else the trial with the lowest number.
    """
    names = (run.trial for run in runs if run.role == Role.TRIAL)
    return min(names, key=lambda name: (name.isdigit(), len(name), name), default=None)


Axis = Literal["seconds", "worker_seconds"]
Stages = tuple[tuple[int, int], ...]
"""Plan of a race (parallel confirmation runs of the best trials with new seeds). Each stage is a
pair (number of candidates, number of new runs per candidate)."""
REVERSAL_ERRORS = 1.0
"""Number of standard errors by which another configuration must lead to replace the winner of the
race."""


@dataclass(frozen=True)
class Candidate:
    """A configuration that takes part in the race (parallel runs with new seeds)."""

    name: str
    search_run: Replicate | None
    """Run of the configuration in the search; None if that run does not count, because it included
    the cold start or was stopped early."""
    cost: float
    """Cost of a second of training in worker-seconds; see `cost_per_s`."""


@dataclass(frozen=True)
class RaceRun:
    """A run of a candidate in the race that is to be started."""

    name: str
    """Name of the candidate."""
    round: int
    """Number of the round, from 0; all candidates use the same seed in a round."""


Learned = Mapping[tuple[str, int], Replicate]
"""Results of new runs in seconds (never worker-seconds), keyed by (name of candidate, round)."""


def stages(number: int) -> Stages:
    """Return the stages of a race with `number` new runs in total, by successive halving.

    In the first stage, number // 2 candidates run once. In the second stage, about the better half
    of them runs once more. In the last stage, the best number // 8 candidates (at least 2) share
    the remaining runs. For example, 24 runs give ((12, 1), (6, 1), (3, 2)), and 0 runs give ().
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
    """Run of the configuration in the search; None if that run does not count."""
    rounds: Mapping[int, Replicate] = field(default_factory=dict)
    """Runs with new seeds, keyed by round; all configurations use the same seed in a round."""
    alone: Sequence[Replicate] = ()
    """Solo runs (alone on the machine) after the race, which may overrule it: see `best_first`."""

    def runs(self, rounds: int | None = None, *, with_alone: bool = False) -> list[Replicate]:
        """Return the runs of the configuration that count for a comparison.

        Args:
            rounds: Number of rounds whose runs are included, besides the run of the search; None
                for all rounds.
            with_alone: Whether to include the solo runs.
        """
        runs = [] if self.search_run is None else [self.search_run]
        runs += [
            self.rounds[number]
            for number in sorted(self.rounds)
            if rounds is None or number < rounds
        ]
        return [*runs, *self.alone] if with_alone else runs

    def times(self, factor: float) -> "ConfigurationRuns":
        """Return the runs with their seconds multiplied by a factor."""
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
    """Return the runs of a candidate in the unit of an axis.

    Args:
        candidate: The candidate.
        new: Runs with new seeds, in seconds, keyed by round.
        axis: Unit of the result: seconds or worker-seconds.
        alone: Solo runs, in seconds.
    """
    group = ConfigurationRuns(candidate.search_run, new, alone)
    return group.times(candidate.cost) if axis == "worker_seconds" else group


def best_first(groups: Mapping[str, ConfigurationRuns]) -> tuple[list[str], bool]:
    """Return the names of configurations, best first, and whether solo runs overruled the race.

    Normally, the runs of the search and of the race decide the order. Solo runs (alone on the
    machine) may overrule it if the winner of the race has some, and if another configuration leads
    when they are counted too. The other configuration is then the winner in each of these cases:

    - It also has solo runs.
    - A solo run of the race winner missed the target.
    - It leads by more than REVERSAL_ERRORS standard errors.

    In the simulations of `benchmarks/search/race.py`, this lowers the reported time by 1.8 % at
    sigma 0.3 and by 6.4 % at sigma 0.5.
    """
    race_runs = {name: group.runs() for name, group in groups.items()}
    order = ranked(race_runs, pooled(race_runs.values()))
    first = order[0] if order else ""
    if not order or not groups[first].alone:
        return order, False
    all_runs = {name: groups[name].runs(with_alone=True) for name in order}
    noise = pooled(all_runs.values())
    has_missed = not all(repeat.is_hit for repeat in groups[first].alone)
    for name in ranked(all_runs, noise):
        if name == first:
            break
        is_ahead = has_missed or groups[name].alone
        if is_ahead or is_apart(all_runs[name], all_runs[first], noise, errors=REVERSAL_ERRORS):
            return [name, *(other for other in order if other != name)], True
    return order, False


TESTED_ROUNDS = 4
"""Number of rounds whose runs the significance test after the race uses. This test spends half of
the error rate; the sequential test of the option `--more` spends the other half."""
MORE_ALPHA = 0.025
"""One-sided error rate of the sequential test of the option `--more`."""
SMALLEST = 0.05
"""Relative equivalence margin: `--more` ends when each difference is significant or is shown to be
smaller than this margin."""


@dataclass(frozen=True)
class Ties:
    """Configurations that are statistically tied with the best configuration."""

    repeated: tuple[str, ...] = ()
    """Tied configurations with two or more runs, starting with the best configuration."""
    once: tuple[str, ...] = ()
    """Tied configurations that ran only once, or only in the search."""
    undecided: tuple[str, ...] = ()
    """Tied configurations, except the best, for which more runs may help: they are not yet shown to
    be equivalent to the best within the margin SMALLEST."""


def ties_of(
    groups: Mapping[str, ConfigurationRuns],
    once: Mapping[str, ConfigurationRuns] = MappingProxyType({}),
) -> Ties:
    """Return the configurations that are not significantly worse than the best one.

    A configuration in `groups` without a run that counts is undecided.

    Args:
        groups: Runs of the configurations that were trained again with new seeds, keyed by name.
        once: Runs of configurations that ran only in the search, keyed by name. They are listed
            separately, because their results are selection-biased.
    """
    order, is_overruled = best_first(groups)
    if not order:
        return Ties()
    judged = {name: groups[name].runs(TESTED_ROUNDS, with_alone=is_overruled) for name in order}
    judged |= {name: group.runs() for name, group in once.items()}
    noise, best = pooled(judged.values()), groups[order[0]]
    outcomes = {name: _pair_outcome(best, groups[name]) for name in order[1:]}
    tied = [
        name
        for name, runs in judged.items()
        if not (runs and is_apart(judged[order[0]], runs, noise)) and outcomes.get(name) != "worse"
    ]
    runs = {name: len({**once, **groups}[name].runs()) for name in tied}
    return Ties(
        repeated=tuple(
            name for name in tied if name == order[0] or (name not in once and runs[name] > 1)
        ),
        once=tuple(name for name in tied[1:] if name in once or runs[name] == 1),
        undecided=tuple(name for name in tied[1:] if outcomes.get(name, "same") != "same"),
    )


def _pair_outcome(best: ConfigurationRuns, other: ConfigurationRuns) -> PairOutcome:
    """Return the outcome of the sequential test of `other` against `best`.

    The runs of both configurations in the same round, which have the same seed, form a pair.
    """
    common = [
        (best.rounds[number], other.rounds[number])
        for number in best.rounds
        if number in other.rounds
    ]
    differences = [difference(*pair) for pair in common]
    valid = [value for value in differences if not math.isnan(value)]
    is_timed = all(run.is_timed for run in best.runs())
    smallest = -math.log1p(-SMALLEST) if is_timed else SMALLEST * abs(score(best.runs()))
    return outcome_of(valid, smallest=smallest, errors=MORE_ALPHA)


def difference(first: Replicate, other: Replicate) -> float:
    """Return by how much the run `other` is better than the run `first`.

    Returns:
        Log ratio of their seconds, or difference of their metric values; positive if `other` is
        better. If only one of the runs missed the target, it is infinite; if both did, it is NaN.
    """
    if first.is_hit != other.is_hit:
        return math.inf if other.is_hit else -math.inf
    if not first.is_hit:
        return math.nan
    return first.measure - other.measure


def runs_to_decide(
    candidates: Sequence[Candidate],
    learned: Learned,
    number: int,
    *,
    axis: Axis,
    alone: Mapping[str, Sequence[Replicate]] = MappingProxyType({}),
) -> list[RaceRun]:
    """Return the next runs to start in order to decide between tied candidates.

    Among the best candidate and the undecided candidates, each candidate with the fewest new runs
    gets one more run. The list is empty if no candidate is undecided.

    Args:
        candidates: The candidates.
        learned: Results of new runs so far, in seconds.
        number: Maximum number of runs to return.
        axis: Unit of the comparison: seconds or worker-seconds.
        alone: Solo runs in seconds, keyed by name of the candidate.
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
    ties = ties_of(groups)
    if not ties.undecided:
        return []
    due = [ties.repeated[0], *ties.undecided]
    fewest = min(len(new[name]) for name in due)
    return [
        RaceRun(name, min(set(range(fewest + 1)) - set(new[name])))
        for name in [candidate for candidate in due if len(new[candidate]) == fewest][:number]
    ]
