"""Ledger (seconds that a run spends in each phase), CPU usage of a process, and Unix time."""

import functools
import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

DRIVER_PHASES = ("queue", "start", "lost")
WORKER_PHASES = ("setup", "compile", "train", "eval", "checkpoint", "report")
PHASES = DRIVER_PHASES + WORKER_PHASES
"""Phases of a run, each measured separately; `input` is part of `train`.

| phase | seconds spent |
|---|---|
| queue | waiting for resources of a worker group |
| start | starting the group; 0 if it was warm |
| lost | waiting for replacements of lost workers, and repeating lost work; not training time |
| setup | building and releasing data, model and optimizer |
| compile | first step, tracing and warm-up, on data that is discarded |
| train | training, including waiting for data (`input`); the only phase that the objective counts |
| eval | validation |
| checkpoint | saving weights and checkpoints |
| report | sending results and commands, and the driver's work between two commands |
"""
OTHER = "other"
"""Ledger entry for wall time that no phase accounts for; below 1 % for a run that ended normally.
It can be negative, because each phase is a maximum over ranks, and the maxima may overlap in
time."""
CPU_NAMES = ("train_cpu", "disturbed")
"""Ledger entries measured during the phase `train`: CPU seconds of the worker, and seconds in which
other processes, the hypervisor (steal) or a CPU quota (throttling) kept the worker from running."""
AWAY = "away"
"""Phase of a worker's ledger between two commands of the driver. These seconds are not in
`Ledger.snapshot`; the driver, which knows their cause, counts them for other phases."""


class CpuUse(NamedTuple):
    """CPU seconds accumulated up to a reading; only differences between readings are meaningful."""

    own: float = 0.0
    """CPU seconds of this process."""
    delayed: float = 0.0
    """Seconds that runnable threads of this process waited for a core, summed over threads."""
    busy: float = 0.0
    """CPU seconds of all processes on the cores that this process may use."""
    taken: float = 0.0
    """Seconds per core lost to hypervisor steal or quota throttling."""

    def minus(self, earlier: "CpuUse") -> "CpuUse":
        """Return the CPU usage between an earlier reading and this one."""
        return CpuUse(
            *(later - earlier_value for later, earlier_value in zip(self, earlier, strict=True))
        )

    def plus(self, other: "CpuUse") -> "CpuUse":
        """Return the sum of two CPU usages."""
        return CpuUse(*map(sum, zip(self, other, strict=True)))

    def disturbed_s(self, seconds: float) -> float:
        """Return the seconds that this process lost to other processes.

        The threads of a process also delay each other. Delays are therefore limited to the CPU time
        of other processes on the same cores, and divided by the mean number of threads that run or
        wait. The result is limited to the time in which this process did not run, since throttling
        is counted for the whole cgroup.

        Args:
            seconds: Wall-clock seconds in which this CPU usage accumulated.
        """
        by_others = max(0.0, min(self.delayed, self.busy - self.own))
        at_once = max(1.0, (self.own + self.delayed) / max(seconds, 1e-9))
        idle_s = max(0.0, seconds - self.own / at_once)
        return min(idle_s, by_others / at_once + max(0.0, self.taken))


def cpu_use() -> CpuUse:
    """Return the CPU usage of this process so far; a call takes 0.3 ms with 40 threads.

    Outside Linux, and in containers that renumber cores or hide the quota, only `own` is measured,
    and the other fields are 0.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    own_s = usage.ru_utime + usage.ru_stime
    if not Path("/proc/self/schedstat").exists():
        return CpuUse(own_s)
    delayed = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            delayed += int((task / "schedstat").read_bytes().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended between the listing and the reading
    cores = {f"cpu{core}".encode() for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_bytes().splitlines()]
        throttled_s = _throttled_s()
    except OSError:
        return CpuUse(own_s)
    ticks_by_core = [line[1:9] for line in lines if line[0] in cores]
    # LXC numbers the cores of a container from 0, but the affinity has the numbers of the host.
    if len(ticks_by_core) < len(cores):
        return CpuUse(own_s)
    user, nice, system, _, _, irq, softirq, stolen = (
        sum(column) / os.sysconf("SC_CLK_TCK")
        for column in zip(*(map(int, ticks) for ticks in ticks_by_core), strict=True)
    )
    busy = user + nice + system + irq + softirq
    return CpuUse(own_s, delayed / 1e9, busy, stolen / len(cores) + throttled_s)


@functools.cache
def _cpu_stat_file() -> Path | None:
    """Return the `cpu.stat` file with the throttled time of this process's cgroup; None if there is
    none."""
    group = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    files = (Path("/sys/fs/cgroup", folder, "cpu.stat") for folder in (group, "", "cpu"))
    return next(
        (file for file in files if file.is_file() and b"throttled" in file.read_bytes()), None
    )


def _throttled_s() -> float:
    """Return the seconds in which a CPU quota throttled this process's cgroup so far.

    Linux reports the sum over all cores of the cgroup, which is divided by the number of cores that
    the cgroup may use.
    """
    if (file := _cpu_stat_file()) is None:
        return 0.0
    fields = file.read_text().split()
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    all_s = int(values.get("throttled_usec", 0)) / 1e6 + int(values.get("throttled_time", 0)) / 1e9
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # cgroup v2 has one file, v1 two
    files = [path for name in names if (path := file.with_name(name)).is_file()]
    quota = " ".join(path.read_text() for path in files).split()
    cores = os.cpu_count() or 1
    if len(quota) > 1 and quota[0].isdigit():
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return all_s / cores


class Ledger:
    """Records how many wall-clock seconds a worker spends in each phase.

    Exactly one phase is active at any time. Synchronize the device before calling `enter`, so that
    asynchronous work counts for the phase that launched it.
    """

    def __init__(
        self,
        phase: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], CpuUse] = cpu_use,
        earlier: Mapping[str, float] | None = None,
    ) -> None:
        """Start the ledger in a phase.

        Args:
            phase: First phase.
            clock: Function that returns the current time in seconds.
            cpu: Function that returns the CPU usage of this process. It is called just before
                `train` begins and just after it ends, so that the call does not count as training.
            earlier: Ledger up to the checkpoint from which the run resumes: seconds by phase.
        """
        self._clock, self._cpu = clock, cpu
        self._earlier = {name: (earlier or {}).get(name, 0.0) for name in ("train", *CPU_NAMES)}
        self._before, self._used = CpuUse(), CpuUse()
        self._seconds = dict.fromkeys((*WORKER_PHASES, AWAY), 0.0)
        for name in WORKER_PHASES:
            self._seconds[name] += (earlier or {}).get(name, 0.0)
        self._phase = phase
        self._since = clock()

    def enter(self, phase: str) -> None:
        """End the current phase and begin another."""
        if phase not in self._seconds:
            raise KeyError(phase)
        if phase == "train" != self._phase:
            self._before = self._cpu()
        now = self._clock()
        self._seconds[self._phase] += now - self._since
        ended_phase, self._phase, self._since = self._phase, phase, now
        if ended_phase == "train" != phase:
            self._used = self._used.plus(self._cpu().minus(self._before))

    def move(self, seconds: float, source: str, target: str) -> None:
        """Reassign seconds from one phase to another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._phase

    def seconds(self, phase: str) -> float:
        """Return the seconds spent in a phase so far; for the current phase, up to now."""
        running = self._clock() - self._since if phase == self._phase else 0.0
        return self._seconds[phase] + running

    def snapshot(self) -> dict[str, float]:
        """Return the seconds of every worker phase so far, and the CPU seconds (CPU_NAMES) up to
        the last end of the phase `train`."""
        train_s = self.seconds("train") - self._earlier["train"]
        cpu = dict(zip(CPU_NAMES, (self._used.own, self._used.disturbed_s(train_s)), strict=True))
        seconds = {name: self.seconds(name) for name in WORKER_PHASES}
        return seconds | {name: self._earlier[name] + spent for name, spent in cpu.items()}


def merge_ranks(snapshots: list[Mapping[str, float]]) -> dict[str, float]:
    """Return one ledger whose entries are the maximum over the ledgers of all ranks.

    Ranks synchronize at the end of every phase, so the sum of the maxima is about the wall time of
    the workers (see `OTHER`).

    Args:
        snapshots: Result of `Ledger.snapshot` for each rank.
    """
    return {name: max(snapshot[name] for snapshot in snapshots) for name in snapshots[0]}


def unix_seconds() -> float:
    """Return the current Unix time in seconds, which may jump if the system clock is adjusted."""
    return datetime.now(UTC).timestamp()
