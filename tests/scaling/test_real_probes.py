"""The verdict on real trainings of one worker in this process, whose samples come late."""

import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.models.find import load_workload_dataset
from raybench.scaling.bottleneck import NOT_SURE, judge
from raybench.scaling.shares import Probes, probe_spec, rounds, step_seconds, steps_for
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import find_backend
from raybench.training.run import run

READ_S = 0.005
ROUNDS, SECONDS = 3, 0.1
DATA = DatasetSpec(name="digits", validation_size=32)
SPEC = RunSpec(framework="torch", dataset=DATA, workload="mnist_small", batch_size_per_worker=16)


class Late:
    """Samples that each take READ_S to be read."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.shape, self.dtype, self._pixels = pixels.shape, pixels.dtype, pixels

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        time.sleep(READ_S * len(rows))
        return np.asarray(self._pixels[rows])


def late(dataset: Dataset) -> Dataset:
    return replace(dataset, train=Split(Late(dataset.train.array), dataset.train.labels))


@pytest.mark.slow
def test_a_training_whose_samples_come_late_is_bound_by_its_input() -> None:
    """Do what the command does, without Ray."""
    pytest.importorskip("torch")
    probes = Probes.of(SPEC)
    backend = find_backend(SPEC.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    _, dataset = load_workload_dataset(SPEC.workload, SPEC.dataset)

    def step_s(probe, steps: int, intervals: int) -> float:
        own = probe_spec(SPEC, probe, dataset, steps=steps, intervals=intervals)
        workload, data = load_workload_dataset(own.workload, own.dataset)
        data = late(data) if probe.reads else data
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
    found = judge(SPEC, times)
    # Other tests share the processor, and may hide how much: the largest share it is all the same.
    assert found.kind in ("input", NOT_SURE), found.sentence
    assert max(found.shares, key=lambda name: found.shares[name].value) == "input"
