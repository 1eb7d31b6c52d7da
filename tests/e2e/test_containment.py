"""A whole study whose workers are killed in search and race; a run of TensorFlow loses one in
test_live_session.py."""

import contextlib
import time
from pathlib import Path

import psutil
import pytest

import raybench
from raybench.cluster.ray_internals.local_ray import is_running
from raybench.results.records import read_records
from raybench.results.verdict import judge
from tests.factories import read_lines

from .commands import start

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(700)]
WORKLOAD = Path(__file__).with_name("deadly_workload.py")
SPACE = """
workload: deadly_workload:Deadly
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 2}
search: {early_stopping: false}
confirm: {race: 2, fresh: 1}
space:
  learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
fixed:  # the distance of evaluations is named, so that no reference run comes first, and dies
  {framework: torch, num_workers: 2, batch_size_per_worker: 32, eval_every_samples: 1257}
"""

DEATHS = ["setup", "eval"]
"""One dies in training in test_live_session.py, and here in the race."""


def workers_of(pid: int) -> list[psutil.Process]:
    """Ray Train workers below a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [p for p in below if is_running(p.pid) and "RayTrainWorker" in "".join(p.cmdline())]


def racing_run(folder: Path) -> str | None:
    """Return the run of the race that was evaluated last and goes on; None where none does."""
    if not (folder / "records.jsonl").is_file():
        return None
    *_, last = [{"kind": "", "trial": ""}, *read_lines(folder / "records.jsonl")]
    return last["trial"] if last["kind"] == "eval" and "-race" in last["trial"] else None


def test_a_study_survives_workers_killed_in_every_phase_and_leaves_none_behind(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    log, folder = tmp_path / "log", tmp_path / "results" / "small"
    num_trials = len(DEATHS) + 2
    (tmp_path / WORKLOAD.name).write_text(WORKLOAD.read_text())
    (tmp_path / "space.yaml").write_text(SPACE)
    process = start(
        *("tune", "space.yaml", "--trials", str(num_trials), "--out", folder),
        cwd=tmp_path,
        log=log,
        DEATHS=",".join(DEATHS),
        DEATHS_FOLDER=str(tmp_path),
    )
    seen: set[int] = set()
    killed: str | None = None
    deadline = time.monotonic() + 600
    while process.poll() is None:
        assert time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(psutil.Error):  # one ended while it was looked at
            workers = workers_of(process.pid)
            seen |= {worker.pid for worker in workers}
            if killed is None and (racing := racing_run(folder)) is not None:
                workers[-1].kill()
                killed = racing
        time.sleep(0.2)
    assert process.returncode == 0, log.read_text()
    assert all((tmp_path / phase).is_file() for phase in DEATHS)
    trials = raybench.load(folder).trials
    trials = trials[trials["phase"] == "search"]
    assert len(trials) == num_trials
    assert list(trials["state"]) == ["complete"] * num_trials
    lines = [line for line in read_lines(folder / "records.jsonl") if line["kind"] == "run"]
    searched = [line for line in lines if line["phase"] == "search"]
    assert sum(line["restarts"] for line in searched) == len(DEATHS)
    assert all((line["ledger"]["lost"] > 0) == (line["restarts"] > 0) for line in searched)
    assert "Failed runs" not in log.read_text()
    # In the race too: the run goes on in new workers, and is as good as any other.
    runs = read_records(folder).runs
    assert sorted(run.role for run in runs.values() if run.phase == "confirm") == [
        *("confirm", "race", "race")
    ]
    assert {line["trial"] for line in lines if line["role"] == "race" and line["restarts"]} == {
        killed
    }
    assert {run.state for run in runs.values()} == {"complete"}
    verdict = judge(raybench.load(folder))
    assert verdict is not None
    assert verdict.is_confirmed
    assert "(raylet)" not in log.read_text(), "Ray's own words are in ray.log"
    assert len(seen) == 2 * (2 + len(DEATHS))
    deadline = time.monotonic() + 120
    while any(is_running(pid) for pid in seen):
        assert time.monotonic() < deadline, "a worker outlived its search"
        time.sleep(0.2)
