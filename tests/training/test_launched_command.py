"""A command that is started once per worker: its environment, its reports, its end on all ranks."""

import json
import sys
from pathlib import Path

import psutil
import pytest
from own_loops import on_two_ranks

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from raybench.training.command import run_command

SCRIPT = """
import json, os, sys, time
from pathlib import Path
rank, how = int(os.environ["RANK"]), sys.argv[1]
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
Path(f"{rank}.json").write_text(json.dumps({name: os.environ[name] for name in names}))
while not Path("1.json").exists():  # or rank 0 would be over before rank 1 has begun
    time.sleep(0.01)
if how == "fails" and rank == 1:
    sys.exit("no data on this host")
for number in range(1, 1000 if how in ("long", "fails") else 4):
    time.sleep(0.02)
    if rank == 0 and how != "silent":
        accuracy = 0.1 if how == "fails" else min(0.3 * number, 0.95)
        told = {"accuracy": accuracy, "samples": 10, "train_s": 0.01}
        print(json.dumps(told), flush=True)
"""


def run_of(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Evaluation]], dict[int, str]]:
    """Run the script on two ranks; return curves, and errors by rank."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(SCRIPT)
    objective = Objective(target=0.9, max_train_seconds=1000.0)
    command = f"$torchrun {sys.executable} train.py {how}"
    spec = RunSpec(workload=command, objective=objective, num_workers=2)
    assert (spec.framework, spec.replicas_per_process) == ("torch", 1)
    return on_two_ranks(spec, run_command)


def children() -> list[str]:
    return [" ".join(one.cmdline()) for one in psutil.Process().children(recursive=True)]


@pytest.mark.parametrize("how", ["ends", "long"])
def test_rank_0_reports_for_all_and_all_end_together(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves, errors = run_of(tmp_path, how, monkeypatch)
    assert errors == {}
    for curve in curves:
        assert [one.value for one in curve][:3] == pytest.approx([0.3, 0.6, 0.9])
        assert [one.samples for one in curve][:3] == [10, 20, 30]
        assert [one.train_s for one in curve][:3] == pytest.approx([0.01, 0.02, 0.03])
        assert curve[-1].stop == "target"
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["LOCAL_RANK"] for one in ranks] == ["0", "1"]
    for one in ranks:
        assert (one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["NODE_RANK"]) == ("2", "2", "0")
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]
    assert not any("train.py" in one for one in children())


@pytest.mark.parametrize(
    ("how", "words"),
    [("fails", {0: "rank 1", 1: "no data"}), ("silent", {0: "accuracy"})],
)
def test_a_rank_that_fails_or_reports_nothing_ends_all_and_is_named(
    tmp_path: Path, how: str, words: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, errors = run_of(tmp_path, how, monkeypatch)
    assert all(word in errors[rank] for rank, word in words.items())
    assert not any("train.py" in one for one in children())
