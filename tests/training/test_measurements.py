"""Measurements of the machine: memory by the operating system, GPU load by the driver."""

import ctypes
import os
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from local_runs import FakeTrainer, dataset_of, zeros_dataset

from raybench.spec.run import RunSpec
from raybench.training import machine, samples
from raybench.training.machine import (
    ALLOCATOR_ENVIRONMENT,
    GpuLoad,
    GpusSeen,
    Memory,
    gpus_of_driver,
    gpus_of_framework,
    notes_of,
    used_gpus,
)
from raybench.training.run import Recording
from tests.training.fake_gpus import FakeNvml


@pytest.mark.skipif(not machine.RESET.exists(), reason="no /proc")
def test_peak_memory_is_since_the_start_of_its_measurement():
    size = 200 * 2**20
    block = np.ones(size, np.uint8)
    with_block = Memory().peak() or 0
    del block
    memory = Memory()
    after = memory.peak() or 0
    assert with_block - after > 0.9 * size
    block = np.ones(size // 2, np.uint8)
    del block  # freeing memory does not lower the peak
    assert 0.4 * size < (memory.peak() or 0) - after < 0.7 * size


@pytest.mark.parametrize(
    ("shape", "dtype", "batch", "expected"),
    [
        ((28, 28, 1), np.uint8, 16, 1024),
        ((224, 224, 3), np.uint8, 16, 2**24 // (224 * 224 * 3)),
        ((224, 224, 3), np.uint8, 512, 512),  # at least the training batch, which is known to fit
        ((512,), np.int32, 16, 32),  # tokens become vectors
    ],
)
def test_evaluation_batch_is_smaller_for_large_samples(shape, dtype, batch, expected):
    dataset = dataset_of(np.zeros((4, *shape), dtype), np.zeros(4, np.int64))
    spec = RunSpec(batch_size_per_worker=batch)
    assert samples.evaluation_batch(spec, dataset, 1024) == expected


STEPS = """
import ctypes, resource, threading
from pathlib import Path
from raybench.training.machine import give_back

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
    """Return the page faults of five steps of 80 MB, and the bytes that `give_back` frees."""
    kept = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_ENVIRONMENT}
    completed = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=kept | environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    faults, returned = map(int, completed.stdout.split())
    return faults, returned


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc's allocator")
def test_memory_is_reused_between_steps_and_freed_after_the_run():
    faults, returned = steps_in_a_thread(ALLOCATOR_ENVIRONMENT)
    assert faults < 1000
    assert returned > 70 * 2**20
    faults, _ = steps_in_a_thread({})  # by default every step allocates new pages
    assert faults > 5 * 80 * 2**20 // os.sysconf("SC_PAGE_SIZE") // 2


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Fake driver of two GPUs; only GPU 1 has load samples."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.parametrize(
    ("visible", "index", "share"),
    [
        *[("1", 0, 0.3), ("1,0", 0, 0.3), ("GPU-1234", 0, 0.3), ("0,1", 1, 0.3)],
        *[("1", 1, None), ("", 0, None), ("GPU-unknown", 0, None)],
    ],
)
def test_load_is_that_of_the_visible_gpu_since_begin(driver, visible, index, share, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    load = GpuLoad(index)
    load.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert load.share() == pytest.approx(share)
    assert load.share() is None  # no new samples


def test_worker_records_the_load_of_its_gpu(driver):
    world = SimpleNamespace(gpus=(1,), gather=lambda row: [row])
    spec = RunSpec(record_steps=True)
    recording = Recording(spec, FakeTrainer(), world, zeros_dataset(8))
    recording.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert recording.end([])["gpu_utilization"] == pytest.approx(0.3)


def test_missing_driver_or_library_gives_no_load(driver, monkeypatch):
    monkeypatch.setattr(driver, "nvmlInit", Mock(side_effect=FakeNvml.NVMLError))
    assert GpuLoad().share() is None
    assert gpus_of_driver().names == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuLoad().share() is None
    assert "pip install nvidia-ml-py" in gpus_of_driver().problem


def test_gpus_of_the_driver(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpus = gpus_of_driver()
    assert gpus.names == ("NVIDIA gpu 0", "NVIDIA gpu 1")
    assert (gpus.memory_bytes[0], gpus.free_bytes[0]) == (80 * 2**30, 60 * 2**30)
    assert gpus.busy_percent == (0, 87)
    assert gpus.versions == {"driver": "580.65", "cuda": "13.2"}


@pytest.mark.parametrize(
    ("free", "busy", "named"),
    [
        ((80, 76), (3, 24), []),
        ((80, 0), (0, 90), ["GPU 1 (90 % busy, 100% of its memory taken)"]),  # 0 GiB left
        ((60, 80), (0, 25), ["GPU 0 (0 % busy, 25% of", "GPU 1 (25 % busy, 0% of"]),
    ],
)
def test_gpus_used_by_others_are_named(free, busy, named):
    driver = GpusSeen(("A", "B"), (80, 80), free, busy)
    note = used_gpus(driver)
    assert (note is None) == (not named)
    assert all(part in str(note) for part in named)
    assert str(note).count(" busy,") == len(named)
    notes = notes_of({"host": "a", "visible": None, "gpus": {"nvml": asdict(driver)}})
    assert notes == ([] if note is None else [f"host a: {note}"])


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_framework_without_gpus_reports_none(framework, monkeypatch):
    pytest.importorskip(framework)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpus = gpus_of_framework(framework)
    assert gpus.names == ()
    assert gpus.problem == ""
    assert gpus.versions[framework]
