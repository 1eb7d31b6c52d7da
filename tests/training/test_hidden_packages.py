"""Files in the user's folder that hide a package which raybench imports."""

import contextlib
from pathlib import Path

import pytest

import raybench
from raybench.models.find import find_workload
from raybench.models.user_code import refuse_hiding_files
from raybench.runs.preflight import check_task
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        *((name, True) for name in ("optuna.py", "random.py", "torch/__init__.py", "numpy.pyc")),
        *((name, False) for name in ("train.py", "torch/notes.txt", "ray.py.txt", "sys.py")),
        *((name, False) for name in ("datasets/__init__.py", "turtle.py", "wandb/run-1.log")),
    ],
)
def test_file_that_hides_a_package_is_refused(name, is_refused, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    refusal = refused(ErrorCode.CONFLICT, name.split("/")[0], tmp_path)
    with refusal if is_refused else contextlib.nullcontext():
        refuse_hiding_files(tmp_path)


def test_hiding_file_is_refused_before_anything_starts(tmp_path, monkeypatch):
    """A command is checked in the current folder, a loop also in the folder of its file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for folder in (tmp_path, tmp_path / "sub"):
        (folder / "optuna.py").write_text("raise SystemExit('was run')\n")
    (tmp_path / "sub" / "loop.py").write_text("def train(run): ...\n")
    command = RunSpec(workload="$ true", objective=Objective(target=0.9))
    with refused(ErrorCode.CONFLICT, "optuna.py"):
        check_task(command, ["python"])
    with refused(ErrorCode.CONFLICT, "optuna.py", "sub"):
        find_workload("sub/loop.py:train")


def test_the_package_itself_hides_nothing():
    refuse_hiding_files(Path(raybench.__file__).parents[1])
