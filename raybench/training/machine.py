"""Facts about this machine, such as its cores, memory, software versions and GPUs, and measurement
of a worker's peak memory and GPU load.

There are several lists of GPUs: those that NVIDIA's driver reports through its library NVML, those
that torch sees, and those that TensorFlow sees. NVML neither initializes a GPU nor uses its memory.
A framework does both, and a broken framework may crash the process. Therefore each framework is
queried in a separate process, which takes seconds: `python -m raybench.training.machine torch`
prints the GPUs that torch sees as JSON.
"""

import contextlib
import ctypes
import importlib
import json
import logging
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from raybench.data.memory import GIB, available_bytes
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import FRAMEWORKS, installed_frameworks
from raybench.training.base import find_part

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 120.0
"""Timeout in seconds of a query to a framework; longer than its import takes from a slow disk."""
WORD_BITS = 64
"""Number of CPU cores that each word of NVML's affinity masks covers."""
USED_SHARE = 0.25
"""Fraction of a GPU's time or memory above which its use by other processes causes a warning."""
LACKING = {
    "torch": "install the torch wheel for the driver's CUDA version (pytorch.org)",
    "tensorflow": (
        "run: pip install 'raybench[tensorflow-gpu]', in an environment without torch, whose cuDNN "
        "and NCCL it would overwrite"
    ),
    "python": "install NVIDIA's driver",
}
"""Advice to the user if a framework sees fewer GPUs than it should, keyed by framework."""


@dataclass(frozen=True)
class GpusSeen:
    """GPUs of a machine as seen by NVIDIA's driver or by a framework."""

    names: tuple[str, ...] = ()
    """Model of each GPU, in the order of the PCI bus."""
    memory_bytes: tuple[int, ...] = ()
    """Total memory of each GPU in bytes; empty if a framework does not report it."""
    free_bytes: tuple[int, ...] = ()
    """Free memory of each GPU in bytes; only from NVML, otherwise empty."""
    busy_percent: tuple[int, ...] = ()
    """Utilization of each GPU over the last second or less, in percent; only from NVML, otherwise
    empty."""
    versions: dict[str, str] = field(default_factory=dict)
    """Known versions, with the keys `driver`, `cuda`, `cudnn`, `nccl` and the name of the
    framework. `cuda` is the newest version that the driver supports, or the version for which the
    framework was built."""
    problem: str = ""
    """Why nothing is known about the GPUs, as a sentence; empty if the query succeeded."""


def gpus_of_driver() -> GpusSeen:
    """Return all GPUs of this machine as NVML lists them, regardless of CUDA_VISIBLE_DEVICES."""
    nvml, problem = _nvml()
    if nvml is None:
        return GpusSeen(problem=problem)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    memory = [_memory(nvml, handle) for handle in handles]
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    return GpusSeen(
        names=tuple(str(nvml.nvmlDeviceGetName(handle)) for handle in handles),
        memory_bytes=tuple(total for total, _ in memory),
        free_bytes=tuple(free for _, free in memory),
        busy_percent=tuple(_busy_percent(nvml, handle) for handle in handles),
        versions={
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        },
    )


def gpus_of_framework(framework: str) -> GpusSeen:
    """Return the GPUs that a framework sees with the environment variables of this process; takes
    seconds.

    For the framework `python`, the GPUs that the driver sees are returned.
    """
    if framework == "python":
        return gpus_of_driver()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    command = [sys.executable, "-m", "raybench.training.machine", framework]
    try:
        reply = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=ASK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return GpusSeen(problem=f"it did not answer within {ASK_TIMEOUT_S:g} s")
    if reply.returncode:
        logger.info("%s did not list its GPUs:\n%s", framework, reply.stderr)
        last = (reply.stderr.strip().splitlines() or [f"exit code {reply.returncode}"])[-1]
        return GpusSeen(problem=f"it did not start: {last}")
    return TypeAdapter(GpusSeen).validate_json(reply.stdout.splitlines()[-1])


def require_gpus(framework: str, number: int, seen: int, problem: str = "") -> None:
    """Raise UserError if a framework sees fewer GPUs than its process was assigned.

    Args:
        framework: Name of the framework.
        number: Number of GPUs that were assigned to the process.
        seen: Number of GPUs that the framework sees.
        problem: Why `seen` is unknown; empty if it is known.
    """
    if seen >= number:
        return
    gpus = f"{number} GPU{'s' if number > 1 else ''}"
    assignment = f"framework {framework}: a worker is given {gpus}, and"
    if problem:
        raise UserError(
            f"{assignment} it is unknown whether {framework} sees them: {problem}; fix that, or "
            "set gpus_per_worker: 0.",
            ErrorCode.UNSUPPORTED,
        )
    raise UserError(
        f"{assignment} {framework} sees {seen or 'none'}; {LACKING[framework]}, or set "
        "gpus_per_worker: 0.",
        ErrorCode.UNSUPPORTED,
    )


def require_replicas(number: int, gpus: int) -> None:
    """Raise UserError if a process has more replicas (`number`) of the model than it sees GPUs."""
    if number > gpus:
        raise UserError(
            f"strategy single_process: {number} replicas need as many GPUs, and their process sees "
            f"{gpus}; set a smaller num_workers.",
            ErrorCode.UNSUPPORTED,
        )


class GpuLoad:
    """Measures the mean utilization of a GPU between two calls.

    The driver samples the utilization several times per second and keeps the latest samples.
    Reading them takes less than a millisecond and does not disturb the GPU.
    """

    def __init__(self, index: int = 0) -> None:
        """Select a GPU by its index among the GPUs that are visible to this process."""
        self._nvml, _ = _nvml()
        self._handle = _visible_gpu(self._nvml, index)
        self._last_time_stamp = 0
        """Time stamp of the last sample that was read, in microseconds."""

    def begin(self) -> None:
        """Start measuring: discard the samples so far."""
        self._samples()

    def share(self) -> float | None:
        """Return the mean utilization (0 to 1) since the last call of `begin` or `share`.

        The result is None without NVML or without samples. The driver keeps only the samples of the
        last few seconds, so that the result describes only the end of a longer interval.
        """
        samples = self._samples()
        return sum(samples) / len(samples) / 100 if samples else None

    def _samples(self) -> list[int]:
        """Return the samples since the last call, in percent."""
        if self._handle is None:
            return []
        nvml = self._nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(
                self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._last_time_stamp
            )
        except nvml.NVMLError:  # no new samples, or a GPU (partition) that is not sampled
            return []
        new = [sample for sample in samples if sample.timeStamp > self._last_time_stamp]
        if new:
            self._last_time_stamp = max(sample.timeStamp for sample in new)
        return [sample.sampleValue.uiVal for sample in new]


def gpu_memory_bytes() -> int:
    """Return the total memory of the first visible GPU, in bytes; 0 if unknown."""
    nvml, _ = _nvml()
    handle = _visible_gpu(nvml, 0)
    return 0 if handle is None else _memory(nvml, handle)[0]


def cores_near(index: int) -> set[int]:
    """Return the CPU cores near the visible GPU with this index (NVML's CPU affinity); empty if
    unknown."""
    nvml, _ = _nvml()
    handle = _visible_gpu(nvml, index)
    if handle is None:
        return set()
    try:
        words = nvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // WORD_BITS))
    except nvml.NVMLError as error:
        logger.info("cores near GPU %d are unknown: %s", index, error)
        return set()
    return {
        number * WORD_BITS + bit
        for number, word in enumerate(words)
        for bit in range(WORD_BITS)
        if word >> bit & 1
    }


def _nvml() -> tuple[Any, str]:
    """Return the initialized module `pynvml` and an empty string, or None and an error message."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None, "the package nvidia-ml-py is not installed; run: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"no NVIDIA driver responds ({error})"
    return nvml, ""


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return total and free memory of a GPU in bytes; (0, 0) if NVML does not report them, as for a
    GPU that shares the memory of its host."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        logger.info("the memory of a GPU is unknown: %s", error)
        return 0, 0
    return int(memory.total), int(memory.free)


def _busy_percent(nvml: Any, handle: Any) -> int:
    """Return the utilization of a GPU in percent; 0 if NVML does not report it, as with MIG."""
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        return 0


def _visible_gpu(nvml: Any, index: int) -> Any:
    """Return NVML's handle of a GPU; None if there is no such GPU, or no NVML.

    `index` counts only the GPUs that are visible to this process. NVML lists GPUs in the order of
    the PCI bus. CUDA lists the fastest GPU first unless CUDA_DEVICE_ORDER is PCI_BUS_ID, which
    raybench sets for its workers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible is not None else []
    name = str(index) if visible is None else "".join(names[index : index + 1])
    if nvml is None or not name:
        return None
    try:
        if name.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(name))
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError as error:
        logger.info("GPU %s of CUDA_VISIBLE_DEVICES is unknown: %s", name, error)
        return None


STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Linux files: STATUS contains the memory usage of this process, and writing to RESET resets the
peak."""
RESET_PEAK = "5"
"""Value that, written to RESET, sets the peak to the current usage (see proc(5); Linux 4.0)."""


class Memory:
    """Measures the peak of a worker's memory.

    This class measures the memory of the whole process; the backends have subclasses for GPUs.
    """

    def __init__(self) -> None:
        self._reset()

    def peak(self) -> int | None:
        """Return the peak memory in bytes since this object was created; None if unknown.

        Without /proc, it is the peak since the process was started.
        """
        try:
            lines = STATUS.read_text().splitlines()
        except OSError:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak if sys.platform == "darwin" else peak * 1024
        peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
        return peaks[0] if peaks else None

    def _reset(self) -> None:
        """Set the peak to the current usage, if the system supports that."""
        try:
            RESET.write_text(RESET_PEAK)
        except OSError as error:
            logger.info("the peak memory of this process cannot be reset: %s", error)


KEPT_BYTES = 2**30
"""Number of bytes of freed memory that glibc keeps. It is also the size from which glibc allocates
tensors with mmap and returns their memory to the system at once."""
ALLOCATOR_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Further arenas consist of heaps of 64 MB, and glibc returns an empty heap to the system.
    "MALLOC_ARENA_MAX": "1",
}
"""Environment variables of workers that let glibc keep freed memory for the next step.

A training step on a CPU allocates its activations and frees them again. By default, glibc returns
this memory to the system at once, so that the next step causes a page fault on every page: 50 to
80 MB per step for `mnist_large`. A running process can reconfigure glibc only from its first
thread, and Ray Train trains in another thread. Therefore these variables are set before a worker
starts. Other systems and allocators ignore them. They do not change results."""


def give_back() -> None:
    """Return freed memory of this process to the operating system; called after each run."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


Facts = dict[str, Any]
"""Facts about a host, as plain data that `raybench doctor --json` prints."""
DISTRIBUTIONS = ("raybench", "ray", "torch", "tensorflow", "keras", "numpy")
"""Packages whose versions are listed."""
SAME_EVERYWHERE = ("python", "ray", "raybench")
"""Software that must have the same version on all hosts; otherwise Ray refuses hosts, or runs
fail."""
PROBE_BYTES = 64 * 2**20
"""Number of bytes that are written to measure the speed of the disk."""
SHARED = Path("/dev/shm")
"""Folder of shared memory, on Linux."""
MIN_MEMORY_BYTES, MIN_DISK_BYTES = 2 * GIB, 2 * GIB
"""Free memory and free disk space in bytes, below which a problem is reported for a host. Memory is
needed for a worker and its data; disk space for results, checkpoints and Ray's logs."""


def machine_facts(*, is_quick: bool = False) -> Facts:
    """Return the facts about this host.

    `disk_bytes_per_s` is the speed of writing to the temporary folder, measured with fsync.

    Args:
        is_quick: Whether to skip slow queries: the speed of the disk and, if the driver sees no
            GPUs, the GPUs that the frameworks see.
    """
    installed = installed_frameworks()
    driver, seen = gpus_of_driver(), {name: GpusSeen() for name in installed}
    if driver.names or not is_quick:
        with ThreadPoolExecutor() as pool:
            seen = dict(zip(installed, pool.map(gpus_of_framework, installed), strict=True))
    has_cores = hasattr(os, "sched_getaffinity")
    return {
        "host": platform.node(),
        "versions": {"python": platform.python_version()} | _versions(),
        "cores": len(os.sched_getaffinity(0)) if has_cores else os.cpu_count() or 1,
        "load": os.getloadavg()[0],
        "niceness": os.nice(0),
        "free_memory_bytes": available_bytes(),
        "free_shared_bytes": psutil.disk_usage(str(SHARED)).free if SHARED.is_dir() else None,
        "free_disk_bytes": psutil.disk_usage(tempfile.gettempdir()).free,
        "disk_bytes_per_s": None if is_quick else _disk_bytes_per_s(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpus": {"nvml": asdict(driver)} | {name: asdict(gpus) for name, gpus in seen.items()},
    }


def problems_of(facts: Facts, ray_gpus: float | None = None) -> list[str]:
    """Return the problems of a host, each as a sentence that says how to fix it.

    Args:
        facts: Facts about the host.
        ray_gpus: Number of GPUs that the host has according to Ray; None without Ray.
    """
    gpus, visible, problems = facts["gpus"], _visible_gpus(facts), []
    if ray_gpus is not None and int(ray_gpus) != visible and not gpus["nvml"]["problem"]:
        problems.append(
            f"the driver (NVML) sees {visible} GPUs and Ray {ray_gpus:g}; restart this node "
            f"with: ray start --num-gpus={visible} ..."
        )
    installed = [name for name in FRAMEWORKS if name in gpus]
    if not installed:
        problems.append(
            "neither torch nor tensorflow is installed; run: pip install 'raybench[torch]'"
        )
    needed = max(visible, int(ray_gpus or 0))
    for name in installed:
        if gpus[name]["problem"]:
            problems.append(
                f"{name} is broken ({gpus[name]['problem'].rstrip('.')}); reinstall it: "
                f"pip install --force-reinstall {name}"
            )
        elif len(gpus[name]["names"]) < needed:
            seen = len(gpus[name]["names"]) or "none"
            built = _cuda_remark(gpus[name]["versions"], gpus["nvml"]["versions"])
            problems.append(f"{name} sees {seen} of {needed} GPUs{built}; {LACKING[name]}.")
    if needed and gpus["nvml"]["problem"]:
        problems.append(f"the state of the GPUs is unknown: {gpus['nvml']['problem']}.")
    for key, minimum, advice in (
        ("free_memory_bytes", MIN_MEMORY_BYTES, "of memory is free; stop other programs"),
        ("free_disk_bytes", MIN_DISK_BYTES, "is free below the temporary folder; delete files"),
    ):
        if facts[key] < minimum:
            problems.append(
                f"{facts[key] / GIB:.1f} GiB {advice} ({minimum / GIB:.0f} GiB are needed)."
            )
    return [f"host {facts['host']}: {sentence}" for sentence in problems]


def notes_of(facts: Facts) -> list[str]:
    """Return remarks about the GPUs of a host, one sentence each: those that other processes use,
    and those that CUDA_VISIBLE_DEVICES hides."""
    number = len(facts["gpus"]["nvml"]["names"])
    used = used_gpus(GpusSeen(**facts["gpus"]["nvml"]))
    notes = [f"host {facts['host']}: {used}"] if used else []
    if not (hidden := number - _visible_gpus(facts)):
        return notes
    return [
        *notes,
        f"host {facts['host']}: CUDA_VISIBLE_DEVICES={facts['visible']} hides {hidden} of "
        f"{number} GPUs; unset it before starting Ray to use them.",
    ]


def used_gpus(driver: GpusSeen) -> str | None:
    """Return a sentence about the GPUs that other processes use; None if they use none.

    Call it before raybench's workers use a GPU, because their use would be counted, too.
    """
    memory_shares = [
        (total - free) / total if total else 0.0
        for total, free in zip(driver.memory_bytes, driver.free_bytes, strict=True)
    ]
    used = [
        f"GPU {index} ({busy} % busy, {share:.0%} of its memory taken)"
        for index, (busy, share) in enumerate(zip(driver.busy_percent, memory_shares, strict=True))
        if max(busy / 100, share) >= USED_SHARE
    ]
    if not used:
        return None
    return (
        f"other processes use {', '.join(used)}, which slows runs there down without a mark in "
        "their records; exclude a GPU with CUDA_VISIBLE_DEVICES."
    )


def _visible_gpus(facts: Facts) -> int:
    """Return the number of GPUs of a host that CUDA_VISIBLE_DEVICES does not hide."""
    return num_visible(len(facts["gpus"]["nvml"]["names"]), facts["visible"])


def num_visible(number: int, visible: str | None) -> int:
    """Return how many GPUs of a machine are visible.

    Args:
        number: Number of GPUs of the machine.
        visible: Value of CUDA_VISIBLE_DEVICES; None if it is not set.
    """
    if visible is None:
        return number
    return min(number, sum(name.strip() not in ("", "-1") for name in visible.split(",")))


def problems_between(hosts: list[Facts]) -> list[str]:
    """Return the differences between the software versions of hosts, one sentence each."""
    problems = []
    for name in (*SAME_EVERYWHERE, "torch", "tensorflow"):
        by_version: dict[str, list[str]] = {}
        for facts in hosts:
            by_version.setdefault(facts["versions"].get(name, "none"), []).append(facts["host"])
        if len(by_version) > 1:
            listing = "; ".join(
                f"{version} on {', '.join(on)}" for version, on in by_version.items()
            )
            problems.append(
                f"{name} differs between hosts ({listing}): install one version on all."
            )
    return problems


def _cuda_remark(framework: dict[str, str], driver: dict[str, str]) -> str:
    """Return a remark if a framework was built for a later major version of CUDA than the driver
    supports; otherwise an empty string. Both arguments are versions as in `GpusSeen.versions`."""
    if "cuda" not in framework or "cuda" not in driver:
        return ""
    if int(framework["cuda"].partition(".")[0]) <= int(driver["cuda"].partition(".")[0]):
        return ""
    return f" (built for CUDA {framework['cuda']}, the driver supports up to {driver['cuda']})"


def _versions() -> dict[str, str]:
    """Return the versions of those DISTRIBUTIONS that are installed, keyed by package."""
    versions = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _disk_bytes_per_s() -> float:
    """Measure the speed of writing to the temporary folder, in bytes per second."""
    content = os.urandom(PROBE_BYTES)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return PROBE_BYTES / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(asdict(find_part(sys.argv[1], "world").gpus_seen())))
