"""Analyses: frames of a study in, frames out. Nothing here knows of folders or of screens.

What is reached at every budget of training seconds and when curves reach a target (trials end at
their study's own, so few of them say anything of a harder one), where the seconds went, seconds
against worker-seconds, how a training scales, and which configurations may be the best.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.study import Study, once
from raybench.results.trials import interpolated_score
from raybench.spec import objective
from raybench.spec.metric import Metric
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import CUT_SHORT, MACHINE_FAULTS
from raybench.stats.standing import crossing

SEARCH = ("trial", "placement_check")
"""Roles of a search's own runs."""


def search_curves(results: Study) -> pd.DataFrame:
    """Return the evaluations of the search's runs that did not fail."""
    trials = results.trials
    search = trials["trial"][trials["role"].isin(SEARCH) & (trials["state"] != "failed")]
    return results.curves[results.curves["trial"].isin(search)]


def best_at_every_budget(curves: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the envelope of learning curves: the rows where the best value so far improves.

    `curves` has the columns trial, train_s and the metric's name (`Study.curves`, or the
    rows of some of its trials). Columns of the answer: train_s, the metric's name, trial; seconds
    and values both get better from row to row, so a budget of `s` seconds reaches what stands in
    the last row with `train_s <= s`. Empty without a value.
    """
    columns = ["train_s", metric.name, "trial"]
    points = curves[columns].dropna(subset=["train_s", metric.name])
    # Of values at the same second the best comes first, so that it alone stays.
    gain = metric.sign * points[metric.name]
    points = points.assign(gain=gain).sort_values(
        ["train_s", "gain"], ascending=[True, False], kind="stable"
    )
    before = points["gain"].cummax().shift(fill_value=-float("inf"))
    return points.loc[points["gain"] > before, columns].reset_index(drop=True)


def ledger_totals(trials: pd.DataFrame) -> pd.DataFrame:
    """Return where the seconds of all runs went: phase, seconds, share of the sum of walls.

    `other` is what no phase accounts for; with it the rows sum to the walls.
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


def pareto_front(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that no other beats in seconds and worker-seconds to the target.

    `trials` has the columns num_workers and time_to_target_s (missing or infinite: never
    reached, never on the front); worker_seconds_to_target is added. Where some of them are
    confirmed (is_confirmed), the front is theirs: a single run may be a lucky one. Fastest first.
    """
    if "is_confirmed" in trials and trials["is_confirmed"].any():
        trials = trials[trials["is_confirmed"]]
    front = trials.assign(time_to_target_s=trials["time_to_target_s"].astype(float))
    front["worker_seconds_to_target"] = front["num_workers"] * front["time_to_target_s"]
    front = front[np.isfinite(front["time_to_target_s"])]
    costs = front[["time_to_target_s", "worker_seconds_to_target"]].to_numpy(dtype=float)
    kept: pd.DataFrame = front[not_dominated(costs)]
    return kept.sort_values("time_to_target_s", ignore_index=True)


def not_dominated(costs: np.ndarray) -> np.ndarray:
    """Return which rows of `costs` (n, 2) no other row undercuts: less in one, not more in any."""
    kept = np.zeros(len(costs), dtype=bool)
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    least, last = np.inf, np.array([np.nan, np.nan])
    for row in order:  # the first cost only grows, so the second must fall
        if costs[row, 1] < least or (costs[row] == last).all():
            kept[row] = True
            least, last = costs[row, 1], costs[row]
    return kept


COLUMNS = (
    *("scaling", "curve", "num_workers", "global_batch_size", "samples_per_s"),
    *("speedup", "speedup_low", "speedup_high", "ideal"),
    *("efficiency", "efficiency_low", "efficiency_high"),
    *("input_share", "communication_share", "baseline", "n"),
)


def speed_ups(scaling: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up curves of a scaling study, one row per number of workers.

    `scaling` is `Study.scaling`, a row per cell; see `scaling.cells` for the
    columns. `ideal` is what the speed-up would be if nothing was lost: the number of workers. Cells
    without a single worker of their kind to compare with are left out.
    """
    known = scaling[scaling["speedup"].notna()]
    table = known.assign(ideal=known["num_workers"].astype(float))
    return table[[*COLUMNS]].sort_values(
        ["scaling", "curve", "num_workers"], kind="stable", ignore_index=True
    )


def time_to_target(
    curves: pd.DataFrame,
    metric: Metric,
    target: float,
    *,
    hold: int = 1,
    baseline_value: float | None = None,
) -> pd.DataFrame:
    """Return when each trial of `curves` reached a target, in their order.

    Columns: trial, seconds (of training; missing where it never did), is_interpolated. The first
    of `hold` evaluations in a row at the target counts, and where evaluations are far apart a
    time between it and the one before (`stats.standing`; `baseline_value` is reached at 0 s).
    """
    rows: list[tuple[Any, float, bool]] = []
    lists = curves.groupby("trial", sort=False).agg({"train_s": list, metric.name: list})
    for trial, seconds, values in lists.itertuples(name=None):
        reached_s = objective.time_to_target(
            values, seconds, target=target, hold=hold, metric=metric
        )
        if reached_s is None:
            rows.append((trial, np.nan, False))
            continue
        at = seconds.index(reached_s)
        before_s, before = (seconds[at - 1], values[at - 1]) if at else (0.0, baseline_value)
        found = crossing(reached_s, values[at], before_s, before, target)
        rows.append((trial, found.seconds, found.is_interpolated))
    table = pd.DataFrame(rows, columns=["trial", "seconds", "is_interpolated"])
    return table.astype({"seconds": float, "is_interpolated": bool})


def around_target(
    curves: pd.DataFrame,
    metric: Metric,
    target: float,
    *,
    hold: int = 1,
    baseline_value: float | None = None,
) -> pd.DataFrame:
    """Return which trial reaches first the target, an easier and a harder one, easiest first.

    They are a point of a share apart, of other metrics 1 % of the gap to the baseline value.
    Columns: target, trial, seconds (both missing where none reaches it), reached (trials that do),
    trials. A winner that changes with the target hangs on it.
    """
    step = metric.sign * objective.small_difference(metric, target, baseline_value)
    rows = []
    for one in (target - step, target, target + step):
        if metric.is_share and one > 1:
            continue
        times = time_to_target(curves, metric, one, hold=hold, baseline_value=baseline_value)
        known = times.dropna(subset=["seconds"])
        first = known.nsmallest(1, "seconds")
        trial = first["trial"].iloc[0] if len(first) else None
        seconds = first["seconds"].iloc[0] if len(first) else np.nan
        rows.append((one, trial, seconds, len(known), len(times)))
    return pd.DataFrame(rows, columns=["target", "trial", "seconds", "reached", "trials"])


COSTS, RATIOS = ("seconds", "worker_seconds"), ("times_as_fast", "times_the_cost")
WORKER_COLUMNS = (
    *("num_workers", "tried", "reached", "trial", "config", "is_confirmed"),
    *(*COSTS, *RATIOS),
)


def by_workers(configurations: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the best configuration of each number of workers, fewest first.

    `configurations` is `Study.configurations`, best first: a confirmed one goes before those
    that ran once, whose seconds flatter.

    | column | holds |
    |---|---|
    | num_workers, tried, reached | how many configurations had so many; those that hit |
    | trial, config, is_confirmed | the best of them |
    | seconds, worker_seconds | what it takes to the target; missing where none of them hit |
    | times_as_fast, times_the_cost | over the fewest workers that hit |
    | best_accuracy | or another metric's |
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
    table = pd.DataFrame(rows, columns=[name for name in names if name not in RATIOS])
    hit = table[table["seconds"].notna()].head(1)
    seconds, cost = (hit[name].iloc[0] if len(hit) else np.nan for name in COSTS)
    ratios = seconds / table["seconds"], table["worker_seconds"] / cost
    return table.assign(**dict(zip(RATIOS, ratios, strict=True)))[names]


IMPORTANCE_COLUMNS = ("key", "importance", "low", "high", "explained", "runs")
LEAST_RUNS = 12
"""Runs below which a forest is not asked."""
LEAST_EXPLAINED = 0.05
"""Share of the variance of held-out runs below which the forest knows nothing of them."""
MOST_RUNS = 1000
"""Runs beyond which some are drawn: more make it slower, hardly surer."""
FOLDS, SHUFFLES, TREES = 5, 3, 24


def importance(trials: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return how much the score of the search's runs hangs on each of `keys`, most first.

    Permutation importance (Breiman 2001; Fisher et al. 2019): a random forest learns the score from
    the keys on four fifths of the runs; what it is more wrong by on the last fifth with the values
    of one key shuffled is what that key tells. Each fifth is held out once.

    | column | holds |
    |---|---|
    | key | one of `keys` that has more than one value |
    | importance | its share of what all keys tell, 0 to 1; they sum to 1 |
    | low, high | the least and the most of the five fifths |
    | explained | share of the score's variance that the forest predicts of runs held out |
    | runs | how many runs all of this stands on, at most MOST_RUNS |

    Empty where it would be noise: below LEAST_RUNS runs, or where the forest does not predict runs
    that it has not seen. The score is what the search minimises. Runs that a machine's fault
    or the end of the study cut off are left out; those that broke (out of memory, NaN) have the
    worst score.

    It says what mattered *among the runs that were made*: a search that learns samples its best
    region most, so a key that is decisive elsewhere seems to matter less than on a uniform sample,
    and keys that were moved together share what either tells.
    """
    trials = trials.reset_index(drop=True)
    score = _scores(trials).dropna()
    if len(score) > MOST_RUNS:
        score = score.sample(MOST_RUNS, random_state=0)
    runs = trials.loc[score.index]
    varied = [key for key in keys if len(runs[key].unique()) > 1]
    if len(runs) < LEAST_RUNS or not varied or score.nunique() < 2:
        return _table({}, runs=0)
    inputs = np.column_stack([_numbers(runs[key]) for key in varied])
    worse, explained = _shuffled(inputs, score.to_numpy(dtype=float))
    mean = np.maximum(worse.mean(axis=0), 0.0)
    if explained < LEAST_EXPLAINED or mean.sum() <= 0:
        return _table({}, runs=0)
    folds = np.clip(worse / mean.sum(), 0.0, 1.0)
    found = {"key": varied, "importance": mean / mean.sum()}
    found |= {"low": folds.min(axis=0), "high": folds.max(axis=0), "explained": explained}
    return _table(found, runs=len(runs))


def _table(found: Mapping[str, Any], *, runs: int) -> pd.DataFrame:
    table = pd.DataFrame(found, columns=[*IMPORTANCE_COLUMNS]).assign(runs=runs)
    types = dict.fromkeys(IMPORTANCE_COLUMNS, "float64") | {"key": "object", "runs": "int64"}
    return table.astype(types).sort_values(
        "importance", ascending=False, kind="stable", ignore_index=True
    )


def _scores(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return each run's score; NaN of those that say nothing of their configuration."""
    score = interpolated_score(trials)
    says = np.isfinite(score) & trials["role"].isin(SEARCH)
    cut = trials["stop"].isin(CUT_SHORT["importance"]) | trials["failure"].isin(MACHINE_FAULTS)
    return score.where(says & ~cut)


def _numbers(values: "pd.Series[Any]") -> np.ndarray:
    """Return a column as numbers, NaN where it is missing; what is none as codes."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return np.asarray(values.astype("Float64").to_numpy(dtype=float, na_value=np.nan))
    codes, _ = pd.factorize(values.astype(str), sort=True)
    return np.asarray(codes, dtype=float)


def _shuffled(inputs: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, float]:
    """Return what a forest is more wrong by, (FOLDS, keys), and the variance it explains."""
    # Late: half a second, for this question alone.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    worse, predicted = np.zeros((FOLDS, inputs.shape[1])), np.zeros(len(score))
    folds = KFold(FOLDS, shuffle=True, random_state=0).split(inputs)
    for number, (known, held) in enumerate(folds):
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=number)
        predicted[held] = forest.fit(inputs[known], score[known]).predict(inputs[held])
        worse[number] = permutation_importance(
            forest,
            inputs[held],
            score[held],
            scoring="neg_mean_squared_error",
            n_repeats=SHUFFLES,
            random_state=number,
        ).importances_mean
    explained = 1.0 - float(np.mean((predicted - score) ** 2) / score.var())
    return worse, explained


@once
def importance_of(results: Study) -> pd.DataFrame:
    """Return `importance` of the keys that a study searched."""
    keys = [key for key in results.searched if key in results.trials]
    return importance(results.trials, keys)
