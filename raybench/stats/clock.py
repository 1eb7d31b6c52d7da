"""The clock and the ledger: where the seconds of a run went; and the time of day."""

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
"""Phases of a run's seconds, each measured by itself; `input` is part of `train`.

| phase | seconds spent |
|---|---|
| queue | from asking for workers until a worker group is given |
| start | starting that group; 0 when it was warm |
| lost | waiting for an answer that did not come, what was repeated; no training time |
| setup | data, model, optimizer: building and releasing them |
| compile | first step, tracing and warm-up on throw-away data |
| train | training: the objective's clock (`input` is waiting for data in it) |
| eval | validation |
| checkpoint | saving weights, and the state that a run is continued from |
| report | results and commands on their way, and the driver's own work between two commands |
"""
OTHER = "other"
"""Seconds of a run's wall time that no phase accounts for: the test of the ledger, below 1 % of
the wall time of a run that ended well. Below zero where the ranks' maxima overlap."""
CPU_NAMES = ("train_cpu", "disturbed")
"""Ledger entries beside the phases, both within `train`: processor seconds of the worker, and
seconds in which others had its cores (a process, the host of a virtual machine, a quota)."""
AWAY = "away"
"""State of a worker's ledger between two commands: the driver accounts for that time."""


class CpuUse(NamedTuple):
    """Seconds so far, of which differences are taken."""

    own: float = 0.0
    """Processor seconds of this process."""
    delayed: float = 0.0
    """Seconds in which threads of this process were ready to run and had no core, summed over
    threads."""
    busy: float = 0.0
    """Seconds in which the cores of this process were busy, with any process."""
    taken: float = 0.0
    """Seconds of each core that the host of a virtual machine stole or a quota refused."""

    def minus(self, earlier: "CpuUse") -> "CpuUse":
        """Return what was used since then."""
        return CpuUse(*(now - then for now, then in zip(self, earlier, strict=True)))

    def plus(self, other: "CpuUse") -> "CpuUse":
        """Return both together."""
        return CpuUse(*map(sum, zip(self, other, strict=True)))

    def disturbed_s(self, seconds: float) -> float:
        """Return how many of `seconds`, those in which this was used, others took.

        Threads of one process delay each other too, so at most what others used of its cores
        counts. Where several were delayed at once, it is what each was; what they worked
        themselves nobody took (a quota's seconds are its whole group's).
        """
        by_others = max(0.0, min(self.delayed, self.busy - self.own))
        at_once = max(1.0, (self.own + self.delayed) / max(seconds, 1e-9))
        left = max(0.0, seconds - self.own / at_once)
        return min(left, by_others / at_once + max(0.0, self.taken))


def cpu_use() -> CpuUse:
    """Return this process's use so far (0.3 ms with 40 threads); its own alone outside Linux, and
    in containers that number the cores otherwise or show no quota."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    own = used.ru_utime + used.ru_stime
    if not Path("/proc/self/schedstat").exists():
        return CpuUse(own)
    delayed = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            delayed += int((task / "schedstat").read_bytes().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended between the listing and the reading
    cores = {f"cpu{core}".encode() for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_bytes().splitlines()]
        refused = _refused_s()
    except OSError:
        return CpuUse(own)
    known = [one[1:9] for one in lines if one[0] in cores]
    if len(known) < len(cores):  # LXC: the lines count from 0, the affinity is the host's
        return CpuUse(own)
    user, nice, system, _, _, irq, softirq, stolen = (
        sum(column) / os.sysconf("SC_CLK_TCK")
        for column in zip(*(map(int, one) for one in known), strict=True)
    )
    busy = user + nice + system + irq + softirq
    return CpuUse(own, delayed / 1e9, busy, stolen / len(cores) + refused)


@functools.cache
def _quota() -> Path | None:
    """Return the file that says what a quota has refused to this process's group, if any."""
    own = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    files = (Path("/sys/fs/cgroup", folder, "cpu.stat") for folder in (own, "", "cpu"))
    return next(
        (file for file in files if file.is_file() and b"throttled" in file.read_bytes()), None
    )


def _refused_s() -> float:
    """Return the seconds so far that a quota has refused to each core that its group may use.

    Linux adds them up over all cores of the group, however few of them this process is pinned to.
    """
    if (file := _quota()) is None:
        return 0.0
    words = file.read_text().split()
    named = dict(zip(words[::2], words[1::2], strict=False))
    all_s = int(named.get("throttled_usec", 0)) / 1e6 + int(named.get("throttled_time", 0)) / 1e9
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # one file, or version 1's two
    files = [one for name in names if (one := file.with_name(name)).is_file()]
    quota = " ".join(one.read_text() for one in files).split()
    cores = os.cpu_count() or 1
    if len(quota) > 1 and quota[0].isdigit():
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return all_s / cores


class Ledger:
    """Adds wall time to phases; every moment between start and now is in exactly one.

    Kept by each worker with `time.perf_counter`. The device must be synchronised before
    `enter`, so that queued work is charged to the phase that queued it.
    """

    def __init__(
        self,
        phase: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], CpuUse] = cpu_use,
        earlier: Mapping[str, float] | None = None,
    ) -> None:
        """Begin in `phase`; a run that is continued has its `earlier` seconds of each phase.

        `cpu` is read where `train` begins and ends, on the clock of the phases around it.
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
        """End the present phase and begin another."""
        if phase not in self._seconds:
            raise KeyError(phase)
        if phase == "train" != self._phase:
            self._before = self._cpu()
        now = self._clock()
        self._seconds[self._phase] += now - self._since
        left, self._phase, self._since = self._phase, phase, now
        if left == "train" != phase:
            self._used = self._used.plus(self._cpu().minus(self._before))

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count seconds of one phase as another's: somebody else has measured what they were."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    @property
    def phase(self) -> str:
        """The present phase."""
        return self._phase

    def seconds(self, phase: str) -> float:
        """Seconds in `phase` so far, the running one included."""
        running = self._clock() - self._since if phase == self._phase else 0.0
        return self._seconds[phase] + running

    def snapshot(self) -> dict[str, float]:
        """Seconds so far of every worker phase, and CPU_NAMES up to the last end of `train`."""
        train_s = self.seconds("train") - self._earlier["train"]
        cpu = dict(zip(CPU_NAMES, (self._used.own, self._used.disturbed_s(train_s)), strict=True))
        seconds = {name: self.seconds(name) for name in WORKER_PHASES}
        return seconds | {name: self._earlier[name] + spent for name, spent in cpu.items()}


def merge_ranks(snapshots: list[Mapping[str, float]]) -> dict[str, float]:
    """Maximum over ranks, phase by phase.

    Ranks wait for one another at every phase edge, so the maxima still sum to the seconds the
    workers were busy (`OTHER` would show it if not).
    """
    return {name: max(snapshot[name] for snapshot in snapshots) for name in snapshots[0]}


def unix_seconds() -> float:
    """Return the seconds since 1970, as files' times have them; the machine may set it anew."""
    return datetime.now(UTC).timestamp()
