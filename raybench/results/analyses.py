"""Analyses of a study: best value over time, causes of failures, Pareto front, scaling,
hyperparameter importance."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.store import ERRORS_FOLDER, LOGS_FOLDER
from raybench.results.study import Study, once
from raybench.results.trials import interpolated_score
from raybench.spec.metric import Metric
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import CUT_SHORT, NOT_CAUSED, Purpose, Role, State

SEARCH_ROLES = (Role.TRIAL, Role.PLACEMENT_CHECK)
"""Roles of the runs of a search."""


def search_curves(results: Study) -> pd.DataFrame:
    """Return the rows of `Study.curves` for the runs of the search that did not fail."""
    trials = results.trials
    names = trials["trial"][trials["role"].isin(SEARCH_ROLES) & (trials["state"] != State.FAILED)]
    return results.curves[results.curves["trial"].isin(names)]


def best_at_every_budget(curves: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the best metric value that any run reached within each training time.

    Args:
        curves: Rows of `Study.curves`, with the columns trial, train_s and the name of the metric.
        metric: Metric of the study.

    Returns:
        One row for each improvement of the best value, with the columns train_s (training seconds),
        the name of the metric, and trial. The best value within `s` seconds is in the last row with
        `train_s <= s`. The table is empty if `curves` has no values.
    """
    columns = ["train_s", metric.name, "trial"]
    points = curves[columns].dropna(subset=["train_s", metric.name])
    # The best of several values at the same second comes first; only that value is kept.
    gain = metric.sign * points[metric.name]
    points = points.assign(gain=gain).sort_values(
        ["train_s", "gain"], ascending=[True, False], kind="stable"
    )
    best_before = points["gain"].cummax().shift(fill_value=-float("inf"))
    return points.loc[points["gain"] > best_before, columns].reset_index(drop=True)


def ledger_totals(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the total seconds of the runs in `trials` for each phase.

    Columns: phase, seconds and share (fraction of the total wall-clock seconds). The row `other` is
    the time that no phase accounts for; the last row, `sum`, is the sum of all rows.
    """
    seconds = {phase: float(trials[f"{phase}_s"].sum()) for phase in (*PHASES, OTHER)}
    wall = float(trials["wall_s"].sum())
    rows = [
        {"phase": phase, "seconds": value, "share": value / wall if wall else 0.0}
        for phase, value in seconds.items()
    ]
    total = sum(seconds.values())
    rows.append({"phase": "sum", "seconds": total, "share": total / wall if wall else 0.0})
    return pd.DataFrame(rows)


VARYING_TEXT = re.compile(
    rf"\S*\b(?:{ERRORS_FOLDER}|{LOGS_FOLDER})/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?"
)


def cause_of(failure: str, message: str | None) -> str:
    """Return a string that is the same for all failures with the same cause.

    In the message of a failure, numbers, addresses and names of the trial's files are replaced by
    `#`. Only the first 2,000 characters of the message are used.
    """
    return f"{failure}: {VARYING_TEXT.sub('#', (message or '')[:2000])}"


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct causes of failures, the most frequent first.

    Columns: `failure`, `runs` (number of runs) and `for example` (message of the first of them).
    """
    failed = trials[trials["state"] == State.FAILED]
    causes = map(cause_of, failed["failure"], failed["message"])
    failed = failed.assign(cause=list(causes), message=failed["message"].fillna("no message"))
    counts = failed.groupby("cause", sort=False).agg(
        failure=("failure", "first"),
        runs=("trial", "size"),
        **{"for example": ("message", "first")},
    )
    return counts.sort_values("runs", ascending=False, kind="stable", ignore_index=True)


def pareto_front(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the Pareto front of seconds and worker-seconds to the target, fastest first.

    Args:
        trials: Table with the columns num_workers and time_to_target_s. Rows without a finite time
            are never on the front. If the table has a column is_confirmed and any row is confirmed
            (trained again with new seeds), only such rows are considered, since a single run may be
            lucky.

    Returns:
        The rows on the front, with the additional column worker_seconds_to_target.
    """
    if "is_confirmed" in trials and trials["is_confirmed"].any():
        trials = trials[trials["is_confirmed"]]
    front = trials.assign(time_to_target_s=trials["time_to_target_s"].astype(float))
    front["worker_seconds_to_target"] = front["num_workers"] * front["time_to_target_s"]
    front = front[np.isfinite(front["time_to_target_s"])]
    costs = front[["time_to_target_s", "worker_seconds_to_target"]].to_numpy(dtype=float)
    optimal: pd.DataFrame = front[not_dominated(costs)]
    return optimal.sort_values("time_to_target_s", ignore_index=True)


def not_dominated(costs: np.ndarray) -> np.ndarray:
    """Return a mask of the Pareto-optimal rows of `costs`.

    Args:
        costs: Two costs per row, shape (n, 2); smaller is better.

    Returns:
        Boolean mask, shape (n,).
    """
    is_optimal = np.zeros(len(costs), dtype=bool)
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    smallest, last = np.inf, np.array([np.nan, np.nan])
    # Rows are in ascending order of the first cost, so only a smaller second cost is optimal.
    for row in order:
        if costs[row, 1] < smallest or (costs[row] == last).all():
            is_optimal[row] = True
            smallest, last = costs[row, 1], costs[row]
    return is_optimal


SPEED_UP_COLUMNS = (
    *("scaling", "curve", "num_workers", "global_batch_size", "samples_per_s"),
    *("speedup", "speedup_low", "speedup_high", "ideal"),
    *("efficiency", "efficiency_low", "efficiency_high"),
    *("input_share", "communication_share", "baseline", "n"),
)


def speed_ups(scaling: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up curves of a scaling study, one row per worker count.

    Args:
        scaling: `StudyResults.scaling`, one row per cell (run spec); see
            `scaling.cells.cell_table`.

    Returns:
        The rows for which the speed-up over one worker is known, with the additional column
        `ideal`: the worker count, which would be the linear speed-up.
    """
    rows = scaling[scaling["speedup"].notna()]
    table = rows.assign(ideal=rows["num_workers"].astype(float))
    return table[[*SPEED_UP_COLUMNS]].sort_values(
        ["scaling", "curve", "num_workers"], kind="stable", ignore_index=True
    )


COST_COLUMNS, RATIO_COLUMNS = ("seconds", "worker_seconds"), ("times_as_fast", "times_the_cost")
WORKER_COLUMNS = (
    *("num_workers", "tried", "reached", "trial", "config", "is_confirmed"),
    *(*COST_COLUMNS, *RATIO_COLUMNS),
)


def by_workers(configurations: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the best configuration for each worker count, fewest workers first.

    | column | content |
    |---|---|
    | num_workers, tried | worker count; number of configurations with this worker count |
    | reached | number of these configurations that reached the target |
    | trial, config, is_confirmed | the best of these configurations |
    | seconds, worker_seconds | its time to target; missing if no configuration reached the target |
    | times_as_fast, times_the_cost | relative to the fewest workers that reached the target |
    | best_accuracy | its best value of the metric; the column is named after the metric |

    Args:
        configurations: `StudyResults.configurations`, best first. Confirmed configurations (trained
            again with new seeds) precede those that ran once, whose seconds are selection-biased.
        metric: Metric of the study.
    """
    rows: list[dict[str, Any]] = []
    for number, group in configurations.groupby("num_workers"):
        hit = group[group["time_to_target_s"].notna()]
        best = (hit if len(hit) else group).iloc[0]
        row = {"num_workers": number, "tried": len(group), "reached": sum(group["hits"] > 0)}
        row |= {name: best[name] for name in ("trial", "config", "is_confirmed")}
        row["seconds"] = float(best["time_to_target_s"])
        row["worker_seconds"] = float(best["worker_seconds_to_target"])
        rows.append(row | {metric.best_column: float(best[metric.best_column])})
    names = [*WORKER_COLUMNS, metric.best_column]
    table = pd.DataFrame(rows, columns=[name for name in names if name not in RATIO_COLUMNS])
    hit = table[table["seconds"].notna()].head(1)
    seconds, cost = (hit[name].iloc[0] if len(hit) else np.nan for name in COST_COLUMNS)
    ratios = seconds / table["seconds"], table["worker_seconds"] / cost
    return table.assign(**dict(zip(RATIO_COLUMNS, ratios, strict=True)))[names]


IMPORTANCE_TYPES = {
    "key": "object",
    **dict.fromkeys(("importance", "low", "high", "explained"), "float64"),
    "runs": "int64",
}
LEAST_IMPORTANCE_RUNS = 12
"""Minimum number of runs from which importance is computed."""
LEAST_EXPLAINED = 0.05
"""Minimum fraction of the variance of held-out scores that the random forest must explain."""
MOST_IMPORTANCE_RUNS = 1000
"""Maximum number of runs from which importance is computed; if there are more, a random sample is
used."""
FOLDS, SHUFFLES, TREES = 5, 3, 24
"""Numbers of cross-validation folds, shuffles per key and fold, and trees per forest."""


def importance(trials: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the permutation importance of `keys` for the score, most important first.

    A random forest is trained on four fifths of the runs to predict the score from the keys. The
    importance of a key is the increase of the forest's error on the held-out fifth when the values
    of this key are shuffled (Breiman 2001; Fisher et al. 2019). Each fifth is held out once.

    | column | content |
    |---|---|
    | key | one of `keys` that has more than one value |
    | importance | fraction of the sum over all keys, 0 to 1 |
    | low, high | minimum and maximum of the importance over the five folds |
    | explained | fraction of the variance of held-out scores that the forest predicts |
    | runs | number of runs, at most MOST_IMPORTANCE_RUNS |

    The score is the number that the search minimizes; runs that failed (out of memory, NaN) have
    the worst score. Runs that do not count for `importance` (`RunRecord.counts_for`) are left out.
    The table is empty if there are fewer than LEAST_IMPORTANCE_RUNS runs, or if the forest cannot
    predict held-out runs.

    The importance is valid only *for the runs of this search*. A search samples the best part of
    the space most, so a key that matters elsewhere seems less important than on a uniform sample.
    Keys that were varied together share their importance.

    Args:
        trials: Rows of `Study.trials`.
        keys: Columns of `trials`, usually the searched keys.
    """
    trials = trials.reset_index(drop=True)
    score = _scores(trials).dropna()
    if len(score) > MOST_IMPORTANCE_RUNS:
        score = score.sample(MOST_IMPORTANCE_RUNS, random_state=0)
    runs = trials.loc[score.index]
    varied = [key for key in keys if len(runs[key].unique()) > 1]
    if len(runs) < LEAST_IMPORTANCE_RUNS or not varied or score.nunique() < 2:
        return pd.DataFrame(columns=[*IMPORTANCE_TYPES]).astype(IMPORTANCE_TYPES)
    inputs = np.column_stack([_numbers(runs[key]) for key in varied])
    increases, explained = _error_increases(inputs, score.to_numpy(dtype=float))
    mean = np.maximum(increases.mean(axis=0), 0.0)
    if explained < LEAST_EXPLAINED or mean.sum() <= 0:
        return pd.DataFrame(columns=[*IMPORTANCE_TYPES]).astype(IMPORTANCE_TYPES)
    folds = np.clip(increases / mean.sum(), 0.0, 1.0)
    columns = {"key": varied, "importance": mean / mean.sum(), "low": folds.min(axis=0)}
    columns |= {"high": folds.max(axis=0), "explained": explained, "runs": len(runs)}
    table = pd.DataFrame(columns).astype(IMPORTANCE_TYPES)
    return table.sort_values("importance", ascending=False, kind="stable", ignore_index=True)


def _scores(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return each run's score; NaN for runs that do not count for `importance`."""
    score = interpolated_score(trials)
    is_scored = np.isfinite(score) & trials["role"].isin(SEARCH_ROLES)
    is_left_out = trials["stop"].isin(CUT_SHORT[Purpose.IMPORTANCE])
    is_left_out |= trials["failure"].isin(NOT_CAUSED[Purpose.IMPORTANCE])
    return score.where(is_scored & ~is_left_out)


def _numbers(values: "pd.Series[Any]") -> np.ndarray:
    """Return a column as numbers, NaN where missing; strings become integer codes."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return np.asarray(values.astype("Float64").to_numpy(dtype=float, na_value=np.nan))
    codes, _ = pd.factorize(values.astype(str), sort=True)
    return np.asarray(codes, dtype=float)


def _error_increases(inputs: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, float]:
    """Train random forests and measure how much each key contributes to their predictions.

    Args:
        inputs: Values of the keys, shape (runs, keys).
        score: Score of each run, shape (runs,).

    Returns:
        Increase of the squared error on held-out runs when a key is shuffled, shape (FOLDS, keys);
        and the fraction of the variance of held-out scores that the forests explain.
    """
    # Imported late because it takes half a second.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    increases, predicted = np.zeros((FOLDS, inputs.shape[1])), np.zeros(len(score))
    folds = KFold(FOLDS, shuffle=True, random_state=0).split(inputs)
    for number, (train, test) in enumerate(folds):
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=number)
        predicted[test] = forest.fit(inputs[train], score[train]).predict(inputs[test])
        increases[number] = permutation_importance(
            forest,
            inputs[test],
            score[test],
            scoring="neg_mean_squared_error",
            n_repeats=SHUFFLES,
            random_state=number,
        ).importances_mean
    explained = 1.0 - float(np.mean((predicted - score) ** 2) / score.var())
    return increases, explained


@once
def importance_of(results: Study) -> pd.DataFrame:
    """Return the table `importance` for the keys that a study searched."""
    keys = [key for key in results.searched if key in results.trials]
    return importance(results.trials, keys)
