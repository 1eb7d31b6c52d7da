"""What this machine really has: cores, memory, disk, versions, GPUs as everybody sees them.

Takes seconds: each framework is imported in a process of its own (`gpus`), so that a broken one
ends nothing else, and is told of.
"""

import importlib.util
import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from raybench.backends.find import PACKAGES as FRAMEWORKS
from raybench.backends.gpus import LACKING, framework_sees, nvml_sees
from raybench.data.memory import GIB, available_bytes

Facts = dict[str, Any]
"""What is known of a host, as plain data: `raybench doctor --json` prints it."""
DISTRIBUTIONS = ("raybench", "ray", "torch", "tensorflow", "keras", "numpy")
SAME_EVERYWHERE = ("python", "ray", "raybench")
"""Of which hosts of one cluster must have the same: Ray refuses others, or a run breaks."""
PROBE_BYTES = 64 * 2**20
"""Written to the disk once."""
SHARED = Path("/dev/shm")
LEAST_MEMORY_BYTES, LEAST_DISK_BYTES = 2 * GIB, 2 * GIB
"""One worker and its data; results, checkpoints and Ray's own logs."""
MOST_SKEW_S = 1.0
"""Between clocks: records of several hosts carry the time of day."""


def machine_facts(*, measure_disk: bool = True) -> Facts:
    """Return the facts of this host; `disk_bytes_per_s` of its temporary folder, flushed."""
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
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
        "disk_bytes_per_s": _disk_bytes_per_s() if measure_disk else None,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpus": {"nvml": asdict(nvml_sees())} | {name: asdict(one) for name, one in seen.items()},
    }


def problems_of(facts: Facts, ray_gpus: float | None = None) -> list[str]:
    """Return what will not work on a host, each a sentence with what mends it.

    `ray_gpus`: how many Ray has there; None without Ray.
    """
    gpus, there, said = facts["gpus"], _visible_gpus(facts), []
    if ray_gpus is not None and int(ray_gpus) < there:
        said.append(
            f"the driver (NVML) sees {there} GPUs and Ray {ray_gpus:g}; start this node again "
            f"with: ray start --num-gpus={there} ..."
        )
    if ray_gpus and not gpus["nvml"]["problem"] and int(ray_gpus) > there:
        said.append(
            f"Ray has {ray_gpus:g} GPUs and the driver (NVML) sees {there}: workers would wait for "
            f"GPUs that are not there; start this node again with: ray start --num-gpus={there} ..."
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
    """Return what somebody has chosen on a host and may have forgotten, each a sentence."""
    number = len(facts["gpus"]["nvml"]["names"])
    if not (hidden := number - _visible_gpus(facts)):
        return []
    return [
        f"host {facts['host']}: CUDA_VISIBLE_DEVICES={facts['visible']} hides {hidden} of "
        f"{number} GPUs; unset it before Ray is started, if they are to be used."
    ]


def _visible_gpus(facts: Facts) -> int:
    """Return how many of the driver's GPUs CUDA_VISIBLE_DEVICES leaves."""
    there, visible = len(facts["gpus"]["nvml"]["names"]), facts["visible"]
    if visible is None:
        return there
    return min(there, sum(one.strip() not in ("", "-1") for one in visible.split(",")))


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
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _disk_bytes_per_s() -> float:
    content = os.urandom(PROBE_BYTES)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return PROBE_BYTES / (time.perf_counter() - began)
