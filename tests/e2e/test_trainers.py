"""A trainer of a library that loses a worker in a real session."""

import json
from pathlib import Path

import pytest

import raybench
from tests.recipe_diffs import ROOT

from .commands import raybench as run

pytestmark = [pytest.mark.ray, pytest.mark.all]
LIBRARIES = ("transformers", "accelerate")


KILLED = """
import os, signal
from pathlib import Path

import hugging_face


def train(run):
    report, number = run.report, []
    if run.resume() is not None:
        Path("resumed").touch()

    def dying(*values, **more):
        number.append(values)
        if len(number) == 3 and run.rank == 1 and not Path("killed_once").exists():
            Path("killed_once").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return report(*values, **more)

    run.report = dying
    hugging_face.train(run)
"""


def test_a_trainer_resumes_from_its_own_checkpoint_after_a_killed_worker(tmp_path: Path) -> None:
    for library in LIBRARIES:
        pytest.importorskip(library, reason=f"{library} is not installed")
    for name, text in (("killed", KILLED), ("hugging_face", None)):
        source = text or (ROOT / "examples" / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(source)
    settings = {
        "objective": {
            **{"kind": "best_at_budget", "metric": "loss", "direction": "min"},
            "max_train_seconds": 100,
        },
        **{"model": {"hidden_units": 32}, "num_workers": 2, "cpus_per_worker": 1, "epochs": 5.0},
        **{"learning_rate": 0.001, "batch_size_per_worker": 32, "checkpoint_every_s": 1e-6},
    }
    changes = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    words = [word for change in changes for word in ("--set", change)]
    values = {}
    for name in ("killed", "hugging_face"):
        run("train", "--train", f"{name}.py:train", *words, "--out", name, cwd=tmp_path)
        (curve,) = raybench.load(tmp_path / name).evaluations.values()
        values[name] = [point.value for point in curve]
    assert (tmp_path / "killed_once").exists()
    assert (tmp_path / "resumed").exists()
    assert len(values["killed"]) == 5
    assert values["killed"] == pytest.approx(values["hugging_face"], abs=1e-5)
