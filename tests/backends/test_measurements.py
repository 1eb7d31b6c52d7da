"""What is asked of the machine: memory from the operating system, load from the driver."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from raybench.backends import memory
from raybench.backends.gpu_load import GpuLoad


@pytest.mark.skipif(not memory.RESET.exists(), reason="no /proc")
def test_the_peak_of_memory_is_since_it_was_forgotten() -> None:
    size = 200 * 2**20
    block = np.ones(size, np.uint8)
    with_block = memory.peak_bytes()
    del block
    memory.forget_peak()
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


class FakeNvml:
    """A driver that samples GPU 1, of a process that sees it alone."""

    NVML_GPU_UTILIZATION_SAMPLES = 1

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.samples = [(100, 90), (200, 80)]

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1234":
            raise self.NVMLError
        return "gpu 1"

    def nvmlDeviceGetSamples(self, handle: str, kind: int, seen: int):  # noqa: N802
        assert (handle, kind) == ("gpu 1", 1)
        found = [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=value))
            for at, value in self.samples
            if at > seen
        ]
        if not found:
            raise self.NVMLError  # as NVML does: NOT_FOUND
        return 2, found


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-1234"])
def test_the_load_is_that_of_the_time_asked_for(
    visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    load = GpuLoad()
    load.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert load.share() == pytest.approx(0.3)
    assert load.share() is None  # nothing was sampled since


@pytest.mark.parametrize(("visible", "index"), [("0,1", 1), ("1", 1), ("", 0)])
def test_each_gpu_of_a_process_is_asked_for(
    visible: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    load = GpuLoad(index)
    load.begin()
    driver.samples += [(300, 20), (400, 40)]
    assert load.share() == (pytest.approx(0.3) if visible == "0,1" else None)


def test_without_the_library_or_a_gpu_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuLoad().share() is None
    driver = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-unknown")
    assert GpuLoad().share() is None

    def no_driver() -> None:
        raise FakeNvml.NVMLError

    driver.nvmlInit = no_driver  # type: ignore[method-assign]
    assert GpuLoad().share() is None
