"""Command that is started once per worker: its environment, reports, and end on all ranks."""

import json
import sys
from pathlib import Path

import psutil
import pytest
from user_loops import run_on_two_ranks

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from raybench.training.command import run_command

SCRIPT = """
import json, os, sys, time
from pathlib import Path
rank, mode = int(os.environ["RANK"]), sys.argv[1]
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
Path(f"{rank}.json").write_text(json.dumps({name: os.environ[name] for name in names}))
while not Path("1.json").exists():  # otherwise rank 0 may end before rank 1 has started
    time.sleep(0.01)
if mode == "fails" and rank == 1:
    sys.exit("no data on this host")
for number in range(1, 1000 if mode in ("long", "fails") else 4):
    time.sleep(0.02)
    if rank == 0 and mode != "silent":
        accuracy = 0.1 if mode == "fails" else min(0.3 * number, 0.95)
        values = {"accuracy": accuracy, "samples": 10, "train_s": 0.01}
        print(json.dumps(values), flush=True)
"""


def run_of(
    folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Evaluation]], dict[int, str]]:
    """Run the script on two ranks; return curves, and errors by rank."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(SCRIPT)
    objective = Objective(target=0.9, max_train_seconds=1000.0)
    command = f"$torchrun {sys.executable} train.py {mode}"
    spec = RunSpec(workload=command, objective=objective, num_workers=2)
    assert (spec.framework, spec.replicas_per_process) == ("torch", 1)
    return run_on_two_ranks(spec, run_command)


def children() -> list[str]:
    """Return the command lines of all processes below this one."""
    return [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]


@pytest.mark.parametrize("mode", ["ends", "long"])
def test_rank_0_reports_for_all_ranks_and_all_end_together(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves, errors = run_of(tmp_path, mode, monkeypatch)
    assert errors == {}
    for curve in curves:
        assert [point.value for point in curve][:3] == pytest.approx([0.3, 0.6, 0.9])
        assert [point.samples for point in curve][:3] == [10, 20, 30]
        assert [point.train_s for point in curve][:3] == pytest.approx([0.01, 0.02, 0.03])
        assert curve[-1].stop == "target"
    environments = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [variables["LOCAL_RANK"] for variables in environments] == ["0", "1"]
    for variables in environments:
        assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert variables["NODE_RANK"] == "0"
    assert environments[0]["MASTER_PORT"] == environments[1]["MASTER_PORT"]
    assert not any("train.py" in command for command in children())


@pytest.mark.parametrize(
    ("mode", "words"),
    [("fails", {0: "rank 1", 1: "no data"}), ("silent", {0: "accuracy"})],
)
def test_rank_that_fails_or_reports_nothing_ends_all_ranks(
    tmp_path: Path, mode: str, words: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, errors = run_of(tmp_path, mode, monkeypatch)
    assert all(word in errors[rank] for rank, word in words.items())
    assert not any("train.py" in command for command in children())
