"""Verdicts on real trainings of one worker in this process, each bound by one thing."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.models.find import load_workload_dataset
from raybench.scaling.bottleneck import NOT_SURE, Verdict, judge
from raybench.scaling.shares import Probes, probe_spec, rounds, step_seconds, steps_for
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import find_backend
from raybench.training.run import run

READ_S = 0.005
ROUNDS, SECONDS = 4, 0.1
DATA = DatasetSpec(name="digits", image_size=28, validation_size=32)
CASES = {
    "compute": {"workload": "mnist_small", "batch_size_per_worker": 256},
    "input": {"workload": "mnist_small", "batch_size_per_worker": 16},
    "overhead": {"workload": "deep_mlp", "batch_size_per_worker": 4},
}


class Late:
    """Samples that each take READ_S to be read."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.shape, self.dtype, self._pixels = pixels.shape, pixels.dtype, pixels

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        time.sleep(READ_S * len(rows))
        return np.asarray(self._pixels[rows])


def late(dataset: Dataset) -> Dataset:
    return replace(dataset, train=Split(Late(dataset.train.array), dataset.train.labels))


def diagnosed(spec: RunSpec, slowed: Callable[[Dataset], Dataset]) -> Verdict:
    """Do what the command does, without Ray."""
    probes = Probes.of(spec)
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    _, dataset = load_workload_dataset(spec.workload, spec.dataset)

    def step_s(probe, steps: int, intervals: int) -> float:
        own = probe_spec(spec, probe, dataset, steps=steps, intervals=intervals)
        workload, data = load_workload_dataset(own.workload, own.dataset)
        data = slowed(data) if probe.reads else data
        trainer = backend.Trainer(own, workload, data, world)
        curve = list(run(own, data, trainer, world, Ledger("setup")))
        trainer.close()
        assert len(curve) == intervals
        return step_seconds(curve, own.global_batch_size)

    steps = {probe: steps_for(SECONDS, step_s(probe, 4, 2)) for probe in probes.names}
    times: dict = {probe: [] for probe in probes.names}
    for order in islice(rounds(probes, seed=0), ROUNDS):
        for probe in order:
            times[probe].append(step_s(probe, steps[probe], 4))
    return judge(spec, times)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["input", *(pytest.param(one, marks=pytest.mark.all) for one in ("compute", "overhead"))],
)
def test_a_training_is_bound_by_what_it_was_made_to_be(kind: str) -> None:
    pytest.importorskip("torch")
    spec = RunSpec(framework="torch", dataset=DATA, **CASES[kind])  # type: ignore[arg-type]
    found = diagnosed(spec, late if kind == "input" else lambda data: data)
    # Other tests share the processor, and hide what takes microseconds: then it says so.
    assert found.kind in (kind, NOT_SURE), found.sentence
    if kind == "input":  # milliseconds: the largest share whoever else computes
        assert max(found.shares, key=lambda name: found.shares[name].value) == kind
