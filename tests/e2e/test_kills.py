"""Studies whose workers or drivers are killed.

A killed worker is replaced, in search and confirmation; test_live_session.py compares a run that
has lost a worker with an undisturbed one. After a killed driver, the same command resumes the
study: a run from its checkpoint, and a study at a URL on another machine, which is simulated by
another cache folder.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import psutil
import pytest

import raybench
from raybench.cluster.ray_internals.local_ray import is_running
from raybench.models.find import load_workload_dataset
from raybench.results.records import read_records
from raybench.results.storage import Bucket
from raybench.results.verdict import verdict_of
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import find_backend
from raybench.training.run import run as train
from tests.factories import read_lines, wait_for

from .commands import ENVIRONMENT
from .commands import raybench as run
from .watched import Watched

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(900)]
WORKLOAD = Path(__file__).with_name("deadly_workload.py")
DEADLY_SPACE = """
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
    file = folder / "records.jsonl"
    *_, last = [{"kind": "", "trial": ""}, *(read_lines(file) if file.is_file() else ())]
    return last["trial"] if last["kind"] == "eval" and "-race" in last["trial"] else None


def test_a_study_survives_workers_killed_in_every_phase_and_leaves_none_behind(tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "results" / "small"
    shutil.copy(WORKLOAD, tmp_path)
    (tmp_path / "space.yaml").write_text(DEADLY_SPACE)
    words = ("tune", "space.yaml", "--out", folder)
    workers, killed = set[int](), None
    with Watched(*words, cwd=tmp_path, DEATHS_FOLDER=str(tmp_path)) as search:
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
    counts = Counter(run.role for run in runs.values())
    assert (counts["trial"], counts["race"]) == (2, 2)
    assert counts["confirm"] in (1, 2), "a solo run may change the winner, which then runs too"
    assert {run.state for run in runs.values()} == {"complete"}
    trials = [run for run in runs.values() if run.role == "trial"]
    assert sum(run.restarts for run in trials) == len(DEATHS)
    assert all((run.ledger["lost"] > 0) == (run.restarts > 0) for run in trials)
    restarted = {name for name, run in runs.items() if run.restarts and run.role == "race"}
    assert restarted == {killed}
    assert verdict_of(raybench.load(folder)).is_confirmed
    assert "Failed runs" not in search.printed
    assert "(raylet)" not in search.printed, "Ray's own messages are in ray.log"


CHECKPOINT_SPACE = """
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 1000}
search: {trials: 1, early_stopping: false}
confirm: {race: 0}
space:
  learning_rate: [1.0e-3, 3.0e-3]
fixed:
  {num_workers: 1, schedule: cosine, epochs: 12, batch_size_per_worker: 16,
   eval_every_samples: 1437, checkpoint_every_s: 1.0e-9}
"""


def test_the_run_of_a_killed_driver_resumes_and_equals_an_undisturbed_one(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "file.yaml").write_text(CHECKPOINT_SPACE)
    folder = tmp_path / "killed"
    with Watched("tune", "file.yaml", "--out", folder, cwd=tmp_path) as search:
        search.wait_for(lambda: has_checkpoint(folder / "checkpoints" / "0000"))
        search.process.kill()
        search.wait()
    first = read_lines(folder / "records.jsonl")
    run("tune", "file.yaml", "--out", folder, cwd=tmp_path)
    (record,) = read_records(folder).runs.values()
    assert (record.state, record.restarts) == ("complete", 0)
    assert facts(read_records(folder).curves["0000"]) == facts(undisturbed(record.spec))
    lines = read_lines(folder / "records.jsonl")
    end = [line["kind"] for line in lines].index("run")
    # A resumed run records its earlier evaluations again, with the seconds of the first session.
    seconds = list({line["index"]: line["train_s"] for line in lines[:end]}.values())
    assert seconds[:3] == [line["train_s"] for line in first[:3]]
    assert seconds == sorted(seconds)
    assert lines[end]["ledger"]["train"] == pytest.approx(seconds[-1])
    assert lines[end]["ledger"]["other"] > -0.1 * sum(lines[end]["ledger"].values())
    assert lines[end]["ledger"]["lost"] == 0
    assert not (folder / "checkpoints" / "0000").exists()


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder has a checkpoint of the third evaluation or a later one."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(name.isdecimal() and int(name) >= 3 for name in names)


def facts(curve: list[Evaluation]) -> list[tuple[object, ...]]:
    """Return the values of every evaluation that must be equal, bit by bit."""
    return [(p.index, p.samples, p.value, p.train_loss, p.learning_rate) for p in curve]


def undisturbed(spec: RunSpec) -> list[Evaluation]:
    """Return the curve of a run, trained in this process without Ray."""
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1, num_gpus=0)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    trainer = backend.Trainer(spec, workload, dataset, world)
    return list(train(spec, dataset, trainer, world, Ledger("setup")))


TRIALS = 4
URL_SPACE = f"""
workload: {Path(__file__).with_name("own_loops.py")}:plain
objective: {{kind: best_at_budget, max_train_seconds: 1}}
search: {{trials: {TRIALS}, sampler: random, early_stopping: false, concurrency: 1}}
confirm: {{race: 0}}
space:
  learning_rate: {{low: 1.0e-4, high: 1.0e-2, log: true}}
fixed: {{framework: python, model: {{slowness: 10}}}}
"""
SOON = """
from raybench.results import storage
storage.COPY_S = 1.0
from raybench.commands.cli import leave, run
import sys
leave(run("tune", sys.argv[1:]))
"""
"""Runs `tune`, and copies the records every second."""


def uploaded(url):
    """Return the lines of the records at a URL."""
    return (Bucket(url).get("records.jsonl") or b"").splitlines()


def machine(folder: Path, server) -> dict[str, str]:
    """Create a machine; return the environment variables of its commands."""
    folder.mkdir()
    (folder / "space.yaml").write_text(URL_SPACE)
    return {"XDG_CACHE_HOME": str(folder / "cache"), **server.environment}


def started(folder: Path, server, url: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start the search on a new machine."""
    words = [sys.executable, "-c", SOON, "space.yaml", "--out", url]
    environment = ENVIRONMENT | machine(folder, server)
    with log.open("w") as file:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file)


@pytest.mark.apart
def test_a_killed_driver_is_continued_from_elsewhere(server, tmp_path, monkeypatch):
    url, log = server.url(), tmp_path / "log"
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    for name, value in machine(third, server).items():
        monkeypatch.setenv(name, value)
    process = started(one, server, url, log)
    wait_for(
        lambda: sum(b'"kind": "run"' in line for line in uploaded(url)) >= 2,
        problem=lambda: None if process.poll() is None else log.read_text(),
    )
    process.kill()
    process.wait(timeout=600)
    before = uploaded(url)

    process = started(other, server, url, log)
    assert process.wait(timeout=600) == 0, log.read_text()
    printed = log.read_text()
    assert f"results: {url} (" in printed
    assert f"{other}/cache/" in printed
    after = uploaded(url)
    assert after[: len(before)] == before, "earlier records are unchanged"
    assert [key for key in Bucket(url).list_keys() if "=" in key] == []

    trials = raybench.load(url).trials
    trials = trials[trials["phase"] == "search"]
    assert sorted(trials["trial"]) == [f"{number:04d}" for number in range(TRIALS)]
    assert set(trials["state"]) == {"complete"}
    (journal,) = (other / "cache").rglob("optuna.log")
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.load_study(study_name="raybench", storage=storage)
    known = {t.user_attrs["trial"]: t.value for t in study.trials if t.state.name == "COMPLETE"}
    # On a busy machine the time may be over before the first evaluation: then the worst is stored.
    accuracies = trials.set_index("trial")["best_accuracy"].fillna(0.0)
    assert known == pytest.approx((1 - accuracies).to_dict()), "the sampler knows every trial"
    runs = [line for line in map(json.loads, after) if line["kind"] == "run"]
    names = [run["trial"] for run in runs]
    assert len(names) == len(set(names)), "no run is recorded twice"
