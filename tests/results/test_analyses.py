"""Analyses of results as DataFrames, compared with hand calculations."""

import math

import numpy as np
import pandas as pd
import pytest

from raybench.results.analyses import (
    best_at_every_budget,
    by_workers,
    importance,
    ledger_totals,
    pareto_front,
)
from raybench.spec.metric import ACCURACY, METRICS
from tests.made_results import PHASE_SECONDS, confirmed_trial, results_folder, run_line

LOSS = METRICS["loss"]


def frame(metric, **curves):
    """Return a curve table from (seconds, value) lists by trial."""
    rows = [(trial, *point) for trial, points in curves.items() for point in points]
    return pd.DataFrame(rows, columns=["trial", "train_s", metric.name])


def test_best_at_every_budget_holds_each_improvement_once():
    curves = frame(
        ACCURACY, a=[(1.0, 0.5), (3.0, 0.7)], b=[(1.0, 0.6), (2.0, 0.6), (4.0, np.nan), (5.0, 0.8)]
    )
    table = best_at_every_budget(curves, ACCURACY)
    assert table.to_dict("split")["data"] == [[1.0, 0.6, "b"], [3.0, 0.7, "a"], [5.0, 0.8, "b"]]
    less = best_at_every_budget(frame(LOSS, a=[(1.0, 0.5), (2.0, 0.4)], b=[(1.5, 0.6)]), LOSS)
    assert list(less["loss"]) == [0.5, 0.4]
    assert best_at_every_budget(curves.iloc[:0], ACCURACY).empty


def test_ledger_totals_cover_all_runs_and_sum_to_wall_time(tmp_path):
    lines = [run_line("0000"), run_line("0001", failure="oom"), *confirmed_trial("0002", [1.0])]
    trials = results_folder(tmp_path, lines).trials
    table = ledger_totals(trials).set_index("phase")
    assert table.loc["start", "seconds"] == PHASE_SECONDS["start"] * len(trials)
    assert table.loc["sum", "seconds"] == pytest.approx(trials["wall_s"].sum())
    assert table.loc["sum", "share"] == pytest.approx(1.0)
    assert "input" not in table.index, "input is part of train"
    assert table["share"].drop("sum").sum() == pytest.approx(1.0)


def searched(number, *, seed=0, noise=0.1):
    """Return runs whose score depends strongly on the rate and weakly on the optimizer."""
    random = np.random.default_rng(seed)
    runs = pd.DataFrame(
        {
            "learning_rate": 10 ** random.uniform(-4, 0, number),
            "optimizer": random.choice(["adam", "sgd"], number),
            "weight_decay": random.uniform(0, 0.1, number),
            "precision": "fp32",
        }
    )
    score = (np.log10(runs["learning_rate"]) + 2) ** 2 + 0.8 * (runs["optimizer"] == "sgd")
    return runs.assign(
        score=score + random.normal(0, noise, number),
        role="trial",
        **dict.fromkeys(("stop", "failure"), None),
        **dict.fromkeys(("crossed_s", "time_to_target_s"), np.nan),
    )


KEYS = ["weight_decay", "optimizer", "learning_rate", "precision"]


def test_importance_ranks_the_keys_that_affect_the_score():
    table = importance(searched(100), KEYS)
    assert list(table["key"]) == ["learning_rate", "optimizer", "weight_decay"]
    assert table["importance"].sum() == pytest.approx(1)
    assert table["importance"][0] > 0.8
    assert table["importance"][2] < 0.01
    assert set(table["runs"]) == {100}
    assert table["explained"][0] > 0.8
    assert (table["low"] <= table["importance"] + 1e-9).all()
    pd.testing.assert_frame_equal(table, importance(searched(100), KEYS))


def test_importance_of_noise_and_of_few_runs_is_empty():
    random = np.random.default_rng(1)
    noise = searched(100).assign(score=random.normal(0, 1, 100))
    assert importance(noise, KEYS).empty
    assert importance(searched(11), KEYS).empty
    assert importance(searched(100), ["precision"]).empty


def test_importance_uses_only_informative_runs():
    runs = searched(60)
    runs.loc[:9, "stop"] = "interrupted"
    runs.loc[10:19, "failure"] = "worker_lost"
    runs.loc[20:24, "role"] = "confirm"
    runs.loc[25:29, "failure"] = "oom"  # caused by the configuration, so it counts
    assert set(importance(runs, KEYS)["runs"]) == {35}


NAMES = ["trial", "config", "is_confirmed", "hits", "num_workers", "time_to_target_s"]


def ranked(*rows):
    """Return a table of configurations, best first."""
    table = pd.DataFrame(rows, columns=[*NAMES, "best_accuracy"])
    cost = table["num_workers"] * table["time_to_target_s"].astype(float)
    return table.assign(worker_seconds_to_target=cost)


def test_each_worker_count_is_compared_with_the_fewest():
    table = by_workers(
        ranked(
            ("b", "2x64", True, 3, 2, 4.0, 0.96),
            ("a", "1x64", True, 2, 1, 6.0, 0.96),
            ("lucky", "1x32", False, 1, 1, 3.0, 0.97),  # ran once, so it ranks behind
            ("missed", "4x8", False, 0, 4, None, 0.81),
        ),
        ACCURACY,
    ).set_index("num_workers")
    counted = ["trial", "tried", "reached"]
    assert table[counted].to_numpy().tolist() == [["a", 2, 2], ["b", 1, 1], ["missed", 1, 0]]
    measured = ["seconds", "worker_seconds", "times_as_fast", "times_the_cost"]
    assert table.loc[2, measured].tolist() == pytest.approx([4.0, 8.0, 1.5, 8 / 6])
    assert table.loc[4, measured].isna().all()


@pytest.mark.parametrize(
    ("runs", "front"),
    [
        ([("a", 1, 4.0), ("b", 2, 3.0), ("c", 4, 1.6)], ["c", "b", "a"]),
        ([("a", 1, 4.0), ("b", 2, 2.0), ("c", 2, 2.5)], ["b"]),
        ([("a", 1, 2.0), ("b", 1, 2.0)], ["a", "b"]),
        ([("a", 1, None), ("b", 8, 9.0), ("c", 1, math.inf)], ["b"]),
        ([("a", 1, None)], []),
    ],
    ids=["trade-off", "equal cost but slower", "equal in both", "missed", "nothing reached"],
)
def test_pareto_front(runs, front):
    trials = pd.DataFrame(runs, columns=["trial", "num_workers", "time_to_target_s"])
    table = pareto_front(trials)
    assert list(table["trial"]) == front
    assert table["worker_seconds_to_target"].equals(
        table["num_workers"] * table["time_to_target_s"]
    )
