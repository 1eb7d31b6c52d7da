"""Fake NVIDIA driver with two GPUs."""

from types import SimpleNamespace


class FakeNvml:
    """Stand-in for the module `pynvml` on a machine with two GPUs; only GPU 1 has load samples."""

    NVML_GPU_UTILIZATION_SAMPLES = 1

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.samples = [(100, 90), (200, 80)]

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"NVIDIA {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80 * 2**30, free=60 * 2**30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        if handle == "gpu 0":
            raise self.NVMLError  # NOT_SUPPORTED
        return SimpleNamespace(gpu=87, memory=12)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13020

    def nvmlDeviceGetCpuAffinity(self, handle: str, size: int) -> list[int]:  # noqa: N802
        return [0b1100 if handle == "gpu 1" else 0b0011] + [0] * (size - 1)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1234":
            raise self.NVMLError
        return "gpu 1"

    def nvmlDeviceGetSamples(self, handle: str, kind: int, seen: int):  # noqa: N802
        assert (handle, kind) == ("gpu 1", 1)
        samples = [
            SimpleNamespace(timeStamp=time, sampleValue=SimpleNamespace(uiVal=value))
            for time, value in self.samples
            if time > seen
        ]
        if not samples:
            raise self.NVMLError  # NOT_FOUND
        return 2, samples
