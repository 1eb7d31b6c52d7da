"""The analyses of `results.analyses`, asked of a study: `study.around_target()`; and which of the
searched keys its results hang on.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.core.record import MACHINE_FAULTS
from raybench.results.analyses import (
    around_target,
    best_at_every_budget,
    ledger_totals,
    time_to_target,
)

COLUMNS = ("key", "importance", "low", "high", "explained", "runs")
LEAST_RUNS = 12
"""Runs below which a forest is not asked."""
LEAST_EXPLAINED = 0.05
"""Share of the variance of held-out runs below which the forest knows nothing of them."""
MOST_RUNS = 1000
"""Runs beyond which some are drawn: more make it slower, hardly surer."""
FOLDS, SHUFFLES, TREES = 5, 3, 24
CUT_OFF = ("interrupted", "time_budget")
"""Why a run ended that says nothing of its configuration."""


def importance(trials: pd.DataFrame, keys: Sequence[str], metric: Metric) -> pd.DataFrame:
    """Return how much the score of the search's runs hangs on each of `keys`, most first.

    Permutation importance (Breiman 2001, Random Forests; Fisher et al. 2019): a random forest
    learns the score from the keys, on four fifths of the runs; of the last fifth, the values of one
    key are shuffled, and what the forest is then more wrong by is what that key tells. Each fifth
    is held out once.

    | column | holds |
    |---|---|
    | key | one of `keys` that has more than one value |
    | importance | its share of what all keys tell, 0 to 1; they sum to 1 |
    | low, high | the least and the most of the five fifths |
    | explained | share of the score's variance that the forest predicts of runs held out |
    | runs | how many runs all of this stands on, at most MOST_RUNS |

    Empty where it would be noise: below LEAST_RUNS runs, or where the forest does not predict runs
    that it has not seen. The score is what the search minimises (log seconds to the target, or
    what is lacking to it); where `trials` has none, the metric's best value. Runs that a machine's
    fault or the end of the study cut off are left out; those that broke (out of memory, NaN) have
    the worst score.

    It says what mattered *among the runs that were made*. A search that learns samples its best
    region most, where a key that is decisive elsewhere differs little: such a key seems to matter
    less than it would on a uniform sample, and keys that were moved together share what
    either tells. Only a grid or random sampling is free of that.
    """
    missing = [key for key in keys if key not in trials]
    if missing:
        raise UserError(f"trials: has no column '{missing[0]}'; name searched keys.")
    trials = trials.reset_index(drop=True)
    score = _scores(trials, metric).dropna()
    if len(score) > MOST_RUNS:
        score = score.sample(MOST_RUNS, random_state=0)
    runs = trials.loc[score.index]
    varied = [key for key in keys if len(set(runs[key].astype(str))) > 1]
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
    table = pd.DataFrame(found, columns=[*COLUMNS]).assign(runs=runs)
    types = dict.fromkeys(COLUMNS, "float64") | {"key": "object", "runs": "int64"}
    return table.astype(types).sort_values(
        "importance", ascending=False, kind="stable", ignore_index=True
    )


def _scores(trials: pd.DataFrame, metric: Metric) -> "pd.Series[float]":
    """Return each run's score; NaN of those that say nothing of their configuration."""
    score = pd.Series(np.nan, index=trials.index)
    if "score" in trials:
        score = trials["score"].astype(float)
    if score.isna().all() and metric.best_column in trials:
        score = -metric.sign * trials[metric.best_column].astype(float)
    elif {"crossed_s", "time_to_target_s"} <= set(trials):
        # The recorded score knows the recorded time alone.
        earlier = trials["crossed_s"].astype(float) / trials["time_to_target_s"].astype(float)
        score = score + np.log(earlier.fillna(1.0))
    says = np.isfinite(score)
    for column, words in (("stop", CUT_OFF), ("failure", MACHINE_FAULTS)):
        if column in trials:
            says &= ~trials[column].isin(words)
    if "role" in trials:
        says &= trials["role"].isin(("trial", "finalist")) | trials["role"].isna()
    return score.where(says)


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

    random = np.random.default_rng(0)
    fold = random.permutation(np.arange(len(score)) % FOLDS)
    worse, predicted = np.zeros((FOLDS, inputs.shape[1])), np.zeros(len(score))
    for number in range(FOLDS):
        held, known = fold == number, fold != number
        forest = RandomForestRegressor(
            TREES,
            min_samples_leaf=2,
            random_state=number,
        ).fit(inputs[known], score[known])
        predicted[held] = forest.predict(inputs[held])
        error = np.mean((predicted[held] - score[held]) ** 2)
        for key in range(inputs.shape[1]):
            copies = np.tile(inputs[held], (SHUFFLES, 1))
            copies[:, key] = random.permutation(copies[:, key])
            wrong = forest.predict(copies) - np.tile(score[held], SHUFFLES)
            worse[number, key] = np.mean(wrong**2) - error
    explained = 1.0 - float(np.mean((predicted - score) ** 2) / score.var())
    return worse, explained


SEARCH = ("trial", "finalist")
"""Roles of a search's own runs."""


class Analysed:
    """What every study answers, raybench's own and another tool's."""

    if TYPE_CHECKING:
        # Read-only here: a study may compute them.
        @property
        def trials(self) -> pd.DataFrame:
            """One row per run."""

        @property
        def curves(self) -> pd.DataFrame:
            """One row per evaluation."""

        @property
        def metric(self) -> Metric:
            """What the study is judged by."""

        @property
        def target(self) -> float | None:
            """Value of the metric that was asked for."""

        @property
        def searched(self) -> tuple[str, ...]:
            """The keys that were searched."""

        @property
        def value_at_start(self) -> float | None:
            """What the metric is before a run has begun."""

        @property
        def hold(self) -> int:
            """Evaluations in a row at the target."""

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return what the search reached at every budget of training seconds.

        Columns: train_s, the metric's name, trial; see `analyses`.
        """
        return best_at_every_budget(self._search_curves(), self.metric)

    @cached_property
    def importance(self) -> pd.DataFrame:
        """Which searched keys the results hang on, most first; see `analyses`."""
        keys = [key for key in self.searched if key in self.trials]
        return importance(self.trials, keys, self.metric)

    def ledger(self) -> pd.DataFrame:
        """Return where the seconds of all runs went; see `analyses`."""
        return ledger_totals(self.trials)

    def time_to(self, target: float | None = None) -> pd.DataFrame:
        """Return when each run of the search reached a target; none: the study's own.

        Columns: trial, seconds, is_interpolated; see `analyses`.
        """
        return time_to_target(
            self._search_curves(), self.metric, self._asked(target), **self._crossing()
        )

    def around_target(self, target: float | None = None) -> pd.DataFrame:
        """Return who is first at the target, and at one a point easier and one a point harder.

        Columns: target, trial, seconds, reached, trials; see `analyses`.
        """
        return around_target(
            self._search_curves(), self.metric, self._asked(target), **self._crossing()
        )

    def _search_curves(self) -> pd.DataFrame:
        roles = self.trials["role"]
        search = self.trials["trial"][roles.isin(SEARCH) & (self.trials["state"] != "failed")]
        return self.curves[self.curves["trial"].isin(search)]

    def _asked(self, target: float | None) -> float:
        found = self.target if target is None else target
        if found is None:
            raise UserError("The study asked for no target; name one: study.time_to(0.95).")
        return found

    def _crossing(self) -> dict[str, Any]:
        return {"hold": self.hold, "chance": self.value_at_start}
