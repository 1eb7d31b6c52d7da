"""A whole study whose workers are killed in search and race; a run of TensorFlow loses one in
test_live_session.py."""

import contextlib
import shutil
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import raybench
from raybench.cluster.ray_internals.local_ray import is_running
from raybench.results.records import read_records
from raybench.results.verdict import judge
from tests.factories import read_lines

from .watched import Watched

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(700)]
WORKLOAD = Path(__file__).with_name("deadly_workload.py")
SPACE = """
workload: deadly_workload:Deadly
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 2}
search: {trials: 2, early_stopping: false}
confirm: {race: 2, fresh: 1}
space:
  learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
fixed:  # the distance of evaluations is set, so that no reference run comes first and dies
  {framework: torch, num_workers: 2, batch_size_per_worker: 32, eval_every_samples: 1257}
"""
DEATHS = ["setup", "eval"]
"""Phases of trials in which workers die; one dies in training in test_live_session.py."""


def racing_run(folder: Path) -> str | None:
    """Return the confirmation run that has reached the last recorded evaluation and goes on, or
    None."""
    if not (folder / "records.jsonl").is_file():
        return None
    *_, last = [{"kind": "", "trial": ""}, *read_lines(folder / "records.jsonl")]
    return last["trial"] if last["kind"] == "eval" and "-race" in last["trial"] else None


def test_a_study_survives_workers_killed_in_every_phase_and_leaves_none_behind(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "results" / "small"
    shutil.copy(WORKLOAD, tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    deaths = {"DEATHS": ",".join(DEATHS), "DEATHS_FOLDER": str(tmp_path)}
    workers: set[int] = set()
    killed: str | None = None
    with Watched("tune", "space.yaml", "--out", folder, cwd=tmp_path, **deaths) as search:
        while search.process.poll() is None:
            for process in search.left():
                with contextlib.suppress(psutil.Error):  # it has ended
                    if "RayTrainWorker" in "".join(process.cmdline()):
                        workers.add(process.pid)
            if killed is None and (racing := racing_run(folder)) is not None:
                psutil.Process(max(pid for pid in workers if is_running(pid))).kill()
                killed = racing
            time.sleep(0.1)
        assert search.wait() == 0, search.printed
        search.expect_none_left()
    assert len(workers) == 2 * (2 + len(DEATHS))
    assert all((tmp_path / phase).is_file() for phase in DEATHS)
    runs = read_records(folder).runs
    assert Counter(run.role for run in runs.values()) == {"trial": 2, "race": 2, "confirm": 1}
    assert {run.state for run in runs.values()} == {"complete"}
    trials = [run for run in runs.values() if run.role == "trial"]
    assert sum(run.restarts for run in trials) == len(DEATHS)
    assert all((run.ledger["lost"] > 0) == (run.restarts > 0) for run in trials)
    restarted = {name for name, run in runs.items() if run.restarts and run.role == "race"}
    assert restarted == {killed}
    verdict = judge(raybench.load(folder))
    assert verdict is not None
    assert verdict.is_confirmed
    assert "Failed runs" not in search.printed
    assert "(raylet)" not in search.printed, "Ray's own messages are in ray.log"
