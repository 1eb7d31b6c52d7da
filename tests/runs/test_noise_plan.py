"""The plan of a study with one batch size: the noise of its gradients tells of the others."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybench.report.study import StudyResults, load
from raybench.scaling.fits import TargetPlan, fit_study, target_plans
from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums
from tests.runs.made_up import point, run_of, study_of, write

TARGET, BATCH = 0.9, 64
NEEDED, CRITICAL = 4000, 256
"""Samples to the target at small batches, and where they double."""


def step(spec: RunSpec, repeat: int) -> float:
    wire = 0.02 if spec.num_workers > 1 else 0.0
    compute = 0.004 + spec.batch_size_per_worker / 2000
    return math.hypot(compute, wire) * (1.0, 1.02, 0.98)[repeat % 3]


def noise(spec: RunSpec) -> NoiseSums | None:
    """Return the sums of a hundred steps whose noise scale is CRITICAL; one worker has none."""
    if spec.num_workers == 1:
        return None
    return NoiseSums(
        num_steps=100,
        gradient=100.0,
        noise=100.0 * CRITICAL,
        gradient_squares=100.0,
        noise_squares=100.0 * CRITICAL**2,
        products=100.0 * CRITICAL,
    )


def needed(batch: float) -> float:
    return NEEDED * (1 + batch / CRITICAL)


def results_of(path: Path, *, has_noise: bool, sizes: list[int], misses: int = 0) -> StudyResults:
    """Return a study in strong scaling whose runs reach the target as the law of samples says."""
    objective = {"kind": "best_at_budget", "target": TARGET, "max_train_seconds": 600.0}
    study = study_of(
        scaling="strong",
        num_workers=[1, 2, 4],
        batch_sizes=sizes,
        repeats=3,
        base={"objective": objective},
    )
    runs, curves = run_of(study, step)
    for name, run in runs.items():
        batch = run.spec.global_batch_size
        rate = batch / step(run.spec, int(name[-1]))
        number, is_good = math.ceil(needed(batch) / 100) + 5, batch != misses
        curves[name] = [
            point(
                i,
                rate,
                samples=100 * (i + 1),
                train_s=100 * (i + 1) / rate,
                epoch=(i + 1) / 10,
                value=TARGET if is_good and 100 * (i + 1) >= needed(batch) else 0.5,
                noise_scale=noise(run.spec) if has_noise else None,
            )
            for i in range(number)
        ]
        reached = next((one for one in curves[name] if one.value >= TARGET), None)
        runs[name] = replace(
            run, time_to_target_s=reached.train_s if reached else None, samples=100 * number
        )
    return load(write(path / "made_up", study, runs, curves))


def plan_of(results: StudyResults) -> TargetPlan:
    (one,) = target_plans(results, fit_study(results, "8"))
    return one


@pytest.fixture(scope="module")
def one_size(tmp_path_factory: pytest.TempPathFactory) -> TargetPlan:
    folder = tmp_path_factory.mktemp("one")
    return plan_of(results_of(folder, has_noise=True, sizes=[BATCH]))


def test_one_batch_size_and_the_noise_make_a_plan(one_size: TargetPlan) -> None:
    assert set(one_size.table["global_batch_size"]) == {16, 32, 64, 128, 256}
    assert set(one_size.table["num_workers"]) == {1, 2, 4, 8}
    for row in one_size.table.to_dict("records"):
        # Evaluations are 100 samples apart.
        assert row["samples"] == pytest.approx(needed(row["global_batch_size"]), rel=0.05)
        assert row["extrapolated"] == (row["global_batch_size"] != BATCH)
    assert list(one_size.answers["answer"]) == ["fastest", "cheapest"]


def test_what_was_run_stands_beside_it_and_the_rest_is_said_to_be_no_measurement(
    one_size: TargetPlan,
) -> None:
    measured = one_size.table[one_size.table["measured_s"].notna()]
    assert set(measured["global_batch_size"]) == {BATCH}
    assert np.median(np.abs(measured["error"])) < 0.1
    (sentence,) = one_size.sentences
    assert "Of one batch size, 64," in sentence
    assert "within a factor of three" in sentence


def test_farther_from_what_was_run_the_plan_is_less_sure(one_size: TargetPlan) -> None:
    alone = one_size.table[one_size.table["num_workers"] == 1].set_index("global_batch_size")
    width = np.log(alone["high_s"] / alone["low_s"])
    assert width[256] > width[128] > width[64]


def test_without_noise_one_batch_size_makes_no_plan(tmp_path: Path) -> None:
    one = plan_of(results_of(tmp_path, has_noise=False, sizes=[BATCH]))
    assert one.sentences[0].startswith("No plan: samples to target: two batch sizes or more")
    assert one.table.empty


def test_a_batch_size_that_missed_and_what_lies_beyond_it_are_not_planned_with(
    tmp_path: Path,
) -> None:
    one = plan_of(results_of(tmp_path, has_noise=True, sizes=[BATCH, 128], misses=128))
    assert set(one.table["global_batch_size"]) == {16, 32, 64}


def test_two_batch_sizes_are_fitted_and_need_no_noise(tmp_path: Path) -> None:
    one = plan_of(results_of(tmp_path, has_noise=True, sizes=[BATCH, 256]))
    assert set(one.table["global_batch_size"]) == {BATCH, 256}
    assert "noise" not in one.sentences[0]
