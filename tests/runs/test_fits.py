"""Models and plans of a study whose steps follow a known law, and `--predict FILE.csv`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raybench.report.study import StudyResults, load
from raybench.scaling.fit_command import median_error
from raybench.scaling.fits import (
    critical_batches,
    fit_study,
    measured_runs,
    measurements,
    noise_lines,
    predicted_steps,
    run_spread,
    target_plans,
)
from raybench.scaling.measurements import Cell
from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums, NoiseTerms
from tests.refusals import numbers_in
from tests.runs.made_up import law, reaching, run_of, study_of, write

pytestmark = pytest.mark.usefixtures("without_pollux")

SIZES = [32, 64, 128, 256]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> StudyResults:
    return reaching(tmp_path_factory.mktemp("study"), batch_sizes=SIZES, epoch=1100)


def scaling_results(folder: Path, **content: Any) -> StudyResults:
    study = study_of(**content)
    return load(write(folder / "made", study, *run_of(study, law)))


def test_the_fit_recovers_the_law_and_its_error(results) -> None:
    (fitted,) = fit_study(results, predict="8,16")
    assert median_error(fitted.left_out) < 0.1
    assert "Leave-one-out" in " ".join(fitted.sentences())
    table = fitted.predictions
    assert set(table["num_workers"]) == {8, 16}
    assert table["extrapolated"].all()
    for row in table[table["batch_size_per_worker"] == 128].to_dict("records"):
        spec = RunSpec(num_workers=row["num_workers"], batch_size_per_worker=128)
        assert row["low_s"] < law(spec, 0) < row["high_s"]


def test_a_series_of_one_cell_is_not_fitted(tmp_path) -> None:
    results = scaling_results(tmp_path, num_workers=[1], scaling="weak")
    assert fit_study(results, predict=None) == []


def test_a_batch_size_without_steps_is_not_fitted(tmp_path) -> None:
    """An epoch has 1,000 samples, less than a step of 4 x 256."""
    results = scaling_results(
        tmp_path, num_workers=[1, 2, 4], batch_sizes=[64, 256], scaling="weak"
    )
    (rows,) = measurements(results).values()
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 256} == {1, 2}
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 64} == {1, 2, 4}


def test_runs_that_diverged_count_as_misses_in_the_plan(results, tmp_path) -> None:
    """Two of three repeats diverge at one batch size, so it is not planned."""
    assert (
        target_plans([results], fit_study(results, predict="8"))[0].table["global_batch_size"]
        == 512
    ).any()
    study, records = results.scaling_study, dict(results.runs)
    for name, run in records.items():
        if run.spec.global_batch_size == 512 and not name.endswith("r0"):
            diverged: dict[str, Any] = {"state": "failed", "failure": "nan", "stop": None}
            records[name] = replace(run, **diverged, time_to_target_s=None, samples=0)
    curves = {name: list(results.evaluations[name]) for name in records}
    lost = load(write(tmp_path / "lost", study, records, curves))
    runs = measured_runs(lost)
    at_512 = runs[runs["global_batch_size"] == 512]
    assert len(at_512) == len(measured_runs(results).query("global_batch_size == 512"))
    assert at_512["work_s"].isna().mean() == pytest.approx(2 / 3)
    (plan,) = target_plans([lost], fit_study(lost, predict="8"))
    assert not (plan.table["global_batch_size"] == 512).any()


def missed(folder: Path) -> StudyResults:
    """Return a study whose runs missed the target."""
    objective = {"kind": "best_at_budget", "target": 0.99, "max_train_seconds": 600.0}
    study = study_of(base={"objective": objective})
    return load(write(folder / "missed", study, *run_of(study, law, time_to_target_s=None)))


@pytest.mark.parametrize(
    "study", [missed, partial(reaching, scaling="strong", batch_sizes=[64])], ids=["missed", "one"]
)
def test_a_plan_needs_two_batch_sizes_that_reached_the_target(
    study: Callable[[Path], StudyResults], tmp_path: Path
) -> None:
    results = study(tmp_path)
    (plan,) = target_plans([results], fit_study(results, predict="8"))
    assert plan.sentences[0].startswith("No plan: ")
    assert plan.table.empty
    assert plan.answers.empty


def test_nine_of_ten_new_runs_lie_within_the_interval_of_a_few() -> None:
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
def test_the_time_of_a_step_covers_all_passes(batch: int, passes: int) -> None:
    """The measured step has four passes; a batch that they do not divide takes fewer."""
    predicted: list[Cell] = []

    def predict(cells: list[Cell]) -> list[SimpleNamespace]:
        predicted.extend(cells)
        return [SimpleNamespace(step_s=1.0, low_s=1.0, high_s=1.0)]

    model: Any = SimpleNamespace(
        observed=SimpleNamespace(cells=[Cell(1, 1, 8, 4)]), predict=predict
    )
    predicted_steps(model, [(2, 1, batch)])
    assert predicted == [Cell(2, 1, batch // passes, passes)]


OF_GRADIENTS = 50.0


def sums(rng: np.random.Generator) -> NoiseSums:
    """Return noise sums of a hundred steps whose noise scale is OF_GRADIENTS."""
    noise = NoiseSums.of(
        [
            NoiseTerms(gradient=2 + rng.normal(0, 0.1), noise=2 * OF_GRADIENTS + rng.normal(0, 1))
            for _ in range(100)
        ]
    )
    assert noise is not None
    return noise


def test_every_run_of_several_workers_estimates_the_noise_scale(tmp_path: Path) -> None:
    study, rng = study_of(scaling="weak"), np.random.default_rng(0)
    runs, curves = run_of(study)
    for name in ("0001-r0", "0001-r1"):
        curves[name] = [replace(point, noise_scale=sums(rng)) for point in curves[name]]
    results = load(write(tmp_path / "study", study, runs, curves))
    (values,) = critical_batches(results).values()
    assert len(values) == 2
    np.testing.assert_allclose(values, OF_GRADIENTS, rtol=0.05)
    (line,) = noise_lines(results)
    assert "critical batch" in line
    assert "(2 runs, " in line
    assert numbers_in(line)[0] == pytest.approx(OF_GRADIENTS, rel=0.05)
