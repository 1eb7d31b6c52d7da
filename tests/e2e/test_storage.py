"""A study at a URL: its driver is killed during the search, another machine resumes the study, and
a third one reads it.

A machine is simulated by a cache folder of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import optuna
import pandas as pd
import pytest

import raybench
from raybench.results.storage import Bucket
from tests.factories import wait_for

from .commands import ENVIRONMENT

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.apart, pytest.mark.timeout(900)]
TRIALS = 4
SPACE = f"""
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
    (folder / "space.yaml").write_text(SPACE)
    return {"XDG_CACHE_HOME": str(folder / "cache"), **server.environment}


def started(folder: Path, server, url: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start the search on a new machine."""
    words = [sys.executable, "-c", SOON, "space.yaml", "--out", url]
    environment = ENVIRONMENT | machine(folder, server)
    with log.open("w") as file:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file)


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
    assert_sampler_knows(journal, trials)
    runs = [line for line in map(json.loads, after) if line["kind"] == "run"]
    names = [run["trial"] for run in runs]
    assert len(names) == len(set(names)), "no run is recorded twice"


def assert_sampler_knows(journal: Path, trials: pd.DataFrame) -> None:
    """Check that Optuna's journal has the value of every trial in the table."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(journal))
    )
    study = optuna.load_study(study_name="raybench", storage=storage)
    known = {t.user_attrs["trial"]: t.value for t in study.trials if t.state.name == "COMPLETE"}
    # On a busy machine the time may be over before the first evaluation: then the worst is stored.
    accuracies = trials.set_index("trial")["best_accuracy"].fillna(0.0)
    assert known == pytest.approx({name: 1 - accuracies[name] for name in accuracies.index})
