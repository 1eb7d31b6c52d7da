"""Winners of a study (the fastest and the cheapest configuration), and the configurations that are
statistically tied with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from raybench.results.ranking import (
    as_replicate,
    configurations,
    confirmed,
    cost_of,
    gpu_model_of,
    gpu_models,
    ranked_runs,
    repeated,
)
from raybench.results.study import Study, once
from raybench.results.trials import configuration_of
from raybench.spec.objective import MARGIN_WITHOUT_TEST_SPLIT, ONE_SIDED
from raybench.stats.record import Purpose
from raybench.stats.standing import Axis, ConfigurationRuns, Ties, ties_of

BEST, TIED, ONCE, WORSE = "best", "statistically tied", "ran once", "worse"
"""Values of the column `standing` of the table `winners`. `ran once` means that a configuration ran
only in the search and is not significantly worse than the best."""


@dataclass(frozen=True)
class Verdict:
    """The fastest and the cheapest configuration of a study."""

    fastest: str
    """Trial of the configuration with the lowest training seconds to the target; with
    `best_at_budget`, of the configuration with the best metric value."""
    cheapest: str
    """Trial of the configuration with the fewest worker-seconds of training to the target; if the
    study sets a price, with the lowest bill (for all seconds in which a run occupied workers). With
    `best_at_budget`, it is the same as `fastest`."""
    is_confirmed: bool
    """Whether both winners were chosen by repeated runs; otherwise, each was chosen by a single run
    of the search."""
    ties: tuple[str, ...]
    """Trials that are statistically tied with the fastest one, which comes first."""
    once: tuple[str, ...]
    """Configurations that ran only in the search and may be as good as the fastest; each is named
    by its best trial."""
    cheapest_ties: tuple[str, ...] = ()
    """Trials that are statistically tied with the cheapest one, which comes first; empty without a
    target, or if the winners are not confirmed."""
    cheapest_once: tuple[str, ...] = ()
    """Configurations that ran only in the search and may be as good as the cheapest; each is named
    by its best trial."""
    undecided: tuple[str, ...] = ()
    """Trials that are tied with one of the winners, and for which more runs may still show a
    relevant difference."""

    @property
    def is_one(self) -> bool:
        """Whether the fastest configuration is also the cheapest."""
        return self.fastest == self.cheapest

    def others(self, *, is_cheapest: bool = False) -> tuple[str, ...]:
        """Return the trials that are statistically tied with the fastest (or the cheapest) one,
        without the winner itself."""
        return self.cheapest_ties[1:] if is_cheapest else self.ties[1:]


def verdict_of(results: Study) -> Verdict | None:
    """Return the winners of a study; None if there are none.

    There is no winner if no run reached the target, if the fastest configuration is no better than
    the baseline, or if the runs were imported. If there are runs on several GPU models, the verdict
    is the first of `verdicts_of`.
    """
    return next(iter(verdicts_of(results).values()), None)


@once
def verdicts_of(results: Study) -> dict[str, Verdict]:
    """Return the winners for each GPU model, keyed by its name ("" without GPUs).

    GPU models with confirmed winners come first; the others follow in the order of their best runs.
    """
    return find_verdicts(results)


def find_verdicts(results: Study, *, untested: bool = False) -> dict[str, Verdict]:
    """Return the winners for each GPU model, like `verdicts_of` but without its cache.

    Args:
        results: The study.
        untested: Whether to include a verdict whose fastest configuration is no better than the
            baseline so far, provided that its solo runs (alone on the machine) are still missing.

    Returns:
        Verdicts, keyed by GPU model; {} for imported runs.
    """
    verdicts: dict[str, Verdict] = {}
    if results.is_imported:  # single runs, measured by an unknown clock
        return verdicts
    for gpu_model in gpu_models(results.trials):
        verdict = best_of(results, gpu_model)
        if verdict is None:
            continue
        is_awaited = untested and not _ran_alone(results, verdict.fastest)
        if is_awaited or is_better_than_baseline(results, verdict) is not False:
            verdicts[gpu_model] = verdict
    return dict(sorted(verdicts.items(), key=lambda item: not item[1].is_confirmed))


def best_of(results: Study, gpu_model: str) -> Verdict | None:
    """Return the winners among the runs on a GPU model ("" without GPUs), even if they are not
    better than the baseline."""
    return _confirmed_winners(results, gpu_model) or _search_winners(results, gpu_model)


def is_better_than_baseline(results: Study, verdict: Verdict) -> bool | None:
    """Return whether the fastest configuration is better than a constant prediction; None if
    unknown.

    Its mean value on the test split, which was not used for any selection, is compared with the
    best value that chance could reach there. That bound is for a single run: averaging over seeds
    does not tighten it, because all seeds are evaluated on the same rows. If there is no test value
    and none will follow, the validation split is used, with a stricter bound, because the best
    evaluation of each run was selected on it.
    """
    judged = judged_on(results, verdict)
    if judged is None:
        return None
    part, value = judged
    errors = ONE_SIDED if part == "test" else MARGIN_WITHOUT_TEST_SPLIT
    bound = results.baselines[part].beyond(results.metric, errors)
    return None if bound is None else results.metric.reaches(value, bound)


def judged_on(results: Study, verdict: Verdict) -> tuple[str, float] | None:
    """Return the split and the value by which the fastest configuration is compared with the
    baseline.

    Returns:
        Name of the split, and mean metric value of the configuration's reported runs on this split;
        None if they are not known yet.
    """
    if not verdict.is_confirmed:
        return None
    tested = mean_reported_value(results, verdict.fastest, "test")
    if "test" in results.baselines:
        if tested is not None:
            return "test", tested
        if not _ran_alone(results, verdict.fastest) and not _are_all_like_baseline(results):
            return None  # its solo runs will follow
    value = mean_reported_value(results, verdict.fastest, "validation")
    return None if value is None or "validation" not in results.baselines else ("validation", value)


def _ran_alone(results: Study, trial: str) -> bool:
    configuration = repeated(results).get(trial)
    return configuration is not None and bool(configuration.is_alone or configuration.group.alone)


def _are_all_like_baseline(results: Study) -> bool:
    """Return whether there are test values, but none is significantly better than the baseline."""
    bound = results.baselines["test"].beyond(results.metric, ONE_SIDED)
    tests = [mean_reported_value(results, trial, "test") for trial in repeated(results)]
    measured = [value for value in tests if value is not None]
    if bound is None or not measured:
        return False
    return not any(results.metric.reaches(value, bound) for value in measured)


def mean_reported_value(results: Study, trial: str, part: str) -> float | None:
    """Return the mean metric value of the reported runs of a trial's configuration on a split
    (`validation` or `test`); None if no run has a value."""
    runs = [results.runs[name] for name in repeated(results)[trial].printed_runs]
    values = [run.test_value if part == "test" else run.best_value for run in runs]
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def _confirmed_winners(results: Study, gpu_model: str) -> Verdict | None:
    """Return the winners by repeated runs on a GPU model.

    None if no repeated configuration reached the target, or if solo runs refuted all that did (see
    `Repeated.is_refuted`).
    """
    on_model = set(results.trials["trial"][gpu_model_of(results.trials) == gpu_model])
    # A configuration is refuted if its solo runs missed the target, unlike its run in the search.
    candidates = [
        configuration
        for configuration in repeated(results).values()
        if configuration.trial in on_model and configuration.hits and not configuration.is_refuted
    ]
    if not candidates:
        return None
    groups = {configuration.trial: configuration.group for configuration in candidates}
    best = _ties(results, groups, gpu_model, "seconds")
    if not results.is_timed:
        first = best.repeated[0]
        return Verdict(first, first, True, best.repeated, best.once, undecided=best.undecided)
    candidates.sort(key=lambda configuration: configuration.num_workers)  # fewer workers win a draw
    groups = {
        configuration.trial: configuration.on("worker_seconds") for configuration in candidates
    }
    cheap = _ties(results, groups, gpu_model, "worker_seconds")
    return Verdict(
        *(best.repeated[0], cheap.repeated[0], True, best.repeated, best.once),
        *(cheap.repeated, cheap.once),
        undecided=tuple(dict.fromkeys((*best.undecided, *cheap.undecided))),
    )


def _search_winners(results: Study, gpu_model: str) -> Verdict | None:
    """Return the winners by single search runs on a GPU model; used if `_confirmed_winners` returns
    None."""
    runs = ranked_runs(results.trials)
    runs = runs[gpu_model_of(runs) == gpu_model]
    if results.is_timed:
        # Repeated configurations are left out: their new runs missed the target.
        runs = runs[runs["crossed_s"].notna() & ~runs["trial"].isin(list(repeated(results)))]
        pairs = zip(runs["num_workers"], runs["trial"], strict=True)
        cost = runs["crossed_s"] * [cost_of(results, count, [trial]) for count, trial in pairs]
        costs = runs.loc[cost.sort_values(kind="stable").index]
    else:
        runs = runs[runs[results.metric.best_column].notna()]
        # Configurations that failed with all new seeds come last.
        is_repeated = runs["trial"].isin(list(repeated(results)))
        runs = costs = pd.concat([runs[~is_repeated], runs[is_repeated]])
    if runs.empty:
        return None
    best, cheapest = runs["trial"].iloc[0], costs["trial"].iloc[0]
    once = _ties(
        results, {best: ConfigurationRuns(as_replicate(results, best))}, gpu_model, "seconds"
    ).once
    return Verdict(best, cheapest, False, (best,), once)


def _ties(
    results: Study, groups: Mapping[str, ConfigurationRuns], gpu_model: str, axis: Axis
) -> Ties:
    """Return the configurations on a GPU model that are statistically tied with the best.

    A configuration that ran only in the search is compared by all of its search runs, and is named
    by the best of these runs.

    Args:
        results: The study.
        groups: Runs of the configurations that may win, keyed by trial name. Their seconds are in
            the unit of `axis`.
        gpu_model: GPU model; "" without GPUs.
        axis: Unit of the comparison: seconds or worker-seconds.
    """
    runs = ranked_runs(results.trials)
    configuration = configuration_of(results.trials)
    repeated_configurations = {configuration[trial] for trial in (*groups, *repeated(results))}
    searched: dict[str, list[str]] = {}
    for trial in runs["trial"][gpu_model_of(runs) == gpu_model]:
        is_other = configuration[trial] not in repeated_configurations
        if is_other and results.runs[trial].counts_for(Purpose.COMPARISON):
            searched.setdefault(configuration[trial], []).append(trial)
    searched_only = {}
    for names in searched.values():
        repeats = {number: as_replicate(results, name) for number, name in enumerate(names)}
        if not any(run.is_hit for run in repeats.values()):
            continue
        cost = cost_of(results, results.runs[names[0]].spec.num_workers, names)
        group = ConfigurationRuns(rounds=repeats)
        searched_only[names[0]] = group.times(cost) if axis == "worker_seconds" else group
    return ties_of(groups, searched_only)


WINNER_COLUMNS = (
    *("trial", "standing", "is_cheapest", "config", "num_workers", "is_confirmed"),
    *("runs", "hits", "seconds", "low_s", "high_s", "worker_seconds"),
)


@once
def winners(results: Study) -> pd.DataFrame:
    """Return a table of the winners, and of the configurations that are statistically tied with the
    fastest one; empty if there is no winner.

    | column | content |
    |---|---|
    | trial, config, num_workers | the configuration |
    | standing | `best` (fastest, or best value), `statistically tied` with the best, `ran once` |
    |  | (ran only in the search and may be as good), or `worse` (only the cheapest) |
    | is_cheapest | whether the configuration has the lowest cost (`Verdict.cheapest`) |
    | is_confirmed, runs, hits | whether it was trained again; number of runs by which it is |
    |  | compared; number of these runs that reached the target |
    | seconds, low_s, high_s | reported seconds to the target; their 90 % interval if confirmed |
    | worker_seconds | num_workers x seconds |
    | best_accuracy, low_accuracy, high_accuracy | value of the metric (here accuracy), and with |
    |  | best_at_budget the 90 % interval of the value |
    """
    metric = results.metric
    columns = [*WINNER_COLUMNS, metric.best_column, f"low_{metric.name}", f"high_{metric.name}"]
    verdict = verdict_of(results)
    if verdict is None:
        return pd.DataFrame(columns=columns)
    standing = dict.fromkeys(verdict.once, ONCE) | dict.fromkeys(verdict.ties, TIED)
    standing[verdict.fastest] = BEST
    standing.setdefault(verdict.cheapest, WORSE)
    names = (verdict.fastest, *verdict.ties, *verdict.once, verdict.cheapest)
    order = list(dict.fromkeys(names))
    table = configurations(results).set_index("trial").loc[order]
    confirmed_rows = confirmed(results).set_index("trial").reindex(order)
    table = table.assign(
        standing=[standing[name] for name in order],
        is_cheapest=[results.is_timed and name == verdict.cheapest for name in order],
        seconds=table["time_to_target_s"] if results.is_timed else np.nan,
        low_s=confirmed_rows["interval_low_s"].astype(float),
        high_s=confirmed_rows["interval_high_s"].astype(float),
        worker_seconds=table["worker_seconds_to_target"] if results.is_timed else np.nan,
    )
    for end in ("low", "high"):
        column = f"interval_{end}_{metric.name}"
        table[f"{end}_{metric.name}"] = confirmed_rows[column].astype(float)
    return table.reset_index()[columns]


def reached_target(results: Study) -> pd.DataFrame:
    """Return the rows of `configurations` that reached the target, fastest first.

    Unlike in `configurations`, time_to_target_s is the expected running time, by which
    configurations are compared. The column worker_seconds_to_target is computed from it, and low_s
    and high_s are its 90 % interval or, for an unconfirmed configuration, the time of its single
    run. If there are runs on several GPU models, only configurations on the model of the winner are
    included. The table is empty with `best_at_budget`.
    """
    table = configurations(results)
    if (verdict := verdict_of(results)) is not None:
        gpu_models_of_winner = results.runs[verdict.fastest].accelerators
        table = table[
            [results.runs[trial].accelerators == gpu_models_of_winner for trial in table["trial"]]
        ]
    compared = {
        "time_to_target_s": table["expected_s"],
        "worker_seconds_to_target": table["num_workers"] * table["expected_s"],
        "low_s": table["expected_low_s"],
        "high_s": table["expected_high_s"],
    }
    is_reached = table["expected_s"].notna() & results.is_timed
    reached = table.assign(**compared)[is_reached]
    return reached.sort_values("time_to_target_s", kind="stable", ignore_index=True)
