"""The W&B logger in offline mode: the files that `wandb sync` would upload are read back."""

import os

import pytest
from read_back import interrupted_study, wandb_items, wandb_records

pytestmark = pytest.mark.all
pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
SECRET = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)


def runs(folder):
    """Return {name: (run, history, summary)} of all offline runs; fail on duplicate names."""
    by_name = {}
    for run_folder in (folder / "wandb").glob("offline-run-*"):
        records = wandb_records(run_folder)
        (run,) = (record.run for record in records if record.HasField("run"))
        history = [wandb_items(r.history.item) for r in records if r.HasField("history")]
        summary = {}
        for record in records:
            if record.HasField("summary"):
                summary |= wandb_items(record.summary.update)
        assert run.display_name not in by_name
        by_name[run.display_name] = run, history, summary
    return by_name


def test_runs_are_logged_once_with_specs_and_seconds_as_steps(tmp_path, point):
    folder = tmp_path / "my study"
    first, second = interrupted_study("wandb", folder, point)
    assert "3 runs" in first
    assert "wandb sync" in first
    assert "1 run" in second
    logged = runs(folder)
    assert set(logged) == {"0000", "0001", "0002"}
    run, history, summary = logged["0001"]
    points = [(row["train_s"], row["validation_accuracy"]) for row in history]
    assert points == [(1.0, 0.5), (2.0, 0.5), (3.0, 0.875)]
    assert (run.project, run.run_group, run.job_type) == ("raybench", "my study", "trial")
    config = wandb_items(run.config.update)
    assert (config["learning_rate"], config["dataset.name"]) == (0.25, "digits")
    assert (summary["time_to_target_s"], summary["state"]) == (3.0, "complete")

    for file in folder.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    for run_folder in (folder / "wandb").glob("offline-run-*"):
        axes = [r.metric for r in wandb_records(run_folder) if r.HasField("metric")]
        assert ("*", "train_s") in [(axis.glob_name, axis.step_metric) for axis in axes]
