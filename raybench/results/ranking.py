"""Rankings of a study: its runs by score, its confirmed configurations, and both in one table.

Candidates train with new seeds in parallel with other runs (role `race`); the winners then have
solo runs (role `confirm`) with further seeds. The race chooses configurations, since all its runs
have the same conditions, unless the solo runs overrule it (`stats.standing.best_first`). Reported
times come from the solo runs: times from the race are 9 to 14 % too good. Studies without a race
have only solo runs.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.study import Study, once
from raybench.results.trials import interpolated_score, searched_columns
from raybench.spec.metric import Metric
from raybench.spec.objective import BEST_OF_MANY, ONE_SIDED, share_error
from raybench.spec.run import BASE_KEYS
from raybench.stats.record import RunRecord
from raybench.stats.replicates import (
    Noise,
    Replicate,
    expected_running_time,
    interval,
    intervals_of_chosen,
    pooled,
)
from raybench.stats.standing import (
    Axis,
    ConfigurationRuns,
    best_first,
    cost_per_s,
    first_trial,
    replicate_of,
)

CONFIRMATION_ROLES = ("race", "confirm")


@dataclass(frozen=True)
class Repeated:
    """A configuration that was trained again, with its runs."""

    trial: str
    """Trial whose configuration it is."""
    num_workers: int
    cost: float
    """Cost of a second of training: see `cost_per_s`."""
    group: ConfigurationRuns
    """Runs that it is compared by: its search run (unless that was the first of the study) and its
    race runs; without a race its solo runs. Solo runs after a race may overrule it."""
    chosen_runs: tuple[str, ...]
    """Names of the runs that it is chosen by."""
    printed: tuple[Replicate, ...]
    """Runs behind its reported time: the solo runs, or all new runs if no solo run reached the
    target."""
    printed_runs: tuple[str, ...]
    """Their names."""
    is_alone: bool
    """Whether these are solo runs."""

    @property
    def chosen(self) -> list[Replicate]:
        """Runs that it is chosen by."""
        return self.group.runs()

    @property
    def new(self) -> list[Replicate]:
        """Runs with new seeds, without the search run, which is selection-biased."""
        return list(self.group.rounds.values())

    @property
    def hits(self) -> int:
        """Runs of `chosen` that reached the target."""
        return sum(repeat.is_hit for repeat in self.chosen)

    def is_refuted(self, *, is_timed: bool) -> bool:
        """Return whether it has solo runs and none of its new runs reached the target; with
        `best_at_budget`, whether all of them failed."""
        is_enough = self.is_alone or self.group.alone or not is_timed
        return bool(is_enough) and not any(repeat.is_hit for repeat in self.printed)

    def on(self, axis: Axis) -> ConfigurationRuns:
        """Return its runs in the unit of an axis."""
        return self.group.times(self.cost) if axis == "worker_seconds" else self.group


@once
def repeated(results: Study) -> dict[str, Repeated]:
    """Return the repeated configurations by trial, best first (`stats.standing.best_first`)."""
    trials = results.trials
    unranked = set(trials["trial"][trials["unranked"].notna()])
    again: dict[str, list[RunRecord]] = {}
    for record in results.runs.values():
        origin = results.runs.get(record.source or "")
        if record.role not in CONFIRMATION_ROLES or origin is None or record.trial in unranked:
            continue  # without its search run it is unknown what was repeated
        is_alike = record.failure is not None or record.accelerators == origin.accelerators
        if record.counts_for("comparison") and is_alike:
            again.setdefault(origin.trial, []).append(record)
    cold = first_trial(results.runs.values())
    found = {}
    for trial, records in again.items():
        own = results.runs[trial]
        counts = trial != cold and trial not in unranked and own.counts_for("comparison")
        found[trial] = _repeated(results, own, records, counts=counts)
    groups = {trial: one.group for trial, one in found.items()}
    order, _ = best_first(groups, is_timed=results.is_timed)
    return {trial: found[trial] for trial in order}


def repeat(results: Study, trial: str) -> Replicate:
    """Return what a run counts as."""
    points = results.evaluations.get(trial, ())
    return replicate_of(results.runs[trial], points, baseline_value=results.value_at_start)


def cost_of(results: Study, num_workers: int, names: Iterable[str]) -> float:
    """Return the cost of a second of training of a configuration, by the runs of these names: see
    `cost_per_s`."""
    price = results.study["study"].get("price")
    return cost_per_s(price, num_workers, [results.runs[name] for name in names])


def noise_of(found: Mapping[str, Repeated], results: Study) -> Noise:
    """Return the noise pooled over the runs by which configurations are compared."""
    return pooled((one.chosen for one in found.values()), is_timed=results.is_timed)


def _repeated(
    results: Study, own: RunRecord, records: list[RunRecord], *, counts: bool
) -> Repeated:
    """Return a configuration with its new runs; `counts`: whether the search's own run does."""
    race = [one.trial for one in records if one.role == "race"]
    alone = [one.trial for one in records if one.role == "confirm"]
    chosen = [*([own.trial] if counts else []), *race] if race else alone
    is_hit = any(repeat(results, name).is_hit for name in alone)
    printed = alone if is_hit or not race else [*race, *alone]
    rounds = {_round_of(name): repeat(results, name) for name in race or alone}
    group = ConfigurationRuns(
        own=repeat(results, own.trial) if own.trial in chosen else None,
        rounds=dict(sorted(rounds.items())),
        alone=[repeat(results, name) for name in (alone if race else ())],
    )
    return Repeated(
        trial=own.trial,
        num_workers=own.spec.num_workers,
        cost=cost_of(results, own.spec.num_workers, printed),
        group=group,
        chosen_runs=tuple(chosen),
        printed=tuple(repeat(results, name) for name in printed),
        printed_runs=tuple(printed),
        is_alone=printed == alone,
    )


def _round_of(name: str) -> int:
    """Return the round of a run, as `0031-race2` or `0031-confirm2` ends with it."""
    return int(name[len(name.rstrip("0123456789")) :])


@dataclass(frozen=True, kw_only=True)
class ConfigurationResult:
    """Results of a configuration, from its runs with new seeds or from its single search run.

    Seconds are training seconds to the target; NaN if unknown. Intervals are 90 % intervals. Fields
    in the unit of the metric follow `is_interpolated`.
    """

    trial: str
    config: str
    """The configuration in one line."""
    num_workers: int
    runs: int = 1
    """Runs that it is chosen by, with the search's own."""
    hits: int = 0
    """Trials that reached the target; with best_at_budget, those that did not fail."""
    expected_s: float = math.nan
    """Expected running time: seconds of all `runs`, misses included, over `hits`."""
    expected_low_s: float = math.nan
    """Interval of the typical seconds of a run, from the new runs among `runs`, corrected for
    selecting the best of several."""
    expected_high_s: float = math.nan
    new_runs: int = 0
    """Number of runs with new seeds behind the reported numbers; 0 for a single search run."""
    new_hits: int = 0
    is_alone: bool = False
    """True if these are solo runs made after it was chosen, False if they are race runs."""
    median_s: float = math.nan
    """Median of the new runs; a miss counts as infinite."""
    low_s: float = math.nan
    """The fastest of them."""
    high_s: float = math.nan
    interval_low_s: float = math.nan
    """Interval of a run's typical seconds, by the new runs."""
    interval_high_s: float = math.nan
    printed_s: float = math.nan
    """`median_s`; with misses the expected running time of the new runs."""
    worker_seconds_to_target: float = math.nan
    """`num_workers` x `printed_s`."""
    search_s: float = math.nan
    """Seconds of the search's own run."""
    is_interpolated: bool | None = None
    """Whether one of these times is interpolated (`stats.standing`)."""
    median: float = math.nan
    """Median over the new runs; a failed run counts as the worst: accuracy 0, error rate 1,
    infinity for metrics that are not proportions."""
    low: float = math.nan
    high: float = math.nan
    interval_low: float = math.nan
    """Interval with best_at_budget (`with_rows`)."""
    interval_high: float = math.nan
    search: float = math.nan
    """Best value of the search's own run."""
    test: float = math.nan
    """Mean on the test split."""
    test_low: float = math.nan
    test_high: float = math.nan
    every_run: int = 1
    """Number of runs that it was chosen by or that are reported; not a column."""
    every_hit: int = 0

    @property
    def seconds(self) -> float:
        """Printed seconds: of the new runs, or of the search's run if none of them hit."""
        return self.printed_s if self.new_hits else self.search_s

    @property
    def value(self) -> float:
        """Printed value: of the new runs, or of the search's run."""
        return self.median if self.new_runs else self.search

    @property
    def cost(self) -> float:
        """Worker-seconds of training to the target."""
        return self.num_workers * self.seconds


RESULT_FIELDS = [one.name for one in fields(ConfigurationResult)]
CONFIRMED_COLUMNS = RESULT_FIELDS[: RESULT_FIELDS.index("every_run")]
METRIC_COLUMNS = CONFIRMED_COLUMNS[CONFIRMED_COLUMNS.index("median") :]
"""Columns of `confirmed` to which the name of the metric is appended."""


SECONDS_COLUMNS = {name: name for name in ("expected_s", "expected_low_s", "expected_high_s")}
SECONDS_COLUMNS |= {"time_to_target_s": "printed_s", "low_s": "low_s", "high_s": "high_s"}
"""Columns of seconds in `ranking`, and what they are in `confirmed`."""


def ranked(trials: pd.DataFrame, phase: str = "search") -> pd.DataFrame:
    """Return the runs of a phase that did not fail, best score first.

    Runs laid out differently from others of their size are left out (`results.trials`). Runs on
    all models of GPU are included; `kinds` lists the models.
    """
    chosen = trials[(trials["phase"] == phase) & (trials["state"] != "failed")]
    chosen = chosen[chosen["unranked"].isna()]
    return chosen.loc[interpolated_score(chosen).sort_values(kind="stable").index]


def nearest(results: Study, phase: str = "search") -> str | None:
    """Return the run of a phase that came nearest to a target that no run reached.

    None if no run learned anything: no value exceeds that of a constant prediction by more than
    chance allows on that number of rows.
    """
    metric, baseline_value = results.metric, results.value_at_start
    if (known := results.baselines.get("validation")) is not None:
        beyond = known.beyond(metric, BEST_OF_MANY)
        baseline_value = baseline_value if beyond is None else beyond
    for trial in ranked(results.trials, phase)["trial"]:
        value = results.runs[trial].best_value
        if value is not None:
            has_learnt = baseline_value is None or metric.gap(value, baseline_value) > 0
            return str(trial) if has_learnt else None
    return None


def kinds(trials: pd.DataFrame) -> list[str]:
    """Return the GPU models of the search runs ("" without GPUs), starting with the model of the
    best run.

    Runs are compared only within one model.
    """
    return list(dict.fromkeys(kind_of(ranked(trials))))


def kind_of(trials: pd.DataFrame) -> pd.Series:
    """Return the GPU models of every run; "" without GPUs."""
    return trials["accelerators"].fillna("")


@once
def confirmed(results: Study) -> pd.DataFrame:
    """Return one row per repeated configuration, best first.

    Columns: the fields of `ConfigurationResult`; columns of the metric have its name appended,
    `median_accuracy`, `search_accuracy`, `test_accuracy`, ... Studies without a race choose and
    report by the same runs. With `best_at_budget` there are no seconds.

    Order: upper confidence bound of expected_s, so one lucky run does not outrank five good ones
    (`stats.replicates`); with `best_at_budget` the mean value.
    """
    names = {one: f"{one}_{results.metric.name}" for one in METRIC_COLUMNS}
    rows = [asdict(one) for one in confirmed_results(results).values()]
    return pd.DataFrame(rows, columns=CONFIRMED_COLUMNS).rename(columns=names)


@once
def confirmed_results(results: Study) -> dict[str, ConfigurationResult]:
    """Return the configurations that were trained again by trial, best first."""
    found = repeated(results)
    new_and_alone = [runs for one in found.values() for runs in (one.new, one.group.alone)]
    noise = pooled(new_and_alone, is_timed=results.is_timed)
    ends = intervals_of_chosen({trial: one.new for trial, one in found.items()}, noise)
    tested = _tested(results)
    return {
        trial: _result_of(results, one, noise, ends[trial], tested[trial])
        for trial, one in found.items()
    }


def result_of(results: Study, trial: str, *, is_confirmed: bool) -> ConfigurationResult:
    """Return the results of a configuration; unless `is_confirmed`, of its search run only."""
    if is_confirmed:
        return confirmed_results(results)[trial]
    row = results.trials[results.trials["trial"] == trial].iloc[0]
    return ConfigurationResult(
        trial=trial,
        config=row["config"],
        num_workers=int(row["num_workers"]),
        search_s=float(row["crossed_s"]),
        is_interpolated=not pd.isna(row["is_interpolated"]) and bool(row["is_interpolated"]),
        search=float(row[results.metric.best_column]),
    )


Ends = tuple[float, float]
"""Low and high end of a 90 % interval."""


def _result_of(
    results: Study, one: Repeated, noise: Noise, chosen_ends: Ends, tested: Ends
) -> ConfigurationResult:
    """Return the results of a repeated configuration.

    Args:
        results: The study.
        one: Its runs.
        noise: Pooled over all configurations.
        chosen_ends: Interval of the runs that it is chosen by.
        tested: Interval of its value on the test split.
    """
    metric, trials = results.metric, results.trials.set_index("trial")
    printed_ends = chosen_ends
    if one.is_alone and one.group.alone:
        printed_ends = interval(one.printed, noise)
    runs, own = trials.loc[list(one.printed_runs)], trials.loc[[one.trial]].iloc[0]
    every = {*one.chosen_runs, *one.printed_runs}
    found: dict[str, Any] = _values(results, one, runs, printed_ends)
    if results.is_timed:
        found |= _seconds(one, chosen_ends, printed_ends) | {"search_s": own["crossed_s"]}
        found["is_interpolated"] = bool(trials.loc[list(every), "is_interpolated"].eq(True).any())
    return ConfigurationResult(
        trial=one.trial,
        config=own["config"],
        num_workers=one.num_workers,
        runs=len(one.chosen),
        hits=one.hits,
        new_runs=len(one.printed),
        new_hits=sum(run.is_hit for run in one.printed),
        is_alone=one.is_alone,
        search=float(own[metric.best_column]),
        test=float(runs[metric.test_column].mean()),
        test_low=tested[0],
        test_high=tested[1],
        every_run=len(every),
        every_hit=sum(repeat(results, name).is_hit for name in every),
        **found,
    )


def _seconds(one: Repeated, chosen_ends: Ends, printed_ends: Ends) -> dict[str, float]:
    """Return the seconds, with the intervals of the runs that choose and the runs that are
    reported."""
    times = [repeat.seconds if repeat.is_hit else math.inf for repeat in one.printed]
    middle = statistics.median(times)
    printed = middle if max(times) < math.inf else expected_running_time(one.printed)
    expected = expected_running_time(one.chosen)
    return {
        "expected_s": expected,
        # An interval is around the geometric mean: a slow run may leave the mean outside.
        "expected_low_s": min(chosen_ends[0], expected),
        "expected_high_s": max(chosen_ends[1], expected),
        "median_s": middle,
        "low_s": min(times),
        "high_s": max(times),
        "interval_low_s": min(printed_ends[0], printed),
        "interval_high_s": max(printed_ends[1], printed),
        "printed_s": printed,
        "worker_seconds_to_target": one.num_workers * printed,
    }


def _values(results: Study, one: Repeated, runs: pd.DataFrame, ends: Ends) -> dict[str, float]:
    """Return the values of the metric over the new runs."""
    worst = worst_value(results.metric)
    values = runs[results.metric.best_column].fillna(worst).mask(runs["state"] == "failed", worst)
    middle = float(values.median())
    found = {"median": middle, "low": float(values.min()), "high": float(values.max())}
    if not results.is_timed:
        low, high = with_rows(results, "validation", ends, one.printed_runs)
        found |= {"interval_low": min(low, middle), "interval_high": max(high, middle)}
    return found


def _tested(results: Study) -> dict[str, Ends]:
    """Return the ends of the 90 % interval of each configuration's value on the test split; NaN if
    the sampling error of the rows or the scatter over seeds is unknown.
    """
    worth = -results.metric.sign
    groups = {
        trial: [
            Replicate(worth * value, is_hit=True)
            for name in one.printed_runs
            if (value := results.runs[name].test_value) is not None
        ]
        for trial, one in repeated(results).items()
    }
    noise = pooled(groups.values(), is_timed=False)
    is_counted = "test" in results.baselines and noise.freedom > 0
    found = {}
    for trial, own in groups.items():
        names = repeated(results)[trial].printed_runs
        ends = with_rows(results, "test", interval(own, noise), names)
        error = rows_error(results, "test", sum(ends) / 2, names)
        is_known = bool(own) and is_counted and error is not None
        found[trial] = ends if is_known else (math.nan, math.nan)
    return found


def rows_error(results: Study, part: str, value: float, names: Sequence[str]) -> float | None:
    """Return the standard error of a measured value from the sampling of its rows.

    Args:
        results: The study.
        part: `validation` or `test`.
        value: The value, in the unit of the metric.
        names: Runs that measured it.

    Returns:
        For a proportion the binomial error. For other metrics the median of the errors that the
        runs recorded at their last evaluation, scaled to the number of test rows. None if it is
        unknown.
    """
    if results.metric.is_share:
        known = results.baselines.get(part)
        if known is None or not math.isfinite(value):
            return None
        share = (value * known.rows + 1) / (known.rows + 2)  # 0 and 1 have an error too
        return share_error(share, known.rows)
    last = [results.evaluations[name][-1] for name in names if results.evaluations.get(name)]
    errors = [point.value_error for point in last if point.value_error is not None]
    if not errors or part == "validation":
        return statistics.median(errors) if errors else None
    both = results.baselines
    if not {"validation", part} <= both.keys():
        return None
    return statistics.median(errors) * math.sqrt(both["validation"].rows / both[part].rows)


def with_rows(results: Study, part: str, ends: Ends, names: Sequence[str]) -> Ends:
    """Return a 90 % interval in the unit of the metric, widened by the sampling error of its rows.

    The sampling error (`rows_error`) adds in quadrature to the error over seeds: all seeds share
    the rows, so more seeds do not reduce it. If it is unknown the interval is over seeds only.
    Comparisons of configurations ignore it, since configurations share the rows too.

    Args:
        results: The study.
        part: `validation` or `test`.
        ends: Interval over seeds, of scores (`stats.replicates`): smaller is better.
        names: Runs that measured the values.
    """
    metric = results.metric
    low, high = sorted(-metric.sign * end for end in ends)
    middle = (low + high) / 2
    error = rows_error(results, part, middle, names)
    if error is not None and math.isfinite(high - low):
        reach = math.hypot((high - low) / 2, ONE_SIDED * error)
        low, high = middle - reach, middle + reach
    return (min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)) if metric.is_share else (low, high)


def worst_value(metric: Metric) -> float:
    """Return the value that counts for a run that failed or measured nothing."""
    if metric.is_share:
        return 0.0 if metric.direction == "max" else 1.0
    return -metric.sign * float("inf")


@once
def configurations(results: Study) -> pd.DataFrame:
    """Return one row per run of the search, confirmed configurations first, best first.

    Columns: trial, config, is_confirmed, runs, hits, expected_s, expected_low_s, expected_high_s,
    time_to_target_s, low_s, high_s, worker_seconds_to_target, best_accuracy (or another metric's),
    then the searched keys (framework, num_workers, ...).
    The row of a confirmed configuration has the values of `confirmed` (time_to_target_s is
    `printed_s`), never of the selection-biased search run; any other row has the values of its
    single run. Seconds are missing if no run reached the target, `high_s` if at least one run did
    not.
    """
    search = ranked(results.trials).set_index("trial")
    proof = confirmed(results).set_index("trial").reindex(search.index)
    is_confirmed, single = proof["runs"].notna(), search["crossed_s"]
    # Without a target a run that did not fail is a hit, as in `confirmed`.
    is_hit = single.notna() | (not results.is_timed)
    found = {
        "config": search["config"],
        "is_confirmed": is_confirmed,
        "runs": proof["runs"].fillna(1).astype(int),
        "hits": proof["hits"].where(is_confirmed, is_hit).astype(int),
    }
    for name in SECONDS_COLUMNS:
        seconds = proof[SECONDS_COLUMNS[name]].astype(float).where(is_confirmed, single)
        found[name] = seconds.where(np.isfinite(seconds))
    found["worker_seconds_to_target"] = search["num_workers"] * found["time_to_target_s"]
    metric = results.metric
    median = proof[f"median_{metric.name}"].astype(float)
    found[metric.best_column] = median.where(is_confirmed, search[metric.best_column])
    found |= {key: search[key] for key in (*BASE_KEYS, *searched_columns(results.trials))}
    place = {trial: number for number, trial in enumerate(confirmed(results)["trial"])}
    order = sorted(search.index, key=lambda trial: place.get(trial, len(place)))
    return pd.DataFrame(found).loc[order].reset_index()
