"""What to buy: predicted seconds and money, the answers among them, and how they fared."""

import math

import numpy as np
import pandas as pd
import pytest

from raybench.scaling.plan import StepSeconds, answers, plan, with_measured
from raybench.scaling.samples_to_target import fit
from raybench.spec.errors import UserError

BATCHES = [32, 64, 128, 256, 512, 1024]
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 2)]


def true_samples(batch):
    return 1e6 * (1 + np.asarray(batch) / 400)


def true_step(workers, nodes, own):
    return 0.01 + 2e-4 * own + 0.004 * (workers > 1) + 0.01 * (nodes > 1)


def steps(workers, nodes, own, factor=1.0):
    seconds = factor * true_step(workers, nodes, own)
    return StepSeconds(seconds, 0.9 * seconds, 1.1 * seconds)


def curve(noise=0.03, **more):
    rng = np.random.default_rng(0)
    batch = np.repeat(BATCHES, 5)
    samples = true_samples(batch) * np.exp(noise * rng.standard_normal(len(batch)))
    table = pd.DataFrame({"batch_size": batch, "samples_to_target": samples})
    return fit(pd.concat([table, pd.DataFrame(more)]))


def table(prices=None, **more):
    kinds = {"slow": steps, "fast": lambda *cell: steps(*cell, factor=0.5)}
    options = {"layouts": LAYOUTS, "batch_sizes": BATCHES, "prices": prices} | more
    return plan(curve(), kinds, **options)


def measured(noise=0.02, seed=0):
    """Three runs of each cell, as they would take in truth."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "gpu_type": kind,
            "num_workers": workers,
            "num_nodes": nodes,
            "global_batch_size": batch,
            "seconds_to_target": float(
                true_samples(batch)
                / batch
                * factor
                * true_step(workers, nodes, batch // workers)
                * np.exp(noise * rng.standard_normal())
            ),
        }
        for kind, factor in (("slow", 1.0), ("fast", 0.5))
        for workers, nodes in LAYOUTS
        for batch in BATCHES
        for _ in range(3)
    ]
    return pd.DataFrame(rows)


PRICES = {"slow": 1.0, "fast": 3.0}


def test_every_cell_has_its_time_and_price() -> None:
    found = table(PRICES)
    assert len(found) == 2 * len(LAYOUTS) * len(BATCHES)
    truth = [
        true_samples(row.global_batch_size)
        / row.global_batch_size
        * true_step(row.num_workers, row.num_nodes, row.batch_size_per_worker)
        * (1.0 if row.gpu_type == "slow" else 0.5)
        for row in found.itertuples()
    ]
    assert found["seconds"].to_numpy() == pytest.approx(truth, rel=0.06)
    assert found["low_s"].lt(truth).mean() > 0.9
    assert found["high_s"].gt(truth).mean() > 0.9
    assert (found["batch_size_per_worker"] * found["num_workers"]).equals(
        found["global_batch_size"]
    )
    hours = found["seconds"] * found["num_workers"] / 3600
    assert found["worker_seconds"].to_numpy() == pytest.approx(3600 * hours)
    assert found["money"].to_numpy() == pytest.approx(hours * found["gpu_type"].map(PRICES))
    assert (found["low_money"] < found["money"]).all()


def test_both_doubts_are_in_the_interval() -> None:
    sure, unsure = (
        plan(
            curve(noise=noise),
            {"gpu": lambda *cell: StepSeconds(1.0, 0.8, 1.25)},
            layouts=[(1, 1)],
            batch_sizes=[128],
        ).iloc[0]
        for noise in (0.001, 0.3)
    )
    assert sure["high_s"] / sure["seconds"] == pytest.approx(1.25, rel=0.02)
    assert sure["low_s"] / sure["seconds"] == pytest.approx(0.8, rel=0.02)
    assert unsure["high_s"] / unsure["seconds"] > 1.3


def test_batches_that_do_not_divide_fit_or_arrive_have_no_row() -> None:
    found = table(layouts=[(1, 1), (3, 1)], batch_sizes=[2, 96, 128])
    asked = found[["num_workers", "global_batch_size"]].drop_duplicates().to_numpy().tolist()
    assert asked == [[1, 2], [1, 96], [1, 128], [3, 96]]
    assert found["extrapolated"].tolist() == [True, False, False, False] * 2
    never = plan(
        curve(batch_size=[2048] * 3, samples_spent=[1e8] * 3),
        {"gpu": steps},
        layouts=[(1, 1)],
        batch_sizes=[1024, 2048, 4096],
    )
    assert never["global_batch_size"].tolist() == [1024]
    with pytest.raises(UserError, match="no batch size divides"):
        table(layouts=[(3, 1)], batch_sizes=[64])


def test_the_answers_are_near_the_truth() -> None:
    """The rows taken are measured: within 5 % (the tie) and noise of the best in each answer."""
    judged = with_measured(table(PRICES), measured())
    found = answers(judged, budget=0.2).set_index("answer")
    assert list(found.index) == ["fastest", "cheapest", "fastest within the budget"]
    assert found.loc["fastest", "gpu_type"] == "fast"
    assert found.loc["cheapest", "gpu_type"] == "slow"
    assert found.loc["cheapest", "num_workers"] == 1
    assert (found["loss"] <= 0.08).all()
    assert found["kept"].all()
    within = found.loc["fastest within the budget"]
    assert within["money"] <= 0.2
    assert found.loc["fastest", "seconds"] < within["seconds"] < found.loc["cheapest", "seconds"]
    assert judged["error"].abs().median() < 0.04
    assert judged["within"].mean() > 0.9


def test_a_trivial_gain_buys_no_workers() -> None:
    """Two workers are 2 % faster than one: one it is; at 20 % two."""
    for gain, workers in ((0.02, 1), (0.2, 2)):

        def flat(k, nodes, own, gain=gain):
            seconds = (1 - gain) if k == 2 else 1.0
            return StepSeconds(seconds, seconds, seconds)

        found = plan(curve(), {"gpu": flat}, layouts=[(1, 1), (2, 1)], batch_sizes=[128])
        assert answers(found)["num_workers"].tolist() == [workers, 1]


def test_without_prices_worker_seconds_are_the_cost() -> None:
    found = answers(table(), budget=1e3)
    assert math.isnan(found["money"].iloc[0])
    assert found.loc[2, "worker_seconds"] <= 1e3
    assert found["answer"].tolist() == ["fastest", "cheapest", "fastest within the budget"]
    assert "loss" not in found.columns


def test_nothing_within_the_budget_has_no_row() -> None:
    assert answers(table(PRICES), budget=1e-3)["answer"].tolist() == ["fastest", "cheapest"]


def test_a_prediction_that_was_wrong_shows_its_loss() -> None:
    """The model takes four workers for fast; the runs know better."""
    runs = measured(noise=0.0)
    runs.loc[runs["num_workers"] == 4, "seconds_to_target"] *= 3
    judged = with_measured(table(PRICES), runs)
    found = answers(judged, budget=0.3).set_index("answer")
    fastest = found.loc["fastest"]
    assert fastest["num_workers"] == 4
    assert fastest["loss"] == pytest.approx(fastest["measured_s"] / judged["measured_s"].min() - 1)
    assert fastest["loss"] > 0.5
    assert fastest["error"] == pytest.approx(-2 / 3, abs=0.03)
    assert not fastest["within"]
    assert not found.loc["fastest within the budget", "kept"]


def test_misses_and_cells_without_runs_are_told_apart() -> None:
    runs = measured()
    cell = (runs["num_workers"] == 1) & (runs["global_batch_size"] == 32)
    runs = runs[~((runs["gpu_type"] == "slow") & cell)]
    runs.loc[(runs["gpu_type"] == "fast") & cell, "seconds_to_target"] = [10.0, np.nan, np.nan]
    judged = with_measured(table(), runs).set_index(
        ["gpu_type", "num_workers", "global_batch_size"]
    )
    slow, fast = judged.loc[("slow", 1, 32)], judged.loc[("fast", 1, 32)]
    assert math.isnan(slow["measured_s"])
    assert slow["within"] is pd.NA
    assert (fast["measured_runs"], fast["measured_reached"]) == (3, 1)
    assert fast["measured_s"] == math.inf


def test_measured_runs_may_leave_out_what_a_plan_has_one_of() -> None:
    one = plan(curve(), {"gpu": steps}, layouts=[(1, 1), (2, 1)], batch_sizes=[128])
    plain = pd.DataFrame(
        {"num_workers": [1], "global_batch_size": [128], "seconds_to_target": [5.0]}
    )
    assert with_measured(one, plain)["measured_s"].dropna().tolist() == [5.0]


def test_every_kind_of_worker_needs_a_price() -> None:
    with pytest.raises(UserError, match="no price for 'fast'"):
        table({"slow": 1.0})
