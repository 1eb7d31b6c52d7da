"""Winners of a study by expected running time, and the configurations tied with them."""

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
    repeated,
)
from raybench.results.ranking import ranked as ranked_runs
from raybench.results.study import Study, once
from raybench.results.trials import configuration_of
from raybench.spec.objective import MARGIN_WITHOUT_TEST_SPLIT, ONE_SIDED
from raybench.stats.standing import Axis, ConfigurationRuns, Ties, ties_of

BEST, TIED, ONCE, WORSE = "best", "statistically tied", "ran once", "worse"
"""Values of `standing` in `winners`. `ran once`: ran only in the search, and is not significantly
worse than the best either."""


@dataclass(frozen=True)
class Verdict:
    """The fastest and the cheapest configuration of a study."""

    fastest: str
    """Trial with the lowest training seconds to the target."""
    cheapest: str
    """Trial with the lowest worker-seconds of training to the target; if the study names a price,
    with the lowest bill, which covers all seconds in which a run held workers."""
    is_confirmed: bool
    """True if both were chosen by repeated runs, False if by a single search run each."""
    ties: tuple[str, ...]
    """Trials that are statistically tied with the fastest, itself included."""
    once: tuple[str, ...]
    """Configurations that ran only in the search and may be as good as the fastest, each named by
    its best trial."""
    cheapest_ties: tuple[str, ...] = ()
    """Trials tied with the cheapest, itself included; empty without a target."""
    cheapest_once: tuple[str, ...] = ()
    """The same as `once`, for the cheapest."""
    undecided: tuple[str, ...] = ()
    """Trials tied with either winner for which more runs may still show a relevant difference."""

    @property
    def is_one(self) -> bool:
        """Whether the fastest configuration is also the cheapest."""
        return self.fastest == self.cheapest

    def others(self, *, is_cheapest: bool = False) -> tuple[str, ...]:
        """Return the repeated configurations that are statistically tied with the winner."""
        return self.cheapest_ties[1:] if is_cheapest else self.ties[1:]


def judge(results: Study) -> Verdict | None:
    """Return the winners; None if no run reached the target.

    With objective best_at_budget, the fastest and the cheapest are both the configuration with the
    best value. If there are runs on several GPU models, this is the first verdict of `judge_each`.
    """
    return next(iter(judge_each(results).values()), None)


@once
def judge_each(results: Study) -> dict[str, Verdict]:
    """Return the winners by GPU model ("" without GPUs), starting with the model of the best run;
    models without a confirmed run come last.
    """
    return find_verdicts(results)


def find_verdicts(results: Study, *, untested: bool = False) -> dict[str, Verdict]:
    """Return the winners by GPU model, without the cache of `judge_each`.

    Args:
        untested: Include verdicts whose fastest configuration has no solo runs (alone on the
            machine) yet, even if it is not better than the baseline.

    Returns:
        Verdicts by GPU model; {} for imported runs.
    """
    verdicts: dict[str, Verdict] = {}
    if results.is_imported:  # single runs, measured by an unknown clock
        return verdicts
    for kind in gpu_models(results.trials):
        verdict = best_of(results, kind)
        if verdict is None:
            continue
        is_due = untested and not _ran_alone(results, verdict.fastest)
        if is_due or is_better_than_baseline(results, verdict) is not False:
            verdicts[kind] = verdict
    return dict(sorted(verdicts.items(), key=lambda item: not item[1].is_confirmed))


def best_of(results: Study, kind: str) -> Verdict | None:
    """Return the winners among the runs on a GPU model, even if not better than the baseline."""
    return _confirmed_winners(results, kind) or _winners_of_the_search(results, kind)


def is_better_than_baseline(results: Study, verdict: Verdict) -> bool | None:
    """Return whether the fastest configuration is better than a constant prediction.

    This is tested on the test split, which was not used for any choice. All seeds share its rows,
    so the mean of their values is as uncertain as a single value. If there is no test value and
    none will follow, the validation split is used; its bound is stricter because the best
    evaluation was selected on it. None if unknown so far.
    """
    judged = judged_on(results, verdict)
    if judged is None:
        return None
    part, value = judged
    errors = ONE_SIDED if part == "test" else MARGIN_WITHOUT_TEST_SPLIT
    bound = results.baselines[part].beyond(results.metric, errors)
    return None if bound is None else results.metric.reaches(value, bound)


def judged_on(results: Study, verdict: Verdict) -> tuple[str, float] | None:
    """Return the split on which the fastest configuration is tested against the baseline, and the
    mean value of its reported runs there; None if that is unknown so far."""
    if not verdict.is_confirmed:
        return None
    tested = new_value(results, verdict.fastest, "test")
    if "test" in results.baselines:
        if tested is not None:
            return "test", tested
        if not _ran_alone(results, verdict.fastest) and not _were_all_guessing(results):
            return None  # its solo runs are still to come
    value = new_value(results, verdict.fastest, "validation")
    return None if value is None or "validation" not in results.baselines else ("validation", value)


def _ran_alone(results: Study, trial: str) -> bool:
    configuration = repeated(results).get(trial)
    return configuration is not None and bool(configuration.is_alone or configuration.group.alone)


def _were_all_guessing(results: Study) -> bool:
    """Return whether configurations were tested and none of them was better than the baseline."""
    bound = results.baselines["test"].beyond(results.metric, ONE_SIDED)
    tests = [new_value(results, trial, "test") for trial in repeated(results)]
    measured = [value for value in tests if value is not None]
    if bound is None or not measured:
        return False
    return not any(results.metric.reaches(value, bound) for value in measured)


def new_value(results: Study, trial: str, part: str) -> float | None:
    """Return the mean value of a configuration's reported runs on a split; None if unknown."""
    runs = [results.runs[name] for name in repeated(results)[trial].printed_runs]
    values = [run.test_value if part == "test" else run.best_value for run in runs]
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def _confirmed_winners(results: Study, kind: str) -> Verdict | None:
    of_kind = set(results.trials["trial"][gpu_model_of(results.trials) == kind])
    candidates = [
        configuration
        for configuration in repeated(results).values()
        if configuration.trial in of_kind and configuration.hits
    ]
    # A configuration is refuted if only its search run reached the target.
    candidates = [
        configuration
        for configuration in candidates
        if not configuration.is_refuted(is_timed=results.is_timed)
    ]
    if not candidates:
        return None
    groups = {configuration.trial: configuration.group for configuration in candidates}
    best = _ties(results, groups, kind, "seconds")
    if not results.is_timed:
        first = best.repeated[0]
        return Verdict(first, first, True, best.repeated, best.once, undecided=best.undecided)
    candidates.sort(key=lambda configuration: configuration.num_workers)  # fewer workers win a draw
    groups = {
        configuration.trial: configuration.on("worker_seconds") for configuration in candidates
    }
    cheap = _ties(results, groups, kind, "worker_seconds")
    return Verdict(
        *(best.repeated[0], cheap.repeated[0], True, best.repeated, best.once),
        *(cheap.repeated, cheap.once),
        undecided=tuple(dict.fromkeys((*best.undecided, *cheap.undecided))),
    )


def _winners_of_the_search(results: Study, kind: str) -> Verdict | None:
    """Return the winners by single search runs, for when no repeated configuration has won."""
    runs = ranked_runs(results.trials)
    runs = runs[gpu_model_of(runs) == kind]
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
        results, {best: ConfigurationRuns(as_replicate(results, best))}, kind, "seconds"
    ).once
    return Verdict(best, cheapest, False, (best,), once)


def _ties(results: Study, groups: Mapping[str, ConfigurationRuns], kind: str, axis: Axis) -> Ties:
    """Return the best of `groups` in the unit of `axis`, and the configurations tied with it.

    A configuration that ran only in the search is compared by all its search runs, and named by the
    best of them.
    """
    runs, again = ranked_runs(results.trials), repeated(results)
    configuration = configuration_of(results.trials)
    taken = {configuration[trial] for trial in (*groups, *again)}
    searched: dict[str, list[str]] = {}
    for trial in runs["trial"][gpu_model_of(runs) == kind]:
        is_other = configuration[trial] not in taken
        if is_other and results.runs[trial].counts_for("comparison"):
            searched.setdefault(configuration[trial], []).append(trial)
    searched_only = {}
    for names in searched.values():
        repeats = {number: as_replicate(results, name) for number, name in enumerate(names)}
        if not any(run.is_hit for run in repeats.values()):
            continue
        cost = cost_of(results, results.runs[names[0]].spec.num_workers, names)
        group = ConfigurationRuns(rounds=repeats)
        searched_only[names[0]] = group.times(cost) if axis == "worker_seconds" else group
    return ties_of(groups, searched_only, is_timed=results.is_timed)


WINNER_COLUMNS = (
    *("trial", "standing", "is_cheapest", "config", "num_workers", "is_confirmed"),
    *("runs", "hits", "seconds", "low_s", "high_s", "worker_seconds"),
)


@once
def winners(results: Study) -> pd.DataFrame:
    """Return the winner and the configurations that are statistically tied with it.

    | column | holds |
    |---|---|
    | trial, config, num_workers | the configuration |
    | standing | `best` (fastest, or best value), `statistically tied` with it, `ran once` (ran |
    |  | only in the search and may be as good), or `worse` (only the cheapest) |
    | is_cheapest | whether it has the lowest cost: `Verdict.cheapest` |
    | is_confirmed, runs, hits | whether it was trained again; number of runs by which it is |
    |  | compared; how many of them reached the target |
    | seconds, low_s, high_s | reported seconds to the target; their 90 % interval if confirmed |
    | worker_seconds | num_workers x seconds |
    | best_accuracy, low_accuracy, high_accuracy | value of the metric (here accuracy), and with |
    |  | best_at_budget its 90 % interval |

    Empty if no run reached the target.
    """
    metric = results.metric
    columns = [*WINNER_COLUMNS, metric.best_column, f"low_{metric.name}", f"high_{metric.name}"]
    verdict = judge(results)
    if verdict is None:
        return pd.DataFrame(columns=columns)
    standing = dict.fromkeys(verdict.once, ONCE) | dict.fromkeys(verdict.ties, TIED)
    standing[verdict.fastest] = BEST
    standing.setdefault(verdict.cheapest, WORSE)
    order = [verdict.fastest, *(name for name in verdict.ties if name != verdict.fastest)]
    order += [name for name in (*verdict.once, verdict.cheapest) if name not in order]
    order = list(dict.fromkeys(order))
    table = configurations(results).set_index("trial").loc[order]
    proof = confirmed(results).set_index("trial").reindex(order)
    table = table.assign(
        standing=[standing[name] for name in order],
        is_cheapest=[results.is_timed and name == verdict.cheapest for name in order],
        seconds=table["time_to_target_s"] if results.is_timed else np.nan,
        low_s=proof["interval_low_s"].astype(float),
        high_s=proof["interval_high_s"].astype(float),
        worker_seconds=table["worker_seconds_to_target"] if results.is_timed else np.nan,
    )
    for end in ("low", "high"):
        table[f"{end}_{metric.name}"] = proof[f"interval_{end}_{metric.name}"].astype(float)
    return table.reset_index()[columns]


def reached_target(results: Study) -> pd.DataFrame:
    """Return the rows of `configurations` that reached the target, fastest first.

    time_to_target_s and worker_seconds_to_target come from the expected running time, by which
    configurations are compared; low_s and high_s are the 90 % interval of confirmed configurations.
    Empty with `best_at_budget`. With several GPU models, only rows on the winner's model.
    """
    table = configurations(results)
    if (verdict := judge(results)) is not None:
        kind = results.runs[verdict.fastest].accelerators
        table = table[[results.runs[trial].accelerators == kind for trial in table["trial"]]]
    compared = {
        "time_to_target_s": table["expected_s"],
        "worker_seconds_to_target": table["num_workers"] * table["expected_s"],
        "low_s": table["expected_low_s"],
        "high_s": table["expected_high_s"],
    }
    is_reached = table["expected_s"].notna() & results.is_timed
    reached = table.assign(**compared)[is_reached]
    return reached.sort_values("time_to_target_s", kind="stable", ignore_index=True)
