"""Times of probes of a training with known parts."""

import math

import numpy as np

from raybench.scaling.shares import Probe, Probes
from raybench.spec.run import DatasetSpec, RunSpec

MNIST = DatasetSpec(name="mnist")


def spec_of(**changes: object) -> RunSpec:
    """Return a spec of two workers with batches of 64 on MNIST."""
    return RunSpec(**({"dataset": MNIST, "num_workers": 2} | changes))


def step_of(
    probe: Probe, *, compute: float, overhead: float, exchange: float, reading: float, batch: int
) -> float:
    """Return seconds of a step; `compute` and `reading` are those of `batch` samples."""
    samples = probe.batch_size_per_worker / batch
    worked = overhead + compute * samples + (exchange if probe.exchanges else 0.0)
    return worked + (reading * samples if probe.reads else 0.0)


def times_of(
    spec: RunSpec, *, rounds: int = 4, noise: float = 0.03, seed: int = 0, **parts: float
) -> dict[Probe, list[float]]:
    """Return times of every probe of `spec`; all times of a round share a random factor."""
    rng = np.random.default_rng(seed)
    seconds = {"compute": 0.0, "overhead": 0.0, "exchange": 0.0, "reading": 0.0} | parts
    pace = np.exp(2 * noise * rng.standard_normal(rounds))
    return {
        probe: [
            step_of(probe, batch=spec.batch_size_per_worker, **seconds)
            * float(pace[i])
            * math.exp(noise * rng.standard_normal())
            for i in range(rounds)
        ]
        for probe in Probes.of(spec).names
    }
