"""The critical batch of a study by the noise of its gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from raybench.report.study import load
from raybench.scaling.fits import critical_batches, noise_sentence
from raybench.stats.step_times import NoiseSums, NoiseTerms
from tests.runs.made_up import run_of, study_of, write

CRITICAL = 50.0


def sums(rng: np.random.Generator) -> NoiseSums:
    """Return those of a hundred steps whose noise scale is CRITICAL."""
    found = NoiseSums.of(
        [
            NoiseTerms(gradient=2 + rng.normal(0, 0.1), noise=2 * CRITICAL + rng.normal(0, 1))
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
    np.testing.assert_allclose(values, CRITICAL, rtol=0.05)
    assert "the critical batch is about 50" in noise_sentence(values)
    assert "(2 runs, " in noise_sentence(values)
