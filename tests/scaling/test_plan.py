"""Plans of machines to rent: predicted seconds and costs, the best rows and their errors; and plans
of studies whose steps follow a known law."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from raybench.report.study import StudyResults, load
from raybench.scaling import plan as plans
from raybench.scaling.fits import fit_study
from raybench.scaling.measurements import NINE_OF_TEN, Cell, Predicted
from raybench.scaling.plan import (
    IN_TIME,
    WITHIN,
    Offer,
    Overhead,
    TargetPlan,
    answers,
    by_worker,
    chance,
    measured_runs,
    offers_of,
    plan,
    predicted_steps,
    run_spread,
    target_plans,
    with_measured,
)
from raybench.scaling.samples_to_target import fit
from raybench.spec.errors import ErrorCode
from raybench.spec.scaling_study import MachinePrice
from tests.refusals import refused
from tests.runs.made_up import law, reaching, run_of, study_of, write

pytestmark = pytest.mark.usefixtures("without_pollux")

BATCHES = [32, 64, 128, 256, 512, 1024]
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 2)]
FACTORS = {"slow": 1.0, "fast": 0.5}
"""Factors on the seconds of a step, by kind of worker."""


def true_samples(batch):
    return 1e6 * (1 + np.asarray(batch) / 400)


def true_step(workers, nodes, batch):
    return 0.01 + 2e-4 * batch + 0.004 * (workers > 1) + 0.01 * (nodes > 1)


def steps(cells, factor=1.0):
    times = [factor * true_step(*cell) for cell in cells]
    return [Predicted(seconds, 0.9 * seconds, 1.1 * seconds) for seconds in times]


def curve(noise=0.03, **changes):
    rng = np.random.default_rng(0)
    batch = np.repeat(BATCHES, 5)
    samples = true_samples(batch) * np.exp(noise * rng.standard_normal(len(batch)))
    table = pd.DataFrame({"batch_size": batch, "samples_to_target": samples})
    return fit(pd.concat([table, pd.DataFrame(changes)]))


def table(prices=None, **changes):
    kinds = {kind: partial(steps, factor=factor) for kind, factor in FACTORS.items()}
    options = {"layouts": LAYOUTS, "batch_sizes": BATCHES} | changes
    offers = prices and [by_worker(*item) for item in prices.items()]
    return plan(curve(), kinds, offers=offers, **options)


def true_seconds(kind, workers, nodes, batch):
    step_s = FACTORS[kind] * true_step(workers, nodes, batch // workers)
    return float(true_samples(batch) / batch * step_s)


def measured(noise=0.02, seed=0):
    """Return a table of three true runs of each cell."""
    rng = np.random.default_rng(seed)
    cells = [
        (kind, *layout, batch)
        for kind in FACTORS
        for layout in LAYOUTS
        for batch in BATCHES
        for _ in range(3)
    ]
    work_s = [true_seconds(*cell) * np.exp(noise * rng.standard_normal()) for cell in cells]
    return pd.DataFrame(cells, columns=plans.KEYS).assign(work_s=work_s)


PRICES = {"slow": 1.0, "fast": 3.0}


def test_every_cell_has_a_time_and_a_price():
    rows = table(PRICES)
    assert len(rows) == 2 * len(LAYOUTS) * len(BATCHES)
    truth = [true_seconds(*row) for row in rows[plans.KEYS].itertuples(index=False)]
    assert rows["seconds"].to_numpy() == pytest.approx(truth, rel=0.06)
    assert rows["low_s"].lt(truth).mean() > 0.9
    assert rows["high_s"].gt(truth).mean() > 0.9
    assert (rows["batch_size_per_worker"] * rows["num_workers"]).equals(rows["global_batch_size"])
    hours = rows["seconds"] * rows["num_workers"] / 3600
    assert rows["cost"].to_numpy() == pytest.approx(hours * rows["gpu_type"].map(PRICES))
    assert (rows["low_cost"] < rows["cost"]).all()
    assert table()["cost"].to_numpy() == pytest.approx(3600 * hours)


def test_the_interval_combines_the_errors_of_samples_steps_and_runs():
    def interval(noise, run_spread):
        kinds = {"gpu": lambda cells: [Predicted(1.0, 0.8, 1.25)] * len(cells)}
        options = {"layouts": [(1, 1)], "batch_sizes": [128], "run_spread": run_spread}
        row = plan(curve(noise=noise), kinds, **options).iloc[0]
        return row["low_s"] / row["seconds"], row["high_s"] / row["seconds"]

    assert interval(0.001, 0.0) == pytest.approx((0.8, 1.25), rel=0.02)
    low, high = interval(0.6, 0.0)
    assert low < 0.75
    assert high > 1.35
    assert interval(0.6, None)[1] > 2, "computed from the spread of the samples"


def test_invalid_batch_sizes_have_no_row():
    rows = table(layouts=[(1, 1), (3, 1)], batch_sizes=[2, 96, 128])
    cells = rows[["num_workers", "global_batch_size"]].drop_duplicates().to_numpy().tolist()
    assert cells == [[1, 2], [1, 96], [1, 128], [3, 96]]
    assert rows["extrapolated"].tolist() == [True, False, False, False] * 2
    beyond_misses = plan(
        curve(batch_size=[2048] * 3),
        {"gpu": steps},
        layouts=[(1, 1)],
        batch_sizes=[1024, 2048, 4096],
    )
    assert beyond_misses["global_batch_size"].tolist() == [1024]
    with refused(ErrorCode.INVALID_VALUE):
        table(layouts=[(3, 1)], batch_sizes=[64])


def test_the_answers_are_near_the_true_optimum():
    """Chosen rows are within the 5 % tie margin and noise of the measured optimum."""
    judged = with_measured(table(PRICES), measured())
    best = answers(judged, budget=0.2, deadline_s=1e4).set_index("answer")
    assert list(best.index) == ["fastest", "cheapest", WITHIN, IN_TIME]
    assert best.loc[IN_TIME, "seconds"] <= 1e4
    assert best.loc["fastest", "gpu_type"] == "fast"
    assert best.loc["cheapest", "gpu_type"] == "slow"
    assert best.loc["cheapest", "num_workers"] == 1
    assert (best["loss"] <= 0.08).all()
    within = best.loc["fastest within the budget"]
    assert within["cost"] <= 0.2
    assert best.loc["cheapest", "keeps_budget"] > 0.99 > 0.5 < within["keeps_budget"]
    assert best.loc["fastest", "seconds"] < within["seconds"] < best.loc["cheapest", "seconds"]
    assert judged["error"].abs().median() < 0.04
    assert judged["within"].mean() > 0.9


def test_a_trivial_gain_adds_no_workers():
    """A second worker is used if it is 20 % faster, not if it is 2 % faster."""
    for gain, workers in ((0.02, 1), (0.2, 2)):

        def flat(cells, gain=gain):
            return [Predicted(*[1 - gain if k == 2 else 1.0] * 3) for k, _, _ in cells]

        rows = plan(curve(), {"gpu": flat}, layouts=[(1, 1), (2, 1)], batch_sizes=[128])
        assert answers(rows)["num_workers"].tolist() == [workers, 1]


def test_a_prediction_that_was_wrong_shows_its_loss():
    """The model predicts that four workers are fast, but the runs are slow."""
    runs = measured(noise=0.0)
    runs.loc[runs["num_workers"] == 4, "work_s"] *= 3
    judged = with_measured(table(PRICES), runs)
    best = answers(judged, budget=0.3).set_index("answer")
    fastest = best.loc["fastest"]
    assert fastest["num_workers"] == 4
    assert fastest["loss"] == pytest.approx(fastest["measured_s"] / judged["measured_s"].min() - 1)
    assert fastest["loss"] > 0.5
    assert fastest["error"] == pytest.approx(-2 / 3, abs=0.03)
    assert not fastest["within"]


def test_misses_differ_from_cells_without_runs():
    runs = measured()
    cell = (runs["num_workers"] == 1) & (runs["global_batch_size"] == 32)
    runs = runs[~((runs["gpu_type"] == "slow") & cell)]
    runs.loc[(runs["gpu_type"] == "fast") & cell, "work_s"] = [10.0, np.nan, np.nan]
    judged = with_measured(table(), runs).set_index(
        ["gpu_type", "num_workers", "global_batch_size"]
    )
    slow, fast = judged.loc[("slow", 1, 32)], judged.loc[("fast", 1, 32)]
    assert math.isnan(slow["measured_s"])
    assert slow["within"] is pd.NA
    assert fast["measured_s"] == math.inf


MACHINE = {"accelerator": "A100", "workers": 4, "price": 36.0, "startup_s": 100.0}


def priced(**terms):
    """Return the rows of 1 and 8 workers at batch 128, with steps of one second."""
    offer = Offer("p4", MachinePrice(**MACHINE | terms))
    options = {"layouts": [(1, 1), (8, 4)], "batch_sizes": [128], "offers": [offer]}
    kinds = {"A100": lambda cells: [Predicted(1.0, 0.9, 1.1)] * len(cells)}
    return plan(curve(), kinds, overhead=lambda kind, k: Overhead(10.0 * k, 1e-3), **options)


def test_a_bill_covers_whole_machines_from_start_to_target():
    single, parallel = priced(billing_step_s=3600.0).to_dict("records")
    for row, machines in ((single, 1), (parallel, 2)):
        job_s = 100 + 10 * row["num_workers"] + row["samples"] / 128 + row["samples"] / 1000
        assert row["seconds"] == pytest.approx(job_s)
        assert (row["machines"], row["num_nodes"]) == (machines, machines)
        assert row["cost"] == pytest.approx(machines * 36 * math.ceil(job_s / 3600))
    by_second = priced()
    assert by_second["cost"].to_numpy() == pytest.approx(
        np.ceil(by_second["seconds"]) * [0.01, 0.02]
    )


def test_the_probability_matches_simulated_jobs():
    """Samples and step times are drawn from their intervals; jobs are billed by the minute."""
    samples = curve(noise=0.3)
    need = samples.predict([128]).iloc[0]
    step_s = {"A100": lambda cells: [Predicted(1.0, 0.8, 1.25)] * len(cells)}
    offer = Offer("p4", MachinePrice(**MACHINE, billing_step_s=60.0))
    (row,) = plan(samples, step_s, layouts=[(1, 1)], batch_sizes=[128], offers=[offer]).to_dict(
        "records"
    )
    rng, number = np.random.default_rng(0), 200_000
    sides = rng.standard_normal((3, number))
    log_need = sides[0] * np.where(
        sides[0] < 0, np.log(need["samples"] / need["low"]), np.log(need["high"] / need["samples"])
    )
    log_step = sides[1] * np.log(1.25) + sides[2] * NINE_OF_TEN * samples.spread
    drawn = 100 + need["samples"] / 128 * np.exp((log_need + log_step) / NINE_OF_TEN)
    bills = 36 * np.ceil(drawn / 60) * 60 / 3600
    for share in (0.7, 0.95, 1.05, 1.4):
        limit, budget = share * row["seconds"], share * row["cost"]
        assert chance(row, seconds=limit) == pytest.approx(np.mean(drawn <= limit), abs=0.02)
        assert chance(row, budget=budget) == pytest.approx(np.mean(bills <= budget), abs=0.02)
    assert chance(row, seconds=row["fixed_s"]) == chance(row, budget=0.0) == 0.0
    assert chance(row) == 1.0


def test_prices_need_a_measured_accelerator():
    with refused(ErrorCode.UNKNOWN_NAME, "A100", "CPU"):
        offers_of(["CPU"], {"p4": MachinePrice(**MACHINE)})
    (cpu,) = offers_of(["CPU"], {"c7": MachinePrice(workers=2, price=1.0)})
    assert (cpu.kind, cpu.machines(3)) == ("CPU", 2)


def plan_of(results: StudyResults) -> TargetPlan:
    (target_plan,) = target_plans([results], fit_study(results, predict="8"))
    return target_plan


def test_runs_that_diverged_count_as_misses_in_the_plan(tmp_path):
    """Two of three repeats diverge at one batch size, so it is not planned."""
    results = reaching(tmp_path, batch_sizes=[32, 64, 128, 256], epoch=1100)
    assert 512 in set(plan_of(results).table["global_batch_size"])
    records = dict(results.runs)
    for name, run in records.items():
        if run.spec.global_batch_size == 512 and not name.endswith("r0"):
            diverged = {"state": "failed", "failure": "nan", "stop": None}
            records[name] = replace(run, **diverged, time_to_target_s=None, samples=0)
    curves = {name: list(results.evaluations[name]) for name in records}
    lost = load(write(tmp_path / "lost", results.scaling_study, records, curves))
    runs = measured_runs(lost)
    at_512 = runs[runs["global_batch_size"] == 512]
    assert len(at_512) == len(measured_runs(results).query("global_batch_size == 512"))
    assert at_512["work_s"].isna().mean() == pytest.approx(2 / 3)
    assert 512 not in set(plan_of(lost).table["global_batch_size"])


def missed(folder: Path) -> StudyResults:
    """Return a study whose runs missed the target."""
    objective = {"kind": "best_at_budget", "target": 0.99, "max_train_seconds": 600.0}
    study = study_of(base={"objective": objective})
    return load(write(folder / "missed", study, *run_of(study, law, time_to_target_s=None)))


@pytest.mark.parametrize(
    "study", [missed, partial(reaching, scaling="strong", batch_sizes=[64])], ids=["missed", "one"]
)
def test_a_plan_needs_two_batch_sizes_that_reached_the_target(study, tmp_path):
    none = plan_of(study(tmp_path))
    assert none.sentences[0].startswith("No plan: ")
    assert none.table.empty
    assert none.answers.empty


def test_nine_of_ten_new_runs_lie_within_the_interval_of_a_few():
    """Runs scatter by 20 % around the unknown median of their cell."""
    rng, within, cells, repeats = np.random.default_rng(0), 0, 2, 3
    keys = dict.fromkeys(("gpu_type", "num_workers", "num_nodes"), 1)
    table = pd.DataFrame({**keys, "global_batch_size": np.repeat(range(cells), repeats)})
    for _ in range(200):
        logs = rng.normal(size=cells)[table["global_batch_size"]] + 0.2 * rng.normal(
            size=len(table)
        )
        spread = run_spread(table.assign(work_s=np.exp(logs)))
        within += abs(0.2 * rng.normal()) <= spread
    assert 0.86 <= within / 200 <= 0.94
    assert run_spread(table.drop_duplicates().assign(work_s=1.0)) is None, "there are no repeats"


@pytest.mark.parametrize(("batch", "passes"), [(8, 4), (10, 2), (7, 1)])
def test_the_time_of_a_step_covers_all_passes(batch, passes):
    """The measured step has four passes; a batch that they do not divide takes fewer."""
    predicted = []

    def predict(cells: list[Cell]) -> list[SimpleNamespace]:
        predicted.extend(cells)
        return [SimpleNamespace(step_s=1.0, low_s=1.0, high_s=1.0)]

    model = SimpleNamespace(observed=SimpleNamespace(cells=[Cell(1, 1, 8, 4)]), predict=predict)
    predicted_steps(model, [(2, 1, batch)])
    assert predicted == [Cell(2, 1, batch // passes, passes)]
