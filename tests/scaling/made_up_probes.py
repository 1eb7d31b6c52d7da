"""Times of probes as a training of known parts would give them."""

import math

import numpy as np

from raybench.scaling.shares import Probe, Probes
from raybench.spec.run import DatasetSpec, RunSpec

MNIST = DatasetSpec(name="mnist")


def spec_of(**changes: object) -> RunSpec:
    """Two workers of batch 64 on data that are read."""
    return RunSpec(**({"dataset": MNIST, "num_workers": 2} | changes))  # type: ignore[arg-type]


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
    """Return times of every probe of `spec`, each round with a pace of its own."""
    rng = np.random.default_rng(seed)
    known = {"compute": 0.0, "overhead": 0.0, "exchange": 0.0, "reading": 0.0} | parts
    pace = np.exp(2 * noise * rng.standard_normal(rounds))
    return {
        probe: [
            step_of(probe, batch=spec.batch_size_per_worker, **known)
            * float(pace[i])
            * math.exp(noise * rng.standard_normal())
            for i in range(rounds)
        ]
        for probe in Probes.of(spec).names
    }
