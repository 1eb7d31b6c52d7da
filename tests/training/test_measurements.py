"""Measurements of the machine: memory from the operating system, load from the driver."""

import ctypes
import os
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from local import NoTraining, zeros

from raybench.data.dataset import Dataset, Split
from raybench.spec.run import RunSpec
from raybench.training import memory
from raybench.training.machine import (
    GpuLoad,
    GpusSeen,
    gpus_of_driver,
    gpus_of_framework,
    notes_of,
    used_gpus,
)
from raybench.training.run import Recording
from tests.training.fake_gpus import FakeNvml


@pytest.mark.skipif(not memory.RESET.exists(), reason="no /proc")
def test_the_peak_of_memory_is_since_it_was_forgotten() -> None:
    size = 200 * 2**20
    block = np.ones(size, np.uint8)
    with_block = memory.peak_bytes()
    del block
    memory.reset_peak()
    after = memory.peak_bytes()
    assert with_block
    assert after
    assert with_block - after > 0.9 * size
    block = np.ones(size // 2, np.uint8)
    again = memory.peak_bytes()
    del block
    assert again
    assert 0.4 * size < again - after < 0.7 * size
    later = memory.peak_bytes()
    assert later
    assert later > again - 0.1 * size  # a peak stays when the memory is given back


@pytest.mark.parametrize(
    ("shape", "kind", "batch", "size"),
    [
        ((28, 28, 1), np.uint8, 16, 1024),
        ((224, 224, 3), np.uint8, 16, 2**24 // (224 * 224 * 3)),
        ((224, 224, 3), np.uint8, 512, 512),  # as many as training is known to take
        ((512,), np.int32, 16, 32),  # tokens, which become vectors
    ],
)
def test_an_evaluation_takes_fewer_large_samples_at_once(
    shape: tuple[int, ...], kind: type, batch: int, size: int
) -> None:
    split = Split(np.zeros((4, *shape), kind), np.zeros(4, np.int64))
    dataset = Dataset("drawn", 2, split, split, split)
    spec = RunSpec(batch_size_per_worker=batch)
    assert memory.evaluation_batch(spec, dataset, 1024) == size


STEPS = """
import ctypes, resource, threading
from pathlib import Path
from raybench.training.memory import give_back

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def step():
    tensors = [ctypes.c_void_p(library.malloc(20 * 2**20)) for _ in range(4)]
    for tensor in tensors:
        ctypes.memset(tensor, 1, 20 * 2**20)
    for tensor in tensors:
        library.free(tensor)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def train():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    held = resident()
    give_back()
    print(faults, held - resident())

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def steps_in_a_thread(environment: dict[str, str]) -> tuple[int, int]:
    """Page faults of five steps of 80 MB, and the bytes that are given back after them."""
    own = {name: value for name, value in os.environ.items() if name not in memory.ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=own | environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    faults, returned = map(int, done.stdout.split())
    return faults, returned


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc's allocator")
def test_memory_is_kept_from_step_to_step_and_given_back_after_the_run() -> None:
    faults, returned = steps_in_a_thread(memory.ENVIRONMENT)
    assert faults < 1000
    assert returned > 70 * 2**20
    faults, _ = steps_in_a_thread({})  # without it every step pays for its pages
    assert faults > 5 * 80 * 2**20 // os.sysconf("SC_PAGE_SIZE") // 2


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs, of which GPU 1 alone is sampled."""
    found = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.mark.parametrize(
    ("visible", "index", "share"),
    [
        *[("1", 0, 0.3), ("1,0", 0, 0.3), ("GPU-1234", 0, 0.3), ("0,1", 1, 0.3)],
        *[("1", 1, None), ("", 0, None), ("GPU-unknown", 0, None)],
    ],
)
def test_the_load_is_that_of_the_gpu_and_of_the_time_asked_for(
    driver: FakeNvml, visible: str, index: int, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    load = GpuLoad(index)
    load.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert load.share() == pytest.approx(share)
    assert load.share() is None  # nothing was sampled since


def test_a_worker_records_the_load_of_the_gpu_that_it_trains_on(driver: FakeNvml) -> None:
    world = SimpleNamespace(gpus=(1,), gather=lambda row: [row])
    spec = RunSpec(record_steps=True)
    recording = Recording(spec, NoTraining(), world, zeros(8))
    recording.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert recording.end([])["gpu_utilization"] == pytest.approx(0.3)


def fails(*given: object) -> None:
    raise FakeNvml.NVMLError


def test_without_the_library_or_its_driver_nothing_is_said(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.nvmlInit = fails
    assert GpuLoad().share() is None
    assert gpus_of_driver().names == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuLoad().share() is None
    assert "pip install nvidia-ml-py" in gpus_of_driver().problem


def test_what_the_driver_sees(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = gpus_of_driver()
    assert seen.names == ("NVIDIA gpu 0", "NVIDIA gpu 1")
    assert (seen.memory_bytes[0], seen.free_bytes[0]) == (80 * 2**30, 60 * 2**30)
    assert seen.busy_percent == (0, 87)
    assert seen.versions == {"driver": "580.65", "cuda": "13.2"}


@pytest.mark.parametrize(
    ("free", "busy", "named"),
    [
        ((80, 76), (3, 24), []),
        ((80, 0), (0, 90), ["GPU 1 (90 % busy, 100% of its memory taken)"]),  # 0 GiB left
        ((60, 80), (0, 25), ["GPU 0 (0 % busy, 25% of", "GPU 1 (25 % busy, 0% of"]),
    ],
)
def test_gpus_that_others_use_are_named(
    free: tuple[int, int], busy: tuple[int, int], named: list[str]
) -> None:
    driver = GpusSeen(("A", "B"), (80, 80), free, busy)
    said = used_gpus(driver)
    assert (said is None) == (not named)
    assert all(part in str(said) for part in named)
    assert str(said).count(" busy,") == len(named)
    notes = notes_of({"host": "a", "visible": None, "gpus": {"nvml": asdict(driver)}})
    assert notes == ([] if said is None else [f"host a: {said}"])


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_a_framework_without_gpus_says_so(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = gpus_of_framework(framework)
    assert seen.names == ()
    assert seen.problem == ""
    assert seen.versions[framework]
