"""The GPUs of this machine: what the driver (NVML), torch and TensorFlow each see of them.

NVML wakes no GPU and takes no memory there. A framework does both, so that what it sees is asked
of it in a process of its own: `python -m raybench.backends.gpus torch`, JSON on stdout.
"""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from raybench.backends.find import find_part
from raybench.core.errors import UserError

ASK_TIMEOUT_S = 120.0
"""A framework is imported and has its GPUs counted in less, on a cold disk too."""
WORD_BITS = 64
"""Cores in each number of the driver's masks of them."""
LACKING = {
    "torch": "install the torch wheel for the driver's CUDA version (pytorch.org)",
    "tensorflow": "run: pip install 'raybench[tensorflow-gpu]'",
}
"""What to do where a framework sees none of the GPUs that there are."""


@dataclass(frozen=True)
class Seen:
    """GPUs as one of the three sees them."""

    names: tuple[str, ...] = ()
    """Model of each, in the order of the machine's bus."""
    memory_bytes: tuple[int, ...] = ()
    """Whole memory of each; of a framework that does not tell it empty."""
    free_bytes: tuple[int, ...] = ()
    """What nobody has taken of it; NVML's alone."""
    versions: dict[str, str] = field(default_factory=dict)
    """`driver`, `cuda` (that the driver can run, or that the framework is built for), `cudnn`,
    `nccl` and the framework's own; what is not known is left out."""
    problem: str = ""
    """Why nothing is known; empty where it is."""


def nvml_sees() -> Seen:
    """Return all GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says."""
    nvml, problem = _nvml()
    if nvml is None:
        return Seen(problem=problem)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    memory = [_memory(nvml, handle) for handle in handles]
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    return Seen(
        names=tuple(str(nvml.nvmlDeviceGetName(handle)) for handle in handles),
        memory_bytes=tuple(total for total, _ in memory),
        free_bytes=tuple(free for _, free in memory),
        versions={
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        },
    )


def framework_sees(framework: str) -> Seen:
    """Return the GPUs that a framework sees with this process's environment; takes seconds."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    command = [sys.executable, "-m", "raybench.backends.gpus", framework]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=ASK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Seen(problem=f"it did not answer within {ASK_TIMEOUT_S:g} s")
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        return Seen(problem=f"it did not start: {last}")
    content = json.loads(asked.stdout.splitlines()[-1])
    lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
    return Seen(**(content | lists))


def require_gpus(framework: str, number: int, seen: int, problem: str = "") -> None:
    """Raise UserError where a framework sees fewer GPUs than its process was given."""
    if seen >= number:
        return
    given = f"framework {framework}: a worker is given {number} GPU{'s' if number > 1 else ''}, and"
    if problem:
        raise UserError(
            f"{given} nobody knows whether {framework} sees them: {problem}; mend that, or set "
            "gpus_per_worker: 0."
        )
    raise UserError(
        f"{given} {framework} sees {seen or 'none'}; {LACKING[framework]}, or set "
        "gpus_per_worker: 0."
    )


class GpuLoad:
    """The utilisation of a GPU that this process sees; asked from one moment to another.

    The driver samples by itself, several times a second, and keeps the last of them: asking
    costs less than a millisecond, and nothing while the GPU works.
    """

    def __init__(self, index: int = 0) -> None:
        """`index` counts the GPUs that the process sees."""
        self._nvml, _ = _nvml()
        self._handle = _visible_gpu(self._nvml, index)
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


def gpu_memory_bytes(index: int = 0) -> int:
    """Return the whole memory of a GPU that this process sees; 0 where it is not known."""
    nvml, _ = _nvml()
    handle = _visible_gpu(nvml, index)
    return 0 if handle is None else _memory(nvml, handle)[0]


def cores_near(index: int) -> set[int]:
    """Return the CPU cores that are next to a GPU that this process sees; none where the driver
    does not tell."""
    nvml, _ = _nvml()
    handle = _visible_gpu(nvml, index)
    if handle is None:
        return set()
    try:
        words = nvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // WORD_BITS))
    except nvml.NVMLError:
        return set()
    return {
        number * WORD_BITS + bit
        for number, word in enumerate(words)
        for bit in range(WORD_BITS)
        if word >> bit & 1
    }


def _nvml() -> tuple[Any, str]:
    """Return `pynvml`, ready for use, or None and why."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None, "the package nvidia-ml-py is not installed; run: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"no NVIDIA driver answers ({error})"
    return nvml, ""


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return the whole memory of a GPU and what is free of it; 0 where the driver does not tell,
    as of a GPU that shares the host's."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return 0, 0
    return int(memory.total), int(memory.free)


def _visible_gpu(nvml: Any, index: int) -> Any:
    """Return NVML's handle of a GPU that is visible to this process; None without.

    NVML counts along the bus, CUDA the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID, as
    it is in our workers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] if visible is None else [one.strip() for one in visible.split(",")]
    name = names[index] if index < len(names) else ""
    if nvml is None or not name:
        return None
    try:
        if name.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(name))
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    print(json.dumps(asdict(find_part(sys.argv[1], "world").gpus_seen())))
