"""Scripts of examples/scripts/ as commands: their diffs, and losses equal to those of the script
run by itself."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from user_loops import run_on_two_ranks
from worker_processes import run_python, torchrun_arguments

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
"""Arguments of each script, and the pattern of its printed loss."""

TORCH_ABORT = "terminate called without an active exception"
"""Message of a process that torch itself aborts, rarely, when the threads of gloo end with the
script (seen in CI with and without raybench): the script is run once more."""


def test_diff_of_each_script_has_at_most_five_lines():
    names = {path.name for path in SCRIPTS.glob("*.py")}
    assert set(diffs()) <= names
    assert len(names) == 6
    for name in names:
        compile(changed(name), name, "exec")
        assert num_changed(name) <= 5
    assert (num_changed("text_classifier.py"), num_changed("nano_gpt.py")) == (5, 0)


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "num_workers"),
    [("classification", 2), ("nano_gpt", 1), ("hydra_app", 1), ("partial_fit", 2)],
)
def test_command_has_the_losses_of_its_script(name, num_workers, tmp_path, monkeypatch):
    """Several workers start every launched script in the same way, so one of them has two."""
    if name == "hydra_app":
        pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / f"{name}.py").write_text(changed(f"{name}.py"))
    arguments, pattern = COMMANDS[name]
    is_launched = name != "partial_fit"
    words = arguments.replace("{learning_rate}", "0.01").replace("{batch_size_per_worker}", "32")
    words = words.replace("{num_workers}", str(num_workers))
    num_processes = num_workers if is_launched else 0
    expected = losses_of_script(SCRIPTS / f"{name}.py", words, pattern, num_processes)
    objective = {"kind": "best_at_budget", "metric": "loss", "direction": "min"}
    prefix = "$torchrun" if is_launched else "$"
    spec = RunSpec(
        workload=f"{prefix} {sys.executable} {name}.py {arguments}",
        objective=Objective(**objective, metric_pattern=pattern, max_train_seconds=1000.0),
        num_workers=num_workers,
        batch_size_per_worker=32,
        learning_rate=0.01,
    )
    losses = losses_of_run(spec, num_workers if is_launched else 1)
    assert losses == pytest.approx(expected, abs=1e-5)


def losses_of_script(script: Path, arguments: str, pattern: str, num_processes: int) -> list[float]:
    """Return the losses that a script prints under torchrun, or by itself for 0 processes."""

    def run_script() -> str:
        launcher = torchrun_arguments(num_processes) if num_processes else []
        return run_python(*launcher, str(script), *shlex.split(arguments))

    try:
        printed = run_script()
    except AssertionError as error:
        if TORCH_ABORT not in str(error):
            raise
        printed = run_script()
    return [float(value) for value in re.findall(pattern, printed)]


def losses_of_run(spec: RunSpec, num_ranks: int) -> list[float]:
    """Return the losses that raybench reads from a command on `num_ranks` ranks."""
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
        (curve, second), errors = run_on_two_ranks(spec, run_command)
        if any(TORCH_ABORT in message for message in errors.values()):
            (curve, second), errors = run_on_two_ranks(spec, run_command)
        assert errors == {}
        assert [point.value for point in second] == [point.value for point in curve]
    return [point.value for point in curve[:-1]]  # the last point is repeated with the stop reason
