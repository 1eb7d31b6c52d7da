"""Trainers of libraries on one and two workers, compared with the same scripts under torchrun."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from worker_processes import run_python, run_two, torchrun_arguments

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.recipe_diffs import ROOT, SCRIPTS, changed

LOSS = Objective(
    kind="best_at_budget", metric="loss", direction="min", target=None, max_train_seconds=1000.0
)
EASY_TARGET = Objective(target=0.01, max_train_seconds=1000.0)
pytestmark = pytest.mark.all
LIBRARIES = {"text_classifier": ("transformers", "accelerate"), "lightning_module": ("lightning",)}


def spec_of(objective: Objective, num_workers: int, **changes: Any) -> RunSpec:
    content: dict[str, Any] = {
        **{"workload": "train.py:main", "framework": "torch", "learning_rate": 1e-3, "epochs": 5.0},
        **{"batch_size_per_worker": 32, "model": {"hidden_units": 32}, "checkpoint_every_s": 1e-9},
    }
    return RunSpec(objective=objective, num_workers=num_workers, **(content | changes))


def cases(script: str, example: str, num_workers: int, folder: Path) -> dict[str, Any]:
    (folder / f"changed_{script}.py").write_text(changed(f"{script}.py"))
    recipe = {"folder": str(folder), "module": f"changed_{script}", "function": "main"}
    integration = {"folder": str(ROOT / "examples"), "module": example, "function": "train"}
    short = spec_of(LOSS, num_workers, epochs=3.0).document()
    return {
        "whole": recipe | {"spec": spec_of(LOSS, num_workers).document(), "leave_at": None},
        "target": recipe | {"spec": spec_of(EASY_TARGET, num_workers).document(), "leave_at": None},
        "straight": integration | {"spec": short, "leave_at": None},
        "resumed": integration | {"spec": short, "leave_at": 1},
    }


def last_loss(script: str, num_workers: int, folder: Path) -> float:
    """Return the last loss that a script prints, run by itself or by torchrun."""
    launcher = torchrun_arguments(num_workers) if num_workers > 1 else []
    printed = run_python(*launcher, str(SCRIPTS / f"{script}.py"), cwd=folder, OMP_NUM_THREADS="1")
    metrics = ast.literal_eval([line for line in printed.splitlines() if "_loss" in line][-1])
    return float(metrics["eval_loss" if "eval_loss" in metrics else "val_loss"])


@pytest.mark.parametrize(
    ("script", "samples", "example", "num_workers"),
    [
        ("text_classifier", 1000, "hugging_face", 1),
        ("text_classifier", 1000, "hugging_face", 2),
        ("lightning_module", 1400, "lightning_fit", 1),
        ("lightning_module", 1400, "lightning_fit", 2),
    ],
)
def test_trainer_on_one_and_two_workers_equals_the_plain_script(
    script, samples, example, num_workers, tmp_path
):
    for library in LIBRARIES[script]:
        pytest.importorskip(library, reason=f"{library} is not installed")
    runs = cases(script, example, num_workers, tmp_path)
    if num_workers == 2:
        run_two("library_trainer_script.py", "torch", runs, tmp_path)
    else:
        run_one_worker(runs, tmp_path)
    results = {
        name: [
            json.loads((tmp_path / f"{name}-{rank}.json").read_text())
            for rank in range(num_workers)
        ]
        for name in runs
    }
    whole = results["whole"][0]
    assert whole["values"][4] == pytest.approx(last_loss(script, num_workers, tmp_path), abs=1e-5)
    assert len(whole["values"]) == 6
    assert whole["stop"] == "epochs"
    steps = -(-samples // (32 * num_workers))
    assert whole["samples"][0] == steps * 32 * num_workers
    for rank in results["target"]:
        assert (len(rank["values"]), rank["stop"]) == (1, "target")
    straight, resumed = results["straight"][0]["values"], results["resumed"][0]["values"]
    # A checkpoint of Lightning lacks the random state, which orders the batches of one process.
    has_other_batches = (script, num_workers) == ("lightning_module", 1)
    assert resumed == pytest.approx(straight, abs=0.05 if has_other_batches else 1e-5)
    assert straight[0] - straight[2] > 0.1 or not has_other_batches
    assert len({json.dumps(rank["values"]) for rank in results["resumed"]}) == 1


def test_loop_with_its_own_process_group_uses_that_of_the_run(tmp_path):
    pytest.importorskip("torch")
    spec = spec_of(Objective(target=2.0, max_train_seconds=1000.0), 2).document()
    case = {"folder": ".", "module": "library_trainer_script", "function": "own_process_group"}
    case |= {"spec": spec, "leave_at": None}
    run_two("library_trainer_script.py", "torch", {"first": case, "second": case}, tmp_path)
    for name in ("first", "second"):
        for rank in range(2):
            result = json.loads((tmp_path / f"{name}-{rank}.json").read_text())
            assert (result["values"], result["stop"]) == ([1.0, 1.0, 1.0], "epochs")


def run_one_worker(cases: dict[str, Any], folder: Path) -> None:
    """Do the work of `library_trainer_script` as a single worker, in a process of its own."""
    code = (
        "import json, pathlib, sys\n"
        "from library_trainer_script import work\n"
        "from local_runs import single_worker\n"
        "work('torch', json.loads(sys.argv[1]), single_worker('torch'), pathlib.Path(sys.argv[2]))"
    )
    run_python("-c", code, json.dumps(cases), str(folder), cwd=Path(__file__).parent)
