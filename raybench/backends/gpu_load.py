"""How busy this worker's GPU is, as NVIDIA's management library (NVML) has sampled it.

The driver samples by itself, several times a second, and keeps the last of them: asking costs
less than a millisecond, and nothing while the GPU works.
"""

import importlib
import os
from typing import Any


class GpuLoad:
    """The utilisation of a GPU that this process sees; asked from one moment to another."""

    def __init__(self, index: int = 0) -> None:
        """`index` counts the GPUs that the process sees."""
        self._nvml: Any = _nvml()
        self._handle = _visible_gpu(self._nvml, index) if self._nvml else None
        self._seen = 0
        """Time of the last sample that was read, in NVML's microseconds."""

    def begin(self) -> None:
        """Leave out what was sampled up to now."""
        self._samples()

    def share(self) -> float | None:
        """Return the mean share of time that the GPU was at work since `begin` or `share`.

        None where there is no NVML, or where nothing was sampled in so short a time. Of a long
        time it is the end of it, as the driver keeps some seconds.
        """
        samples = self._samples()
        return sum(samples) / len(samples) / 100 if samples else None

    def _samples(self) -> list[int]:
        """Return the samples that were not read yet, in percent."""
        if self._handle is None:
            return []
        nvml = self._nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(
                self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen
            )
        except nvml.NVMLError:  # none since then, or a GPU (a part of one) that is not sampled
            return []
        new = [one for one in samples if one.timeStamp > self._seen]
        if new:
            self._seen = max(one.timeStamp for one in new)
        return [one.sampleValue.uiVal for one in new]


def gpu_memory_bytes(index: int = 0) -> int | None:
    """Return the whole memory of a GPU that this process sees; None where it is not known."""
    nvml = _nvml()
    handle = _visible_gpu(nvml, index) if nvml else None
    return None if handle is None else int(nvml.nvmlDeviceGetMemoryInfo(handle).total)


def _nvml() -> Any:
    """Return `pynvml`, ready for use; None where it is not installed or finds no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _visible_gpu(nvml: Any, index: int) -> Any:
    """Return the handle of a GPU that is visible to this process; None without."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] if visible is None else [one.strip() for one in visible.split(",")]
    name = names[index] if index < len(names) else ""
    try:
        if name.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(name))
        return nvml.nvmlDeviceGetHandleByUUID(name) if name else None
    except nvml.NVMLError:
        return None
