"""Cores of a run: given to it, and taken back."""

import os
import sys
from types import SimpleNamespace

import pytest

from raybench.cluster import worker
from raybench.cluster.protocol import Ready
from raybench.cluster.worker_group import WorkerGroup
from raybench.spec.run import Placement
from tests.training.fake_gpus import FakeNvml


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_run_without_cores_of_its_own_is_free_of_the_last_one_s() -> None:
    every = os.sched_getaffinity(0)
    try:
        worker.pin((min(every),))
        assert os.sched_getaffinity(0) == {min(every)}
        worker.pin(())
        assert os.sched_getaffinity(0) == worker.ALL_CORES
    finally:
        os.sched_setaffinity(0, every)


@pytest.mark.parametrize(
    ("gpus", "cores"), [((), {0, 1, 2, 3}), ((1,), {2, 3}), ((9,), {0, 1, 2, 3})]
)
def test_a_worker_of_a_gpu_has_the_cores_next_to_it(
    gpus: tuple[int, ...], cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(worker, "ALL_CORES", {0, 1, 2, 3})
    assert worker._own_cores(SimpleNamespace(gpus=gpus)) == cores  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "cores"), [(0, [(0,), (1,)]), (1, [(0, 1, 2, 3), (2, 3)])])
def test_workers_of_gpus_share_cores_and_others_have_their_own(
    gpus: int, cores: list[tuple[int, ...]]
) -> None:
    """Each used to be pinned to one core, however many there were."""
    group = WorkerGroup.__new__(WorkerGroup)
    group.placement = Placement("torch", 2, gpus_per_worker=gpus)
    group._members = {
        rank: Ready(host="a", node="id-a", pid=rank, device="", cores=own)
        for rank, own in enumerate([(0, 1, 2, 3), (2, 3) if gpus else (0, 1, 2, 3)])
    }
    assert group.choose_cores(set()) == cores
