"""Facts of this machine: cores, memory, disk, versions, GPUs as the driver (NVML), torch and
TensorFlow each see them.

NVML wakes no GPU and takes no memory there. A framework does both, and a broken one ends its
process, so what it sees is asked of it in one of its own, which takes seconds: `python -m
raybench.training.machine torch`, JSON on stdout.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import platform
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
from raybench.spec.errors import UserError
from raybench.training.base import PACKAGES as FRAMEWORKS
from raybench.training.base import find_part

ASK_TIMEOUT_S = 120.0
"""A framework is imported and has its GPUs counted in less, on a cold disk too."""
WORD_BITS = 64
"""Cores in each number of the driver's masks of them."""
USED_SHARE = 0.25
"""Share of a GPU's time or memory, used by others, from which on it is reported."""
LACKING = {
    "torch": "install the torch wheel for the driver's CUDA version (pytorch.org)",
    "tensorflow": (
        "run: pip install 'raybench[tensorflow-gpu]', in an environment without torch, whose cuDNN "
        "and NCCL it would overwrite"
    ),
    "python": "install NVIDIA's driver",
}
"""Advice where a framework sees none of the GPUs that there are."""


@dataclass(frozen=True)
class GpusSeen:
    """GPUs as one of the three sees them."""

    names: tuple[str, ...] = ()
    """Model of each, in the order of the machine's bus."""
    memory_bytes: tuple[int, ...] = ()
    """Whole memory of each; of a framework that does not tell it empty."""
    free_bytes: tuple[int, ...] = ()
    """Bytes of it that are free; NVML's alone."""
    busy_percent: tuple[int, ...] = ()
    """Percent of the last second or less in which each GPU was busy; from NVML alone."""
    versions: dict[str, str] = field(default_factory=dict)
    """`driver`, `cuda` (that the driver can run, or that the framework is built for), `cudnn`,
    `nccl` and the framework's own; what is not known is left out."""
    problem: str = ""
    """Why nothing is known; empty where it is."""


def nvml_sees() -> GpusSeen:
    """Return all GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says."""
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


def framework_sees(framework: str) -> GpusSeen:
    """Return the GPUs that a framework sees with this process's environment; takes seconds. Those
    of `python`, which is none, are the driver's."""
    if framework == "python":
        return nvml_sees()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    command = [sys.executable, "-m", "raybench.training.machine", framework]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=ASK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return GpusSeen(problem=f"it did not answer within {ASK_TIMEOUT_S:g} s")
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        return GpusSeen(problem=f"it did not start: {last}")
    return TypeAdapter(GpusSeen).validate_json(asked.stdout.splitlines()[-1])


def require_gpus(
    framework: str, number: int, seen: int, problem: str = "", *, host: str = ""
) -> None:
    """Raise UserError where a framework sees fewer GPUs than its process was given."""
    if seen >= number:
        return
    where = f" on host {host}" if host else ""
    gpus = f"{number} GPU{'s' if number > 1 else ''}"
    given = f"framework {framework}: a worker{where} is given {gpus}, and"
    if problem:
        raise UserError(
            f"{given} it is not known whether {framework} sees them: {problem}; fix that, or set "
            "gpus_per_worker: 0."
        )
    raise UserError(
        f"{given} {framework} sees {seen or 'none'}; {LACKING[framework]}, or set "
        "gpus_per_worker: 0."
    )


def require_replicas(number: int, gpus: int) -> None:
    """Raise UserError where a process of several replicas sees fewer GPUs than these."""
    if number > gpus:
        raise UserError(
            f"strategy single_process: {number} replicas need as many GPUs, and their process sees "
            f"{gpus}; ask for fewer with num_workers."
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
    """Return the cores next to a GPU of this process; none where the driver does not tell."""
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


def _busy_percent(nvml: Any, handle: Any) -> int:
    """Return how busy a GPU is; 0 where the driver does not tell, as of a part of one (MIG)."""
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        return 0


def _visible_gpu(nvml: Any, index: int) -> Any:
    """Return NVML's handle of a GPU that is visible to this process; None without.

    NVML counts along the bus, CUDA the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID, as
    it is in our workers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [one.strip() for one in visible.split(",")] if visible is not None else []
    name = str(index) if visible is None else "".join(names[index : index + 1])
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


Facts = dict[str, Any]
"""Facts of a host, as plain data: `raybench doctor --json` prints it."""
DISTRIBUTIONS = ("raybench", "ray", "torch", "tensorflow", "keras", "numpy")
SAME_EVERYWHERE = ("python", "ray", "raybench")
"""Packages of which all hosts of a cluster need the same version: Ray refuses others, or runs
break."""
PROBE_BYTES = 64 * 2**20
"""Written to the disk once."""
SHARED = Path("/dev/shm")
LEAST_MEMORY_BYTES, LEAST_DISK_BYTES = 2 * GIB, 2 * GIB
"""One worker and its data; results, checkpoints and Ray's own logs."""
MOST_SKEW_S = 1.0
"""Between clocks: records of several hosts carry the time of day."""


def machine_facts(*, is_quick: bool = False) -> Facts:
    """Return the facts of this host; `disk_bytes_per_s` of its temporary folder, flushed.

    With `is_quick` nothing that takes seconds: not the disk's speed, nor, where the driver has no
    GPUs, what the frameworks see.
    """
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    driver, seen = nvml_sees(), {name: GpusSeen() for name in installed}
    if driver.names or not is_quick:
        with ThreadPoolExecutor() as pool:
            seen = dict(zip(installed, pool.map(framework_sees, installed), strict=True))
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
        "gpus": {"nvml": asdict(driver)} | {name: asdict(one) for name, one in seen.items()},
    }


def problems_of(facts: Facts, ray_gpus: float | None = None) -> list[str]:
    """Return what will not work on a host, each a sentence with what mends it.

    `ray_gpus`: how many Ray has there; None without Ray.
    """
    gpus, there, said = facts["gpus"], _visible_gpus(facts), []
    if ray_gpus is not None and int(ray_gpus) != there and not gpus["nvml"]["problem"]:
        said.append(
            f"the driver (NVML) sees {there} GPUs and Ray {ray_gpus:g}; start this node again "
            f"with: ray start --num-gpus={there} ..."
        )
    installed = [name for name in FRAMEWORKS if name in gpus]
    if not installed:
        said.append("neither torch nor tensorflow is installed; run: pip install 'raybench[torch]'")
    wanted = max(there, int(ray_gpus or 0))
    for name in installed:
        if gpus[name]["problem"]:
            said.append(
                f"{name} is broken ({gpus[name]['problem'].rstrip('.')}); install it again: "
                f"pip install --force-reinstall {name}"
            )
        elif len(gpus[name]["names"]) < wanted:
            seen = len(gpus[name]["names"]) or "none"
            built = _too_new(gpus[name]["versions"], gpus["nvml"]["versions"])
            said.append(f"{name} sees {seen} of {wanted} GPUs{built}; {LACKING[name]}.")
    if wanted and gpus["nvml"]["problem"]:
        said.append(f"the state of GPUs is not known: {gpus['nvml']['problem']}.")
    for key, least, what in (
        ("free_memory_bytes", LEAST_MEMORY_BYTES, "of memory is free; end other programs"),
        ("free_disk_bytes", LEAST_DISK_BYTES, "is free below the temporary folder; make room"),
    ):
        if facts[key] < least:
            said.append(f"{facts[key] / GIB:.1f} GiB {what} ({least / GIB:.0f} GiB are needed).")
    return [f"host {facts['host']}: {sentence}" for sentence in said]


def notes_of(facts: Facts) -> list[str]:
    """Return what somebody has chosen on a host and may have forgotten, each a sentence, and which
    of its GPUs others use."""
    number = len(facts["gpus"]["nvml"]["names"])
    used = used_gpus(GpusSeen(**facts["gpus"]["nvml"]))
    said = [f"host {facts['host']}: {used}"] if used else []
    if not (hidden := number - _visible_gpus(facts)):
        return said
    return [
        *said,
        f"host {facts['host']}: CUDA_VISIBLE_DEVICES={facts['visible']} hides {hidden} of "
        f"{number} GPUs; unset it before Ray is started, if they are to be used.",
    ]


def used_gpus(driver: GpusSeen) -> str | None:
    """Return the sentence on GPUs that other processes use, before any of ours is there; None where
    they use little."""
    taken = [
        (total - free) / total if total else 0.0
        for total, free in zip(driver.memory_bytes, driver.free_bytes, strict=True)
    ]
    used = [
        f"GPU {index} ({busy} % busy, {share:.0%} of its memory taken)"
        for index, (busy, share) in enumerate(zip(driver.busy_percent, taken, strict=True))
        if max(busy / 100, share) >= USED_SHARE
    ]
    if not used:
        return None
    return (
        f"other processes use {', '.join(used)}: what runs take there is theirs too, and no run is "
        "marked for it; CUDA_VISIBLE_DEVICES leaves a GPU out."
    )


def _visible_gpus(facts: Facts) -> int:
    """Return how many of the driver's GPUs CUDA_VISIBLE_DEVICES leaves."""
    return num_visible(len(facts["gpus"]["nvml"]["names"]), facts["visible"])


def num_visible(number: int, visible: str | None) -> int:
    """Return how many of `number` GPUs a value of CUDA_VISIBLE_DEVICES leaves; None is not set."""
    if visible is None:
        return number
    return min(number, sum(one.strip() not in ("", "-1") for one in visible.split(",")))


def problems_between(hosts: list[Facts]) -> list[str]:
    """Return what does not fit together between hosts: versions and clocks."""
    said = []
    for name in (*SAME_EVERYWHERE, "torch", "tensorflow"):
        by_version: dict[str, list[str]] = {}
        for facts in hosts:
            by_version.setdefault(facts["versions"].get(name, "none"), []).append(facts["host"])
        if len(by_version) > 1:
            each = "; ".join(f"{version} on {', '.join(on)}" for version, on in by_version.items())
            said.append(f"{name} differs between hosts ({each}): install one version on all.")
    for facts in hosts:
        if abs(skew := facts.get("clock_skew_s") or 0.0) > MOST_SKEW_S:
            said.append(
                f"host {facts['host']}: its clock is {skew:+.1f} s from this one's; run an NTP "
                "client there (records carry the time of day)."
            )
    return said


def _too_new(own: dict[str, str], driver: dict[str, str]) -> str:
    """Return the words on a framework that is built for a later CUDA than the driver runs."""
    if "cuda" not in own or "cuda" not in driver:
        return ""
    if int(own["cuda"].partition(".")[0]) <= int(driver["cuda"].partition(".")[0]):
        return ""
    return f" (it is built for CUDA {own['cuda']}, the driver runs {driver['cuda']} at most)"


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _disk_bytes_per_s() -> float:
    content = os.urandom(PROBE_BYTES)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return PROBE_BYTES / (time.perf_counter() - began)
