"""How much memory there is, asked before it is taken."""

import os
from pathlib import Path

from raybench.core.errors import UserError

GIB = 2**30
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (  # limit, use, and statistics of a container: version 2, then version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CGROUP_FOLDER = Path("/sys/fs/cgroup")


def require_memory(num_bytes: int, what: str) -> None:
    """Raise UserError if `num_bytes` are more than this machine has left; `what` needs them."""
    available = available_bytes()
    if num_bytes > available:
        raise UserError(
            f"{what} needs {num_bytes / GIB:,.1f} GiB of memory, and this machine has "
            f"{available / GIB:,.1f} GiB left; choose a smaller one."
        )


def available_bytes() -> int:
    """Return the bytes of memory that can still be taken: the machine's, or the container's."""
    return min(_of_machine(), *(_of_container(*names) for names in _CGROUPS))


def _of_machine() -> int:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not _MEMINFO.is_file():  # not Linux
        return physical
    entries = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    if "MemAvailable" not in entries:
        return physical
    return int(entries["MemAvailable"].split()[0]) * 1024


def _of_container(limit_name: str, use_name: str, statistics_name: str) -> float:
    files = [_CGROUP_FOLDER / name for name in (limit_name, use_name, statistics_name)]
    if not all(file.is_file() for file in files):
        return float("inf")
    limit, use, statistics = (file.read_text() for file in files)
    if not limit.strip().isdigit():  # "max"
        return float("inf")
    entries = dict(line.split() for line in statistics.splitlines())
    # Pages of files count as used, and are given back when memory is asked for.
    reclaimable = int(entries.get("total_inactive_file", entries.get("inactive_file", 0)))
    return max(0, int(limit) - int(use) + reclaimable)
