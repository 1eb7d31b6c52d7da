"""The scripts of examples/scripts/ as commands: their diffs, and the numbers of a run of raybench
against those of the script by itself."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from group import launcher, ran
from own_loops import on_two_ranks

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.command import run_command
from raybench.training.own import OwnTrainer, PlainWorld
from tests.recipe_diffs import SCRIPTS, changed, diffs, num_changed

COMMANDS = {
    "classification": (
        "--lr {learning_rate} --batch-size {batch_size_per_worker} --epochs 2",
        "loss ([0-9.]+)",
    ),
    "nano_gpt": ("--learning_rate={learning_rate} --max_iters=40", "val loss ([0-9.]+)"),
    "hydra_app": ("optimizer.lr={learning_rate} hydra.run.dir=.", "loss ([0-9.]+)"),
    "partial_fit": ("--eta0 {learning_rate} --jobs {num_workers}", "loss ([0-9.]+)"),
}
"""Arguments of each script, and where it prints its loss."""


def test_every_script_has_at_most_five_changed_lines() -> None:
    names = {path.name for path in SCRIPTS.glob("*.py")}
    assert set(diffs()) <= names
    assert len(names) == 6
    for name in names:
        compile(changed(name), name, "exec")
        assert num_changed(name) <= 5
    assert (num_changed("text_classifier.py"), num_changed("nano_gpt.py")) == (5, 0)


@pytest.mark.all
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_with_the_loss_of_its_script(
    name: str, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "hydra_app":
        pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / f"{name}.py").write_text(changed(f"{name}.py"))
    arguments, pattern = COMMANDS[name]
    is_launched = name != "partial_fit"
    placed = arguments.replace("{learning_rate}", "0.01").replace("{batch_size_per_worker}", "32")
    placed = placed.replace("{num_workers}", str(num_workers))
    alone = losses(SCRIPTS / f"{name}.py", placed, pattern, num_workers if is_launched else 0)
    objective = {"kind": "best_at_budget", "metric": "loss", "direction": "min"}
    mark = "$torchrun" if is_launched else "$"
    spec = RunSpec(
        workload=f"{mark} {sys.executable} {name}.py {arguments}",
        objective=Objective(**objective, metric_pattern=pattern, max_train_seconds=1000.0),
        num_workers=num_workers,
        batch_size_per_worker=32,
        learning_rate=0.01,
    )
    assert found(spec, num_workers if is_launched else 1) == pytest.approx(alone, abs=1e-5)


def losses(script: Path, arguments: str, pattern: str, num_processes: int) -> list[float]:
    """Return the losses that a script prints under torchrun, or by itself for 0 processes."""

    def printed_once() -> str:
        words = launcher(num_processes) if num_processes else []
        return ran(*words, str(script), *shlex.split(arguments))

    try:
        printed = printed_once()
    except AssertionError as error:  # torch itself may abort when gloo's threads end
        if "terminate called without an active exception" not in str(error):
            raise
        printed = printed_once()
    return [float(value) for value in re.findall(pattern, printed)]


def found(spec: RunSpec, num_ranks: int) -> list[float]:
    """Return the losses that raybench reads from a command on so many ranks."""
    if num_ranks == 1:
        trainer = OwnTrainer(
            spec.model_copy(update={"framework": "python"}),
            run_command,
            PlainWorld("cpu"),
            Ledger("setup"),
        )
        curve = list(trainer.evaluations())
        trainer.finish()
    else:
        (curve, second), errors = on_two_ranks(spec, run_command)
        assert errors == {}
        assert [point.value for point in second] == [point.value for point in curve]
    return [point.value for point in curve[:-1]]  # the last is repeated with the reason of the end
