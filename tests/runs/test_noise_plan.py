"""The noise of gradients: the critical batch that it tells, and plans of one batch size by it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybench.report.study import load
from raybench.scaling.fits import TargetPlan, critical_batches, fit_study, noise_lines, target_plans
from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums, NoiseTerms
from tests.runs.made_up import CRITICAL, needed, reaching, run_of, study_of, write

pytestmark = pytest.mark.usefixtures("without_pollux")

BATCH = 64


def noise(spec: RunSpec) -> NoiseSums | None:
    """Return the sums of a hundred steps whose noise scale is CRITICAL; one worker has none."""
    if spec.num_workers == 1:
        return None
    return NoiseSums(num_steps=100, gradient=100.0, noise=100.0 * CRITICAL)


def plan_of(folder: Path, *sizes: int, has_noise: bool = True, misses: int = 0) -> TargetPlan:
    told = noise if has_noise else lambda spec: None
    made = {"scaling": "strong", "batch_sizes": list(sizes)}
    results = reaching(folder, noise=told, misses=misses, **made)
    (one,) = target_plans([results], fit_study(results, predict="8"))
    return one


@pytest.fixture(scope="module")
def one_size(tmp_path_factory: pytest.TempPathFactory) -> TargetPlan:
    folder = tmp_path_factory.mktemp("one")
    return plan_of(folder, BATCH)


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


def test_without_noise_one_batch_size_makes_no_plan(tmp_path: Path) -> None:
    one = plan_of(tmp_path, BATCH, has_noise=False)
    assert one.sentences[0].startswith("No plan: samples to target: two batch sizes or more")
    assert one.table.empty


def test_a_batch_size_that_missed_and_what_lies_beyond_it_are_not_planned_with(
    tmp_path: Path,
) -> None:
    one = plan_of(tmp_path, BATCH, 128, misses=128)
    assert set(one.table["global_batch_size"]) == {16, 32, 64}


OF_GRADIENTS = 50.0


def sums(rng: np.random.Generator) -> NoiseSums:
    """Return those of a hundred steps whose noise scale is OF_GRADIENTS."""
    found = NoiseSums.of(
        [
            NoiseTerms(gradient=2 + rng.normal(0, 0.1), noise=2 * OF_GRADIENTS + rng.normal(0, 1))
            for _ in range(100)
        ]
    )
    assert found is not None
    return found


def test_every_run_of_several_workers_tells_it(tmp_path: Path) -> None:
    study, rng = study_of(scaling="weak"), np.random.default_rng(0)
    runs, curves = run_of(study)
    for name in ("0001-r0", "0001-r1"):
        curves[name] = [replace(one, noise_scale=sums(rng)) for one in curves[name]]
    results = load(write(tmp_path / "study", study, runs, curves))
    (values,) = critical_batches(results).values()
    assert len(values) == 2
    np.testing.assert_allclose(values, OF_GRADIENTS, rtol=0.05)
    (line,) = noise_lines(results)
    assert "the critical batch is about 50" in line
    assert "(2 runs, " in line
