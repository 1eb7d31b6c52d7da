"""Rankings of the runs and configurations of a study.

After the search, the best configurations are trained again with new seeds, in parallel (the race,
role `race`). The winners are then trained with further seeds, alone on the machine (solo runs, role
`confirm`). The race decides the order of configurations, since its runs have equal conditions; solo
runs may overrule it (`stats.standing.best_first`). Reported times are from solo runs, because times
from the race are 9 to 14 % too good. If there is no race, there are only solo runs.
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
from raybench.spec.objective import MARGIN_WITH_TEST_SPLIT, ONE_SIDED, share_error
from raybench.spec.run import BASE_KEYS
from raybench.stats.record import Phase, Purpose, Role, RunRecord, State
from raybench.stats.replicates import (
    UNKNOWN_NOISE,
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

CONFIRMATION_ROLES = (Role.RACE, Role.CONFIRM)
"""Roles of the runs in which a configuration is trained again with new seeds."""


@dataclass(frozen=True)
class Repeated:
    """A configuration that was trained again with new seeds, and its runs."""

    trial: str
    """Name of the search run whose configuration was trained again."""
    num_workers: int
    cost: float
    """Cost of a second of training in worker-seconds; see `stats.standing.cost_per_s`."""
    group: ConfigurationRuns
    """Runs by which the configuration is compared with others. With a race, these are its run in
    the search (unless that run does not count, for example because it included the cold start of
    the study) and its race runs (in parallel, with new seeds). Solo runs after a race are in
    `group.alone` and may overrule the race. Without a race, only the solo runs are compared, as
    `group.rounds`."""
    chosen_runs: tuple[str, ...]
    """Names of the runs in `chosen`."""
    printed: tuple[Replicate, ...]
    """Runs from which the reported time is computed: the solo runs (alone on the machine) or, if
    there was a race and no solo run reached the target, all runs with new seeds."""
    printed_runs: tuple[str, ...]
    """Names of the runs in `printed`."""
    is_alone: bool
    """Whether all runs in `printed` are solo runs."""

    @property
    def chosen(self) -> list[Replicate]:
        """Runs by which the configuration is compared with others: its runs in the search and in
        the race, or its solo runs if there is no race."""
        return self.group.runs()

    @property
    def new(self) -> list[Replicate]:
        """Runs in `chosen` with new seeds; the search run is left out, since it is
        selection-biased."""
        return list(self.group.rounds.values())

    @property
    def hits(self) -> int:
        """Number of runs in `chosen` that reached the target."""
        return sum(run.is_hit for run in self.chosen)

    @property
    def is_refuted(self) -> bool:
        """Whether solo runs have shown that the configuration does not reach the target.

        This is the case if there are solo runs, and if no run in `printed` reached the target. With
        `best_at_budget`, it is the case if all runs in `printed` failed.
        """
        has_evidence = self.is_alone or self.group.alone or not self.printed[0].is_timed
        return bool(has_evidence) and not any(run.is_hit for run in self.printed)

    def on(self, axis: Axis) -> ConfigurationRuns:
        """Return the runs in `group` in the unit of an axis: seconds or worker-seconds."""
        return self.group.times(self.cost) if axis == "worker_seconds" else self.group


@once
def repeated(results: Study) -> dict[str, Repeated]:
    """Return the configurations that were trained again with new seeds, best first.

    They are keyed by the name of their search run. For the order see `stats.standing.best_first`.
    """
    trials = results.trials
    unranked = set(trials["trial"][trials["unranked"].notna()])
    new_runs: dict[str, list[RunRecord]] = {}
    for record in results.runs.values():
        origin = results.runs.get(record.source or "")
        if record.role not in CONFIRMATION_ROLES or origin is None or record.trial in unranked:
            continue  # without the search run, the repeated configuration is unknown
        is_alike = record.failure is not None or record.accelerators == origin.accelerators
        if record.counts_for(Purpose.COMPARISON) and is_alike:
            new_runs.setdefault(origin.trial, []).append(record)
    cold = first_trial(results.runs.values())
    by_trial = {}
    for trial, records in new_runs.items():
        search_run = results.runs[trial]
        counts = (
            trial != cold and trial not in unranked and search_run.counts_for(Purpose.COMPARISON)
        )
        by_trial[trial] = _repeated(results, search_run, records, counts=counts)
    groups = {trial: configuration.group for trial, configuration in by_trial.items()}
    order, _ = best_first(groups)
    return {trial: by_trial[trial] for trial in order}


def as_replicate(results: Study, trial: str) -> Replicate:
    """Return a trial's run as a `Replicate`: its training time or metric value, and whether it
    reached the target."""
    points = results.evaluations.get(trial, ())
    return replicate_of(results.runs[trial], points, baseline_value=results.value_at_start)


def cost_of(results: Study, num_workers: int, names: Iterable[str]) -> float:
    """Return the cost, in worker-seconds, of one second of training; see `cost_per_s`.

    Args:
        results: The study.
        num_workers: Number of workers of the configuration.
        names: Runs from which the ratio of billed to training seconds is computed; used only if the
            study sets a price.
    """
    price = results.study["study"].get("price")
    return cost_per_s(price, num_workers, [results.runs[name] for name in names])


def noise_of(configurations: Mapping[str, Repeated], results: Study) -> Noise:
    """Return the variation between seeds, pooled over the configurations.

    It is computed from the runs by which configurations are compared.
    """
    if not configurations and not results.is_timed:
        return UNKNOWN_NOISE
    return pooled(configuration.chosen for configuration in configurations.values())


def _repeated(
    results: Study, search_run: RunRecord, records: list[RunRecord], *, counts: bool
) -> Repeated:
    """Return a configuration that was trained again, given its race runs and solo runs (`records`),
    and whether its search run counts for comparisons."""
    race = [record.trial for record in records if record.role == Role.RACE]
    alone = [record.trial for record in records if record.role == Role.CONFIRM]
    chosen = [*([search_run.trial] if counts else []), *race] if race else alone
    is_hit = any(as_replicate(results, name).is_hit for name in alone)
    printed = alone if is_hit or not race else [*race, *alone]
    rounds = {_round_of(name): as_replicate(results, name) for name in race or alone}
    group = ConfigurationRuns(
        search_run=as_replicate(results, search_run.trial) if search_run.trial in chosen else None,
        rounds=dict(sorted(rounds.items())),
        alone=[as_replicate(results, name) for name in (alone if race else ())],
    )
    return Repeated(
        trial=search_run.trial,
        num_workers=search_run.spec.num_workers,
        cost=cost_of(results, search_run.spec.num_workers, printed),
        group=group,
        chosen_runs=tuple(chosen),
        printed=tuple(as_replicate(results, name) for name in printed),
        printed_runs=tuple(printed),
        is_alone=printed == alone,
    )


def _round_of(name: str) -> int:
    """Return the round of a race or solo run: the last number of a name like `0031-race2`."""
    return int(name[len(name.rstrip("0123456789")) :])


@dataclass(frozen=True, kw_only=True)
class ConfigurationResult:
    """Results of a configuration, from its runs with new seeds or from its single search run.

    Fields that end in `_s` are training seconds to the target. The floats after `is_interpolated`
    are in the unit of the metric. Unknown values are NaN. Intervals are 90 % intervals.
    """

    trial: str
    config: str
    """Label of the configuration, one line of text."""
    num_workers: int
    runs: int = 1
    """Number of runs by which the configuration is compared with others; see `Repeated.group`."""
    hits: int = 0
    """Number of these runs that reached the target or, with `best_at_budget`, did not fail."""
    expected_s: float = math.nan
    """Expected running time: total seconds of all `runs`, including misses, divided by `hits`."""
    expected_low_s: float = math.nan
    """Low end of the interval of a typical run's seconds. It is estimated from the `runs` with new
    seeds, and corrected for the selection of the best of several configurations."""
    expected_high_s: float = math.nan
    """High end of that interval."""
    new_runs: int = 0
    """Number of runs with new seeds from which the reported numbers are computed; 0 if there is
    only the search run."""
    new_hits: int = 0
    """Number of new runs that reached the target or, with `best_at_budget`, did not fail."""
    is_alone: bool = False
    """Whether all new runs are solo runs."""
    median_s: float = math.nan
    """Median over the new runs; a run that did not reach the target counts as infinite."""
    low_s: float = math.nan
    """Seconds of the fastest new run."""
    high_s: float = math.nan
    """Seconds of the slowest new run; infinite if a new run did not reach the target."""
    interval_low_s: float = math.nan
    """Low end of the interval of a typical run's seconds, estimated from the new runs."""
    interval_high_s: float = math.nan
    """High end of that interval."""
    printed_s: float = math.nan
    """Reported seconds: the median if all new runs reached the target, otherwise the expected
    running time of the new runs."""
    worker_seconds_to_target: float = math.nan
    """`num_workers` x `printed_s`."""
    search_s: float = math.nan
    """Seconds of the search run."""
    is_interpolated: bool | None = None
    """Whether the time to target of any of the runs is interpolated between evaluations; see
    `stats.standing.interpolated_time`."""
    median: float = math.nan
    """Median of the best metric values of the new runs. A failed run has the worst value: for
    example, accuracy 0, error rate 1, or an infinite loss."""
    low: float = math.nan
    """Smallest metric value of a new run."""
    high: float = math.nan
    """Largest metric value of a new run."""
    interval_low: float = math.nan
    """Low end of the interval of the metric value; only with `best_at_budget` (see `with_rows`)."""
    interval_high: float = math.nan
    """High end of that interval."""
    search: float = math.nan
    """Best metric value of the search run."""
    test: float = math.nan
    """Mean metric value of the new runs on the test split."""
    test_low: float = math.nan
    """Low end of the interval of the metric value on the test split."""
    test_high: float = math.nan
    """High end of that interval."""
    every_run: int = 1
    """Number of runs that are used for comparisons, for reported numbers, or both; not a column."""
    every_hit: int = 0
    """Number of these runs that reached the target or, with `best_at_budget`, did not fail; not a
    column."""

    @property
    def seconds(self) -> float:
        """Reported seconds of the new runs, or of the search run if no new run hit the target."""
        return self.printed_s if self.new_hits else self.search_s

    @property
    def value(self) -> float:
        """Reported metric value of the new runs, or of the search run if there are no new runs."""
        return self.median if self.new_runs else self.search

    @property
    def cost(self) -> float:
        """Worker-seconds of training to the target."""
        return self.num_workers * self.seconds


RESULT_FIELDS = [field.name for field in fields(ConfigurationResult)]
CONFIRMED_COLUMNS = RESULT_FIELDS[: RESULT_FIELDS.index("every_run")]
METRIC_COLUMNS = CONFIRMED_COLUMNS[CONFIRMED_COLUMNS.index("median") :]
"""Columns of `confirmed` to which the name of the metric is appended."""


SECONDS_COLUMNS = {name: name for name in ("expected_s", "expected_low_s", "expected_high_s")}
SECONDS_COLUMNS |= {"time_to_target_s": "printed_s", "low_s": "low_s", "high_s": "high_s"}
"""Columns of `confirmed` in seconds, keyed by the corresponding column of `configurations`."""


def ranked_runs(trials: pd.DataFrame, phase: Phase = Phase.SEARCH) -> pd.DataFrame:
    """Return the runs of a phase that did not fail, best score first.

    Runs with a reason in the column `unranked` are left out (see `results.trials`). Runs on all GPU
    models are included, although only runs on the same model are compared (see `gpu_models`).

    Args:
        trials: Rows of `Study.trials`.
        phase: Phase of the study, such as `search` or `reference`.
    """
    chosen = trials[(trials["phase"] == phase) & (trials["state"] != State.FAILED)]
    chosen = chosen[chosen["unranked"].isna()]
    return chosen.loc[interpolated_score(chosen).sort_values(kind="stable").index]


def nearest(results: Study, phase: Phase = Phase.SEARCH) -> str | None:
    """Return the name of the run that came nearest to a target that no run reached.

    Args:
        results: The study.
        phase: Phase of the study from which the run is chosen.

    Returns:
        Name of the run with the best score. None if there is no run with a metric value, or if this
        run has learned nothing: its value is not significantly better than that of a constant
        prediction on the same number of rows.
    """
    metric, baseline_value = results.metric, results.value_at_start
    if (baseline := results.baselines.get("validation")) is not None:
        bound = baseline.beyond(metric, MARGIN_WITH_TEST_SPLIT)
        baseline_value = baseline_value if bound is None else bound
    for trial in ranked_runs(results.trials, phase)["trial"]:
        value = results.runs[trial].best_value
        if value is not None:
            has_learned = baseline_value is None or metric.gap(value, baseline_value) > 0
            return str(trial) if has_learned else None
    return None


def gpu_models(trials: pd.DataFrame) -> list[str]:
    """Return the GPU models of the search runs ("" without GPUs), starting with the model of the
    best run.

    Only runs on the same GPU model are compared with each other.
    """
    return list(dict.fromkeys(gpu_model_of(ranked_runs(trials))))


def gpu_model_of(trials: pd.DataFrame) -> pd.Series:
    """Return the GPU model of each row of `Study.trials`; "" without GPUs."""
    return trials["accelerators"].fillna("")


@once
def confirmed(results: Study) -> pd.DataFrame:
    """Return a table with one row per configuration that was trained again, best first.

    The columns are the fields of `ConfigurationResult`. The name of the metric is appended to the
    columns of the metric: `median_accuracy`, `search_accuracy`, `test_accuracy`, ... With
    `best_at_budget`, seconds are NaN. If there is no race (parallel runs with new seeds), the order
    and the reported numbers are from the same runs.

    Rows are sorted by the upper confidence bound of expected_s or, with `best_at_budget`, of the
    mean value, so that one lucky run does not outrank five good runs (see `stats.replicates`). Solo
    runs may overrule this order (see `stats.standing.best_first`).
    """
    names = {column: f"{column}_{results.metric.name}" for column in METRIC_COLUMNS}
    rows = [asdict(result) for result in confirmed_results(results).values()]
    return pd.DataFrame(rows, columns=CONFIRMED_COLUMNS).rename(columns=names)


@once
def confirmed_results(results: Study) -> dict[str, ConfigurationResult]:
    """Return the results of the configurations that were trained again, best first.

    They are keyed by the name of the trial, which is the configuration's search run.
    """
    by_trial = repeated(results)
    new_and_alone = [
        runs
        for configuration in by_trial.values()
        for runs in (configuration.new, configuration.group.alone)
    ]
    noise = pooled(new_and_alone)
    ends = intervals_of_chosen(
        {trial: configuration.new for trial, configuration in by_trial.items()}, noise
    )
    tested = _tested(results)
    return {
        trial: _result_of(results, configuration, noise, ends[trial], tested[trial])
        for trial, configuration in by_trial.items()
    }


def result_of(results: Study, trial: str, *, is_confirmed: bool) -> ConfigurationResult:
    """Return the results of a configuration.

    Args:
        results: The study.
        trial: Search run of the configuration.
        is_confirmed: Whether the configuration was trained again with new seeds; otherwise, the
            results are those of the search run.
    """
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
"""Low end and high end of a 90 % interval."""


def _result_of(
    results: Study, configuration: Repeated, noise: Noise, chosen_ends: Ends, tested: Ends
) -> ConfigurationResult:
    """Return the results of a configuration that was trained again.

    Args:
        results: The study.
        configuration: The configuration with its runs.
        noise: Variation between seeds, pooled over configurations.
        chosen_ends: Ends of the interval of the seconds (with `best_at_budget`, of the score),
            computed from the new runs and corrected for selection.
        tested: Ends of the interval of the metric value on the test split.
    """
    metric, trials = results.metric, results.trials.set_index("trial")
    printed_ends = chosen_ends
    if configuration.is_alone and configuration.group.alone:
        printed_ends = interval(configuration.printed, noise)
    runs = trials.loc[list(configuration.printed_runs)]
    search_row = trials.loc[[configuration.trial]].iloc[0]
    names = {*configuration.chosen_runs, *configuration.printed_runs}
    values: dict[str, Any] = _values(results, configuration, runs, printed_ends)
    if results.is_timed:
        values |= _seconds(configuration, chosen_ends, printed_ends) | {
            "search_s": search_row["crossed_s"]
        }
        values["is_interpolated"] = bool(trials.loc[list(names), "is_interpolated"].eq(True).any())
    return ConfigurationResult(
        trial=configuration.trial,
        config=search_row["config"],
        num_workers=configuration.num_workers,
        runs=len(configuration.chosen),
        hits=configuration.hits,
        new_runs=len(configuration.printed),
        new_hits=sum(run.is_hit for run in configuration.printed),
        is_alone=configuration.is_alone,
        search=float(search_row[metric.best_column]),
        test=float(runs[metric.test_column].mean()),
        test_low=tested[0],
        test_high=tested[1],
        every_run=len(names),
        every_hit=sum(as_replicate(results, name).is_hit for name in names),
        **values,
    )


def _seconds(configuration: Repeated, chosen_ends: Ends, printed_ends: Ends) -> dict[str, float]:
    """Return the fields of `ConfigurationResult` that are in seconds.

    The intervals are from the runs by which configurations are compared (`chosen_ends`), and from
    the runs whose time is reported (`printed_ends`).
    """
    times = [run.seconds if run.is_hit else math.inf for run in configuration.printed]
    middle = statistics.median(times)
    printed = middle if max(times) < math.inf else expected_running_time(configuration.printed)
    expected = expected_running_time(configuration.chosen)
    return {
        "expected_s": expected,
        # The interval is around the geometric mean; a slow run may move the mean outside of it.
        "expected_low_s": min(chosen_ends[0], expected),
        "expected_high_s": max(chosen_ends[1], expected),
        "median_s": middle,
        "low_s": min(times),
        "high_s": max(times),
        "interval_low_s": min(printed_ends[0], printed),
        "interval_high_s": max(printed_ends[1], printed),
        "printed_s": printed,
        "worker_seconds_to_target": configuration.num_workers * printed,
    }


def _values(
    results: Study, configuration: Repeated, runs: pd.DataFrame, ends: Ends
) -> dict[str, float]:
    """Return the fields of `ConfigurationResult` that hold metric values, computed from the rows of
    `Study.trials` for the runs with new seeds.

    The 90 % interval `ends` of the score is used only with `best_at_budget`.
    """
    worst = worst_value(results.metric)
    values = (
        runs[results.metric.best_column].fillna(worst).mask(runs["state"] == State.FAILED, worst)
    )
    middle = float(values.median())
    values_of_metric = {"median": middle, "low": float(values.min()), "high": float(values.max())}
    if not results.is_timed:
        low, high = with_rows(results, "validation", ends, configuration.printed_runs)
        values_of_metric |= {"interval_low": min(low, middle), "interval_high": max(high, middle)}
    return values_of_metric


def _tested(results: Study) -> dict[str, Ends]:
    """Return the 90 % interval of each configuration's metric value on the test split.

    Intervals are keyed by the name of the configuration's trial. The ends are NaN if the sampling
    error of the rows or the variation between seeds is unknown.
    """
    sign = -results.metric.sign
    groups = {
        trial: [
            Replicate(sign * value, is_hit=True, is_timed=False)
            for name in configuration.printed_runs
            if (value := results.runs[name].test_value) is not None
        ]
        for trial, configuration in repeated(results).items()
    }
    noise = pooled(groups.values())
    is_counted = "test" in results.baselines and noise.freedom > 0
    intervals = {}
    for trial, replicates in groups.items():
        names = repeated(results)[trial].printed_runs
        ends = with_rows(results, "test", interval(replicates, noise), names)
        error = rows_error(results, "test", sum(ends) / 2, names)
        is_known = bool(replicates) and is_counted and error is not None
        intervals[trial] = ends if is_known else (math.nan, math.nan)
    return intervals


def rows_error(results: Study, part: str, value: float, names: Sequence[str]) -> float | None:
    """Return the standard error of a metric value due to the finite number of rows of the split.

    Args:
        results: The study.
        part: Split on which the value was measured: `validation` or `test`.
        value: The metric value.
        names: Names of the runs that measured the value.

    Returns:
        For a proportion such as accuracy, the binomial error. For other metrics such as F1, the
        median of the errors that the runs recorded on the validation split at their last
        evaluation, scaled to the number of test rows if `part` is `test`. None if unknown.
    """
    if results.metric.is_share and results.metric.is_mean:
        baseline = results.baselines.get(part)
        if baseline is None or not math.isfinite(value):
            return None
        # One is added so that the error of the values 0 and 1 is not 0.
        share = (value * baseline.rows + 1) / (baseline.rows + 2)
        return share_error(share, baseline.rows)
    evaluations = [results.evaluations[name][-1] for name in names if results.evaluations.get(name)]
    errors = [point.value_error for point in evaluations if point.value_error is not None]
    if not errors or part == "validation":
        return statistics.median(errors) if errors else None
    baselines = results.baselines
    if not {"validation", part} <= baselines.keys():
        return None
    return statistics.median(errors) * math.sqrt(
        baselines["validation"].rows / baselines[part].rows
    )


def with_rows(results: Study, part: str, ends: Ends, names: Sequence[str]) -> Ends:
    """Return a 90 % interval in the unit of the metric, widened by the sampling error of the rows.

    The sampling error (`rows_error`) is added in quadrature to the error between seeds. All seeds
    are evaluated on the same rows, so more seeds do not reduce the sampling error. If it is
    unknown, the interval is not widened. Comparisons of configurations do not use this interval,
    since all configurations are evaluated on the same rows, too.

    Args:
        results: The study.
        part: Split on which the value was measured: `validation` or `test`.
        ends: 90 % interval of the score between seeds; smaller scores are better, so the values of
            a metric to maximize are negated.
        names: Names of the runs that measured the value.
    """
    metric = results.metric
    low, high = sorted(-metric.sign * end for end in ends)
    middle = (low + high) / 2
    error = rows_error(results, part, middle, names)
    if error is not None and math.isfinite(high - low):
        half_width = math.hypot((high - low) / 2, ONE_SIDED * error)
        low, high = middle - half_width, middle + half_width
    return (min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)) if metric.is_share else (low, high)


def worst_value(metric: Metric) -> float:
    """Return the metric value that is assigned to a run that failed or has no value."""
    if metric.is_share:
        return 0.0 if metric.direction == "max" else 1.0
    return -metric.sign * float("inf")


@once
def configurations(results: Study) -> pd.DataFrame:
    """Return a table with one row per ranked run of the search, best first.

    Confirmed configurations precede all others. Runs that failed or are not ranked (see
    `ranked_runs`) have no row.

    The columns are trial, config, is_confirmed, runs, hits, expected_s, expected_low_s,
    expected_high_s, time_to_target_s, low_s, high_s, worker_seconds_to_target, best_accuracy (or
    `best_` and the name of another metric), and then the searched keys (framework, num_workers,
    ...).

    The row of a confirmed configuration (trained again with new seeds) has the values of the table
    `confirmed` (time_to_target_s is `printed_s`), not those of the search run, which is
    selection-biased. Any other row has the values of its single run. Seconds are missing if none of
    the row's runs reached the target; `high_s` is missing unless all of them did.
    """
    search = ranked_runs(results.trials).set_index("trial")
    confirmed_rows = confirmed(results).set_index("trial").reindex(search.index)
    is_confirmed, search_s = confirmed_rows["runs"].notna(), search["crossed_s"]
    # Without a target, a run that did not fail counts as a hit, as in `confirmed`.
    is_hit = search_s.notna() | (not results.is_timed)
    columns = {
        "config": search["config"],
        "is_confirmed": is_confirmed,
        "runs": confirmed_rows["runs"].fillna(1).astype(int),
        "hits": confirmed_rows["hits"].where(is_confirmed, is_hit).astype(int),
    }
    for name in SECONDS_COLUMNS:
        seconds = confirmed_rows[SECONDS_COLUMNS[name]].astype(float).where(is_confirmed, search_s)
        columns[name] = seconds.where(np.isfinite(seconds))
    columns["worker_seconds_to_target"] = search["num_workers"] * columns["time_to_target_s"]
    metric = results.metric
    median = confirmed_rows[f"median_{metric.name}"].astype(float)
    columns[metric.best_column] = median.where(is_confirmed, search[metric.best_column])
    columns |= {key: search[key] for key in (*BASE_KEYS, *searched_columns(results.trials))}
    rank = {trial: number for number, trial in enumerate(confirmed(results)["trial"])}
    order = sorted(search.index, key=lambda trial: rank.get(trial, len(rank)))
    return pd.DataFrame(columns).loc[order].reset_index()
