"""Ctrl-C in mid-search: what is finished stays, and the same command continues."""

import signal
import time
from pathlib import Path

import psutil
import pytest

import raybench
from raybench.cluster.signals import is_running
from raybench.results.records import read_records

from .commands import start

pytestmark = pytest.mark.ray
SPACE = Path(__file__).with_name("small.yaml")
TORCH = ("--set", "space.framework=[torch]", "--set", "space.batch_size_per_worker=[16, 32]")


@pytest.mark.all
def test_ctrl_c_writes_results_and_the_same_command_continues(tmp_path: Path) -> None:
    records = tmp_path / "results" / "small" / "records.jsonl"
    process = start(
        "tune", SPACE, "--set", "confirm.top=0", *TORCH, cwd=tmp_path, log=tmp_path / "log"
    )
    wait_for_run(records, tmp_path / "log")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130, (tmp_path / "log").read_text()
    first = raybench.load(records.parent).trials
    finished = set(first[first["stop"] != "interrupted"]["trial"])
    assert 1 <= len(finished) < 4
    assert (records.parent / "trials.csv").is_file()
    process = start(
        "tune", SPACE, "--set", "confirm.top=0", *TORCH, cwd=tmp_path, log=tmp_path / "log2"
    )
    assert process.wait(timeout=200) == 0, (tmp_path / "log2").read_text()
    trials = raybench.load(records.parent).trials
    trials = trials[trials["phase"] == "search"]
    assert sorted(trials["trial"]) == ["0000", "0001", "0002", "0003"]
    assert set(trials["state"]) == {"complete"}
    kept = trials[trials["trial"].isin(finished)]
    before = first.set_index("trial")["train_s"]
    assert all(row.train_s == before[row.trial] for row in kept.itertuples())


@pytest.mark.all
def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    records = tmp_path / "results" / "small" / "records.jsonl"
    process = start("tune", SPACE, cwd=tmp_path, log=tmp_path / "log")
    wait_for_run(records, tmp_path / "log")
    started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) > 5, "Ray, its agents and workers"
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert "the same command continues" in (tmp_path / "log").read_text()
    assert read_records(records.parent).runs
    deadline = time.monotonic() + 5
    while left := [pid for pid in started if is_running(pid)]:
        assert time.monotonic() < deadline, [Path(f"/proc/{p}/cmdline").read_text() for p in left]
        time.sleep(0.1)


def wait_for_run(records: Path, log: Path) -> None:
    """Wait until a finished run is recorded."""
    deadline = time.monotonic() + 120
    while '"kind": "run"' not in (records.read_text() if records.is_file() else ""):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
