"""Models and plans of a study whose steps follow a known law."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybench.report.study import StudyResults, load
from raybench.scaling.fit_command import check_predict, median_error
from raybench.scaling.fits import (
    fit_study,
    measured_runs,
    measurements,
    target_plans,
)
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from tests.runs.made_up import point, run_of, study_of, write

TARGET = 0.9
NEEDED, CRITICAL = 4000, 256
"""Samples to the target at small batches, and where they double."""


def step(spec: RunSpec, repeat: int) -> float:
    wire = 0.02 if spec.num_workers > 1 else 0.0
    compute = 0.004 + spec.batch_size_per_worker / 2000
    return math.hypot(compute, wire) * (1.0, 1.02, 0.98)[repeat % 3]


def folder_of(path: Path, **content: Any) -> StudyResults:
    """Return a study of 1, 2 and 4 workers; runs reach the target as the law of samples says."""
    objective = {"kind": "best_at_budget", "target": TARGET, "max_train_seconds": 600.0}
    usual = {"num_workers": [1, 2, 4], "batch_sizes": [32, 64, 128, 256], "repeats": 3}
    study = study_of(**(usual | {"base": {"objective": objective}} | content))
    runs, curves = run_of(study, step)
    for name, run in runs.items():
        batch = run.spec.global_batch_size
        need = NEEDED * (1 + batch / CRITICAL)
        rate = batch / step(run.spec, int(name[-1]))
        number = math.ceil(need / 100) + 5
        curves[name] = [
            point(
                i,
                rate,
                samples=100 * (i + 1),
                train_s=100 * (i + 1) / rate,
                epoch=(i + 1) / 11,  # no batch is larger
                value=TARGET if 100 * (i + 1) >= need else 0.5,
            )
            for i in range(number)
        ]
        reached = next(one for one in curves[name] if one.value >= TARGET)
        runs[name] = replace(run, time_to_target_s=reached.train_s, samples=100 * number)
    return load(write(path / "made_up", study, runs, curves))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> StudyResults:
    return folder_of(tmp_path_factory.mktemp("study"))


def test_every_repeat_is_a_measurement_of_its_cell(results) -> None:
    (rows,) = measurements(results).groups.values()
    assert len(rows) == len(results.runs)
    for cell, seconds in rows:
        spec = RunSpec(
            num_workers=cell.num_workers, batch_size_per_worker=cell.batch_size_per_worker
        )
        assert any(seconds == pytest.approx(step(spec, repeat)) for repeat in range(3))


def test_the_model_predicts_the_law_and_says_how_good_it_is(results) -> None:
    (fitted,) = fit_study(results, "8,16")
    assert median_error(fitted.left_out) < 0.1
    assert "Leave-one-out error: median" in " ".join(fitted.words())
    table = fitted.predictions
    assert set(table["num_workers"]) == {8, 16}
    assert table["extrapolated"].all()
    for row in table[table["batch_size_per_worker"] == 128].to_dict("records"):
        spec = RunSpec(num_workers=row["num_workers"], batch_size_per_worker=128)
        assert row["low_s"] < step(spec, 0) < row["high_s"]


def test_unasked_the_next_doublings_are_predicted(results) -> None:
    (fitted,) = fit_study(results, None)
    assert {cell.num_workers for cell in fitted.asked} == {8, 16}


def test_a_series_of_one_cell_has_no_model(tmp_path) -> None:
    study = study_of(num_workers=[1], scaling="weak")
    results = load(write(tmp_path / "one", study, *run_of(study, step)))
    assert fit_study(results, None) == []


def test_frameworks_are_series_of_their_own(tmp_path) -> None:
    study = study_of(axes={"framework": ["torch", "tensorflow"]})
    results = load(write(tmp_path / "two", study, *run_of(study, step)))
    assert [key[0] for key in measurements(results).groups] == [
        "torch, mnist_small",
        "tensorflow, mnist_small",
    ]


def test_a_batch_that_no_step_had_is_not_fitted(tmp_path) -> None:
    """An epoch has 1,000 samples: a step of 4 x 256 has those."""
    study = study_of(num_workers=[1, 2, 4], batch_sizes=[64, 256], scaling="weak")
    results = load(write(tmp_path / "large", study, *run_of(study, step)))
    (rows,) = measurements(results).groups.values()
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 256} == {1, 2}
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 64} == {1, 2, 4}


@pytest.mark.parametrize("asked", ["nowhere.csv", "0", "8,,16"])
def test_what_cannot_be_predicted_is_refused_before_anything_runs(asked: str) -> None:
    with pytest.raises(UserError):
        check_predict(asked)


def test_runs_that_diverged_count_as_misses_in_the_plan(tmp_path) -> None:
    """Two of three repeats diverge at one batch size: its target is out of reach."""
    results = folder_of(tmp_path)
    assert (
        target_plans(results, fit_study(results, "8"))[0].table["global_batch_size"] == 512
    ).any()
    study, records = results.scaling_study, dict(results.runs)
    for name, run in records.items():
        if run.spec.global_batch_size == 512 and not name.endswith("r0"):
            gone: dict[str, Any] = {"state": "failed", "failure": "nan", "stop": None}
            records[name] = replace(run, **gone, time_to_target_s=None, samples=0)
    curves = {name: list(results.evaluations[name]) for name in records}
    lost = load(write(tmp_path / "lost", study, records, curves))
    runs = measured_runs(lost)
    here = runs[runs["global_batch_size"] == 512]
    assert len(here) == len(measured_runs(results).query("global_batch_size == 512"))
    assert here["seconds_to_target"].isna().mean() == pytest.approx(2 / 3)
    (one,) = target_plans(lost, fit_study(lost, "8"))
    assert not (one.table["global_batch_size"] == 512).any()


def test_the_plan_stands_beside_what_was_measured(results) -> None:
    (one,) = target_plans(results, fit_study(results, "8"))
    table = one.table
    assert set(table["num_workers"]) == {1, 2, 4, 8}
    measured = table[table["measured_s"].notna()]
    assert len(measured) >= 10
    assert np.median(np.abs(measured["error"])) < 0.1
    assert table[table["num_workers"] == 8]["measured_s"].isna().all()
    assert list(one.answers["answer"]) == ["fastest", "cheapest"]
    assert one.answers["loss"].dropna().between(-0.2, 0.2).all()
    assert "critical batch" in one.sentences[0]


def test_prices_and_a_budget_make_it_money(tmp_path) -> None:
    results = folder_of(tmp_path, price=3.6, budget=0.02)
    (one,) = target_plans(results, fit_study(results, "8"))
    np.testing.assert_allclose(
        one.table["money"], one.table["seconds"] * one.table["num_workers"] / 1000
    )
    within = one.answers[one.answers["answer"] == "fastest within the budget"]
    assert (within["money"] <= 0.02).all()
    assert len(within) == 1


def test_without_a_target_there_is_no_plan(tmp_path) -> None:
    study = study_of()
    results = load(write(tmp_path / "none", study, *run_of(study, step)))
    assert target_plans(results, fit_study(results, None)) == []


def test_a_target_that_nobody_reached_is_said(tmp_path) -> None:
    objective = {"kind": "best_at_budget", "target": 0.99, "max_train_seconds": 600.0}
    study = study_of(base={"objective": objective})
    runs, curves = run_of(study, step, time_to_target_s=None)
    results = load(write(tmp_path / "missed", study, runs, curves))
    (one,) = target_plans(results, fit_study(results, None))
    assert one.sentences[0].startswith(
        "No plan: samples to target: at no batch size did most runs reach"
    )
    assert one.answers.empty
