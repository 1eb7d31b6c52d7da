"""`raybench.tune` called by a script; invalid input raises an exception."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import ENVIRONMENT

pytestmark = [pytest.mark.ray, pytest.mark.all]
SCRIPT = """
import json

import numpy as np

import raybench

try:
    raybench.tune({"objective": {"target": 0.9}, "space": {"learning_rat": [0.1]}}, out="no")
except raybench.UserError as error:
    print("refused:", error)
rng = np.random.default_rng(0)
labels = np.arange(400) % 2
data = {"x": rng.normal(size=(400, 8)).astype(np.float32) + 3 * labels[:, None], "y": labels}
space = {
    "objective": {"target": 0.9, "max_train_seconds": 30},
    "space": {"learning_rate": [0.01, 0.001]},
    "fixed": {"batch_size_per_worker": 32, "framework": "torch"},
}
options = {"workload": "mlp", "data": data, "out": "results/mine", "progress": "jsonl"}
study = raybench.tune(space, trials=2, workers=[1], confirm={"race": 2, "fresh": 1}, **options)
again = study.best.train(out="results/again", seed=5)
seed = again.specs["0000"].seed
print(json.dumps([study.best.spec.learning_rate, len(study.trials), seed, repr(again)]))
"""


def test_a_script_searches_and_trains_and_invalid_input_raises(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(name in lines[0] for name in ("'space.learning_rat'", "'learning_rate'"))
    assert not (tmp_path / "no").exists()
    rate, trials, seed, shown = json.loads(lines[-1])
    assert rate in (0.01, 0.001)
    assert trials >= 4
    assert seed == 5
    assert "torch 1x32" in shown
    assert "ledger, s:" in done.stdout
    assert "samples/s" in done.stdout
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert {"evaluated", "finished"} <= {one["event"] for one in events}
    assert events[-1]["best"]["trial"]
    assert "study.yaml --out" in done.stdout or "report.html" in done.stdout
