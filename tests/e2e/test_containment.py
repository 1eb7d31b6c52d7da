"""A whole search whose workers are killed while it runs; and one with a group for each trial."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

import raybench

from .commands import raybench as run
from .commands import start

pytestmark = pytest.mark.ray
SPACE = Path(__file__).with_name("small.yaml")
QUICK = ("--set", "confirm.top=0", "--set", "space.framework=[torch]")


def workers_of(pid: int) -> list[psutil.Process]:
    """Ray Train workers below a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [p for p in below if is_alive(p.pid) and "RayTrainWorker" in "".join(p.cmdline())]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_search_survives_killed_workers_and_leaves_none_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    records = tmp_path / "results" / "small" / "records.jsonl"
    # A target nobody reaches: every trial trains its six seconds.
    process = start(
        "tune", SPACE, *QUICK, "--target", "1.0", "--trials", "2", cwd=tmp_path, log=log
    )
    seen: set[int] = set()
    killed = None
    deadline = time.monotonic() + 200
    while process.poll() is None:
        assert time.monotonic() < deadline, log.read_text()
        try:
            workers = workers_of(process.pid)
        except psutil.Error:
            continue  # one ended while it was looked at
        seen |= {worker.pid for worker in workers}
        is_training = records.is_file() and '"kind": "eval"' in records.read_text()
        if killed is None and workers and is_training:
            killed = workers[0].pid
            os.kill(killed, signal.SIGKILL)
        time.sleep(0.2)
    assert process.returncode == 0, log.read_text()
    trials = raybench.load(records.parent).trials
    trials = trials[trials["phase"] == "search"]
    assert len(trials) == 2  # torch with 1 and with 2 workers
    assert list(trials["failure"].dropna()) == ["worker_lost"]
    assert "worker_lost" in log.read_text()
    assert len(seen) > 1
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in seen):
        assert time.monotonic() < deadline, "a worker outlived its search"
        time.sleep(0.2)


def test_isolation_gives_every_trial_new_workers(tmp_path: Path) -> None:
    changes = ("--set", "num_workers=1", "--set", "space.learning_rate=[1.0e-3, 3.0e-3]")
    run("tune", SPACE, *QUICK, *changes, "--trials", "2", "--isolation", "process", cwd=tmp_path)
    trials = raybench.load(tmp_path / "results" / "small").trials
    assert (trials[trials["phase"] == "search"]["start_s"] > 0).sum() >= 1
