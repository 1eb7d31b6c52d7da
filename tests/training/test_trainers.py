"""Trainers of libraries on one and on two workers, against the same scripts started by torchrun."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from group import launcher, ran, run_two

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.recipe_diffs import ROOT, SCRIPTS, changed

LOSS = Objective(
    kind="best_at_budget", metric="loss", direction="min", target=None, max_train_seconds=1000.0
)
SOON = Objective(target=0.01, max_train_seconds=1000.0)
pytestmark = pytest.mark.all
CASES = [
    pytest.param("text_classifier", 1000, "hugging_face", 1, id="transformers, 1 worker"),
    pytest.param("text_classifier", 1000, "hugging_face", 2, id="transformers, 2 workers"),
    pytest.param("lightning_module", 1400, "lightning_fit", 1, id="lightning, 1 worker"),
    pytest.param("lightning_module", 1400, "lightning_fit", 2, id="lightning, 2 workers"),
]
LIBRARIES = {"text_classifier": ("transformers", "accelerate"), "lightning_module": ("lightning",)}


def spec_of(objective: Objective, num_workers: int, **more: Any) -> RunSpec:
    content: dict[str, Any] = {
        **{"workload": "train.py:main", "framework": "torch", "learning_rate": 1e-3, "epochs": 5.0},
        **{"batch_size_per_worker": 32, "model": {"hidden_units": 32}, "checkpoint_every_s": 1e-9},
    }
    return RunSpec(objective=objective, num_workers=num_workers, **(content | more))


def cases(script: str, example: str, num_workers: int, folder: Path) -> dict[str, Any]:
    (folder / f"changed_{script}.py").write_text(changed(f"{script}.py"))
    alike = {"folder": str(folder), "module": f"changed_{script}", "function": "main"}
    own = {"folder": str(ROOT / "examples"), "module": example, "function": "train"}
    return {
        "whole": alike | {"spec": spec_of(LOSS, num_workers).document(), "leave_at": None},
        "target": alike | {"spec": spec_of(SOON, num_workers).document(), "leave_at": None},
        "straight": own | {"spec": spec_of(LOSS, num_workers).document(), "leave_at": None},
        "resumed": own | {"spec": spec_of(LOSS, num_workers).document(), "leave_at": 1},
    }


def last_loss(script: str, num_workers: int, folder: Path) -> float:
    """Return the loss that a script prints last, started by itself or by torchrun."""
    words = launcher(num_workers) if num_workers > 1 else []
    printed = ran(*words, str(SCRIPTS / f"{script}.py"), cwd=folder, OMP_NUM_THREADS="1")
    told = ast.literal_eval([line for line in printed.splitlines() if "_loss" in line][-1])
    return float(told["eval_loss" if "eval_loss" in told else "val_loss"])


@pytest.mark.parametrize(("script", "samples", "example", "num_workers"), CASES)
def test_a_trainer_on_one_and_two_workers_is_the_script_by_itself(
    script: str, samples: int, example: str, num_workers: int, tmp_path: Path
) -> None:
    for library in LIBRARIES[script]:
        pytest.importorskip(library, reason=f"{library} is not installed")
    given = cases(script, example, num_workers, tmp_path)
    if num_workers == 2:
        run_two("trainer_worker.py", "torch", given, tmp_path)
    else:
        one_worker(given, tmp_path)
    found = {
        name: [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in ranks]
        for name, ranks in {name: range(num_workers) for name in given}.items()
    }
    whole = found["whole"][0]
    assert whole["values"][4] == pytest.approx(last_loss(script, num_workers, tmp_path), abs=1e-5)
    assert len(whole["values"]) == 6
    assert whole["stop"] == "epochs"
    steps = -(-samples // (32 * num_workers))
    assert whole["samples"][0] == steps * 32 * num_workers
    for rank in found["target"]:
        assert (len(rank["values"]), rank["stop"]) == (1, "target")
    straight, resumed = found["straight"][0]["values"], found["resumed"][0]["values"]
    # Lightning's checkpoint lacks the random state, by which one process draws its batches.
    is_drawn_anew = (script, num_workers) == ("lightning_module", 1)
    assert resumed == pytest.approx(straight, abs=0.05 if is_drawn_anew else 1e-5)
    assert straight[0] - straight[2] > 0.1 or not is_drawn_anew
    assert len({json.dumps(rank["values"]) for rank in found["resumed"]}) == 1


def test_a_loop_that_begins_and_ends_a_process_group_keeps_that_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    spec = spec_of(Objective(target=2.0, max_train_seconds=1000.0), 2).document()
    case = {"folder": ".", "module": "trainer_worker", "function": "with_a_group_of_its_own"}
    case |= {"spec": spec, "leave_at": None}
    run_two("trainer_worker.py", "torch", {"first": case, "second": case}, tmp_path)
    for name in ("first", "second"):
        for rank in range(2):
            found = json.loads((tmp_path / f"{name}-{rank}.json").read_text())
            assert (found["values"], found["stop"]) == ([1.0, 1.0, 1.0], "epochs")


def one_worker(given: dict[str, Any], folder: Path) -> None:
    """Do what the two workers do, in a process of its own."""
    code = "import sys, json, pathlib; from trainer_worker import *; from local import alone\n"
    code += "work('torch', json.loads(sys.argv[1]), alone('torch'), pathlib.Path(sys.argv[2]))"
    ran("-c", code, json.dumps(given), str(folder), cwd=Path(__file__).parent)
