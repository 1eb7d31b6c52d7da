import os

import pytest

from raybench.stats import clock as module
from raybench.stats.clock import CPU_NAMES, WORKER_PHASES, CpuUse, Ledger, cpu_use, merge_ranks


class FakeClock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


def test_every_second_is_in_exactly_one_phase(clock):
    ledger = Ledger("setup", clock=clock)
    walk = [("compile", 2.0), ("train", 4.0), ("eval", 8.0), ("train", 16.0), ("report", 32.0)]
    clock.now += 1.0
    for phase, seconds in walk:
        ledger.enter(phase)
        clock.now += seconds
    snapshot = ledger.snapshot()
    assert [snapshot[name] for name in WORKER_PHASES] == [1.0, 2.0, 20.0, 8.0, 0.0, 32.0]
    assert ledger.seconds("report") == 32.0, "the running phase is counted too"
    assert sum(snapshot[name] for name in WORKER_PHASES) == clock.now - 1000.0


def test_the_ledger_continues_from_earlier_seconds(clock):
    ledger = Ledger("setup", clock=clock, earlier={"setup": 1.0, "train": 5.0, "input": 0.5})
    zeros = dict.fromkeys((*WORKER_PHASES, *CPU_NAMES), 0.0)
    assert ledger.snapshot() == zeros | {"setup": 1.0, "train": 5.0}
    clock.now += 2.0
    ledger.enter("train")
    clock.now += 4.0
    assert (ledger.seconds("setup"), ledger.seconds("train")) == (3.0, 9.0)


def test_merge_takes_the_slowest_rank_phase_by_phase():
    first = {"train": 2.0, "eval": 0.5, "input": 0.1}
    second = {"train": 1.5, "eval": 0.75, "input": 0.3}
    assert merge_ranks([first, second]) == {"train": 2.0, "eval": 0.75, "input": 0.3}
    assert merge_ranks([first]) == first


@pytest.mark.parametrize(
    ("use", "seconds"),
    [
        (CpuUse(own=4.0), 0.0),
        (CpuUse(own=2.0, delayed=2.0, busy=4.0), 2.0),  # half of a core
        (CpuUse(own=4.0, delayed=2.0, busy=4.0), 0.0),  # its own threads alternated
        (CpuUse(own=2.0, delayed=0.1, busy=4.0), 0.1),  # it slept while others worked
        (CpuUse(own=3.0, busy=3.0, taken=1.0), 1.0),  # stolen, or refused by a quota
        (CpuUse(delayed=9.0, busy=99.0, taken=9.0), 4.0),  # limited to the wall time
    ],
)
def test_seconds_taken_by_other_processes_are_estimated(use, seconds):
    assert use.disturbed_s(4.0) == pytest.approx(seconds)


def test_cpu_usage_is_read_only_when_training_begins_and_ends(clock):
    uses = [CpuUse(10.0, 1.0, 20.0), CpuUse(12.0, 3.0, 24.0), CpuUse(50.0), CpuUse(51.0)]
    ledger = Ledger(
        "setup", clock=clock, cpu=lambda: uses.pop(0), earlier={"train": 9.0, "train_cpu": 7.0}
    )
    for phase in ("compile", "train", "train", "eval", "report"):
        ledger.enter(phase)
        clock.now += 4.0 if phase == "train" else 1.0
    snapshot = ledger.snapshot()
    assert len(uses) == 2
    assert (snapshot["train"], snapshot["train_cpu"]) == (17.0, 9.0)
    assert snapshot["disturbed"] == pytest.approx(2.0)
    ledger.enter("train")
    ledger.enter("eval")
    assert ledger.snapshot()["train_cpu"] == 10.0


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        ({"proc/stat": "cpu0 1 1 1 1 1 1 1 1 0 0"}, 0.0),  # LXC numbers its cores from 0
        ({"proc/stat": None}, 0.0),
        # 8 workers, each pinned to one core, under a quota of 3.5: throttled 4 s in total
        ({}, 1.0),
        ({"sys/fs/cgroup/cpu.max": None}, 0.5),
        ({"sys/fs/cgroup/cpu.max": None, "sys/fs/cgroup/cpu.cfs_quota_us": "400000"}, 1.0),
    ],
)
def test_cpu_usage_is_read_on_every_kind_of_host(files, taken, tmp_path, monkeypatch):
    usual = {
        "proc/self/schedstat": "0 0 0",
        "proc/self/task/1/schedstat": "0 3000000000 0",
        "proc/self/cgroup": "0::/",
        "proc/stat": "cpu 1\ncpu5 100 0 0 9 9 0 0 0 0 0",
        "sys/fs/cgroup/cpu.stat": "throttled_usec 4000000",
        "sys/fs/cgroup/cpu.max": "350000 100000",
        "sys/fs/cgroup/cpu.cfs_period_us": "100000",
    }
    for name, content in (usual | files).items():
        if content is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
    monkeypatch.setattr(
        module, "Path", lambda *parts: tmp_path.joinpath(*(part.lstrip("/") for part in parts))
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    module._cpu_stat_file.cache_clear()
    try:
        used = cpu_use()
    finally:
        module._cpu_stat_file.cache_clear()
    assert used.taken == pytest.approx(taken)
    assert used.delayed == (3.0 if taken else 0.0)
