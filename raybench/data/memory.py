"""Cores and available memory of this machine or container, and memory-mapped arrays."""

import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from raybench.spec.errors import ErrorCode, UserError

GIB = 2**30
_CGROUPS = (  # folder of the controller; its files of limit, usage, statistics (cgroups v2, v1)
    ("", "memory.max", "memory.current", "memory.stat"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
)
_CGROUP_FOLDER = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def num_local_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # only on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def require_memory(num_bytes: int, what: str) -> None:
    """Raise UserError if more memory is needed than is available in this machine or container.

    Args:
        num_bytes: Number of bytes that are needed.
        what: Start of the message: what needs the memory.
    """
    available = available_bytes()
    if num_bytes > available:
        raise UserError(
            f"{what} needs {num_bytes / GIB:,.1f} GiB of memory, but only {available / GIB:,.1f} "
            "GiB are available.",
            ErrorCode.NO_ROOM,
        )


def available_bytes() -> int:
    """Return the available memory of this machine or container in bytes.

    It is the minimum over the machine and all nested cgroups, such as those of a Slurm job or of a
    systemd slice.
    """
    available = [int(psutil.virtual_memory().available)]
    for controller, *names in _CGROUPS:
        root = _CGROUP_FOLDER / controller
        group = root
        if _OWN_GROUPS.is_file():  # lines such as `4:cpu,memory:/slurm/job_7`
            lines = (line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines())
            paths = (path for _, names_text, path in lines if controller in names_text.split(","))
            group = root / next(paths, "/").lstrip("/")
        folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
        available += [_cgroup_bytes(*(folder / name for name in names)) for folder in folders]
    return min(available)


def _cgroup_bytes(*files: Path) -> int:
    """Return the available memory of a cgroup in bytes; `sys.maxsize` if it has no limit.

    Args:
        files: Files with the limit, the usage and the statistics of the cgroup, in this order.
    """
    if not all(file.is_file() for file in files):
        return sys.maxsize
    limit, usage, statistics = (file.read_text() for file in files)
    if not limit.strip().isdigit():  # "max"
        return sys.maxsize
    entries = dict(line.split() for line in statistics.splitlines())
    # Cached pages of files count as used, but the kernel reclaims them when memory is needed.
    reclaimable = int(entries.get("total_inactive_file", entries.get("inactive_file", 0)))
    return max(0, int(limit) - int(usage) + reclaimable)


Array = npt.NDArray[Any]

MAX_MAPPED_SHARE = 0.5
"""Maximum size of an array that is writable or copied, as a fraction of the available memory. A
larger array is mapped read-only, because the system may refuse to reserve so much memory, and its
rows are read only when they are needed."""


def map_array(file: Path) -> Array:
    """Return the array of an `.npy` file, memory-mapped.

    The array is writable (copy-on-write), so that torch accepts it without a copy or a warning.
    Only a large array is read-only (see `MAX_MAPPED_SHARE`).
    """
    is_large = file.stat().st_size > MAX_MAPPED_SHARE * available_bytes()
    array: Array = np.load(file, mmap_mode="r" if is_large else "c")
    return array.view(np.ndarray)


def is_mapped(array: Array) -> bool:
    """Return whether an array is memory-mapped, or a view of a memory-mapped array."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return True
        owner = owner.base
    return isinstance(owner, mmap.mmap)


def is_beyond_memory(array: Array, num_rows: int) -> bool:
    """Return whether an array is memory-mapped and too large to copy `num_rows` of its rows into
    memory (see `MAX_MAPPED_SHARE`)."""
    num_bytes = array.nbytes / max(1, len(array)) * num_rows
    return is_mapped(array) and num_bytes > MAX_MAPPED_SHARE * available_bytes()
