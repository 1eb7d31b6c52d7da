"""The driver is killed, again and again; the same command ends with the same study.

Once it is killed in test_storage.py; here as often as `RAYBENCH_KILLS` in the environment says.
"""

import os
import random
import signal
import time
from pathlib import Path

import optuna
import pandas as pd
import pytest

import raybench
from raybench.results.records import read_lines, read_records

from .commands import start

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(1500)]
STARTS_S, ENDS_S = 600, 600
"""Generous: a machine under load is slow, not wrong."""
SPACE = """
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 0.3}
search: {trials: TRIALS, sampler: random, early_stopping: false}
confirm: {race: 0}
space:
  learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
fixed: {num_workers: 1, batch_size_per_worker: 32}
"""
KILLS = int(os.environ.get("RAYBENCH_KILLS", "0"))
TRIALS = 8 + 4 * KILLS


@pytest.mark.skipif(not KILLS, reason="RAYBENCH_KILLS says how often")
def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "space.yaml").write_text(SPACE.replace("TRIALS", str(TRIALS)))
    folder, log = tmp_path / "out", tmp_path / "log"
    rng = random.Random(0)
    finished: dict[tuple[str, int], float] = {}
    for number in range(KILLS + 1):
        process = start("tune", "space.yaml", "--out", folder, cwd=tmp_path, log=log)
        if number < KILLS:
            wait_for_runs(folder, len({name for name, _ in finished}) + 1, log)
            time.sleep(rng.uniform(0.0, 1.5))
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=600)
        else:
            assert process.wait(timeout=ENDS_S) == 0, log.read_text()
        lines = [line for _, line in read_lines(folder / "records.jsonl")]
        runs = [line for line in lines if line["kind"] == "run"]
        # What was finished stands as it was, once; one that was disturbed runs again, and says so.
        names = [(run["trial"], run["reruns"]) for run in runs if run["phase"] == "search"]
        assert len(names) == len(set(names)), names
        for run in runs:
            seconds = run["ledger"]["train"]
            assert finished.setdefault((run["trial"], run["reruns"]), seconds) == seconds
    trials = raybench.load(folder).trials
    trials = trials[trials["phase"] == "search"]
    assert sorted(trials["trial"]) == [f"{n:04d}" for n in range(TRIALS)]
    assert set(trials["state"]) == {"complete"}
    assert_sampler_knows(folder, trials)


def assert_sampler_knows(folder: Path, trials: pd.DataFrame) -> None:
    """Hold that the sampler knows of every trial what the table says."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "optuna.log"))
    )
    study = optuna.load_study(study_name="raybench", storage=storage)
    told = {t.user_attrs["trial"]: t.value for t in study.trials if t.state.name == "COMPLETE"}
    accuracies = trials.set_index("trial")["best_accuracy"]
    assert told == pytest.approx({name: 1 - accuracies[name] for name in accuracies.index})


def wait_for_runs(folder: Path, number: int, log: Path) -> None:
    """Wait until the records hold this many finished runs."""
    deadline = time.monotonic() + STARTS_S
    while True:
        if (folder / "records.jsonl").is_file() and len(read_records(folder).runs) >= number:
            return
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
