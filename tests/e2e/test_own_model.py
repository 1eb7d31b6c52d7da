"""Searches with the README's model class, with a user's own training loop, and by a script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import raybench
from raybench.spec.errors import ErrorCode
from tests.refusals import refused
from tests.test_readme import block

from .commands import ENVIRONMENT
from .commands import raybench as run

pytestmark = [pytest.mark.ray, pytest.mark.all]
LOOPS = Path(__file__).with_name("own_loops.py")
SPACE = """
objective: {target: 0.9, max_train_seconds: 20}
search: {trials: 2, early_stopping: false}
confirm: {race: 2, fresh: 1}
space: {model: {hidden_units: [16, 32]}}
fixed: {learning_rate: 0.003}
"""


@pytest.mark.apart
def test_search_with_the_model_of_the_readme(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "my_model.py").write_text(block("python", "class MyModel"))
    printed = run(
        *("tune", "--workload", "my_model:MyModel", "--set", "space.framework=[torch]"),
        *("--set", "num_workers=1", "--trials", "1", "--set", "confirm.race=0"),
        *("--target", "auto", "--set", "objective.max_train_seconds=3"),
        *("--isolation", "process", "--time-budget", "1h"),
        cwd=tmp_path,
    )
    assert "unconfirmed" in printed
    results = raybench.load(tmp_path / "results" / "digits")
    trials = results.trials
    is_reference = trials["trial"].str.startswith("reference")
    # Two run in parallel; the third is left out if starting workers has taken too long.
    found = sorted(trials["trial"][is_reference])
    assert found in (["reference0", "reference1"], ["reference0", "reference1", "reference2"])
    roles = sorted(trials["role"][is_reference])
    assert roles == ["reference"] * (len(found) - 1) + ["trial"]
    assert 0.1 < results.target < trials["best_accuracy"][is_reference].max()
    assert "(auto: " in results.study["target_set_by"]
    trials = trials[trials["phase"] == "search"]
    assert len(trials) == 1
    assert (trials["start_s"] > 0).all(), "each run has new workers"
    assert set(trials["num_parameters"]) == {784 * 128 + 128 + 128 * 10 + 10}
    assert set(trials["workload"]) == {"my_model:MyModel"}


def test_a_whole_search_of_a_loop(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / LOOPS.name).write_text(LOOPS.read_text())
    (tmp_path / "space.yaml").write_text(SPACE)
    printed = run("tune", "space.yaml", "--train", "own_loops.py:train", cwd=tmp_path)
    assert "Answer: " in printed
    assert "PyTorch" in printed
    results = raybench.load(tmp_path / "results/space")
    trials = results.trials
    assert set(trials["workload"]) == {"own_loops.py:train"}
    assert sorted(trials["phase"]) == ["confirm"] * 3 + ["search"] * 2
    assert set(trials["state"]) == {"complete"}
    done = run("train", "results/space/best.yaml", cwd=tmp_path)
    assert "state.pt" in done
    folder = tmp_path / "results/train-best"
    assert (folder / "state.pt").is_file()
    with refused(ErrorCode.UNSUPPORTED, "own_loops.py:train"):
        raybench.load_model(folder)
    before = (folder / "records.jsonl").read_bytes()
    run("train", "results/space/best.yaml", cwd=tmp_path)
    assert (folder / "records.jsonl").read_bytes() == before, "the run is finished"


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


@pytest.mark.apart
def test_a_script_searches_and_trains_and_invalid_input_raises(tmp_path):
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
