"""`deploy/ci.yml`: the job compares two versions of train.py and fails by the exit code."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from raybench.commands import cli
from raybench.spec import errors

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / "deploy/ci.yml").read_text())
STEPS = WORKFLOW["jobs"]["compare"]["steps"]
(COMMAND,) = (step["run"] for step in STEPS if step.get("run", "").startswith("raybench "))
COMMAND = COMMAND.replace("${{ github.base_ref }}", "main")


@pytest.mark.usefixtures("elsewhere")
def test_command_compares_a_branch_with_its_target() -> None:
    shutil.copy(ROOT / "examples/agent/train.py", "train.py")
    identity = "-c user.name=reader -c user.email=reader@example.org"
    for words in ("init -q", "add .", f"{identity} commit -qm start"):
        subprocess.run(["git", *words.split()], check=True)
    subprocess.run(["git", "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
    words = shlex.split(COMMAND.partition(" > ")[0])
    assert cli.main([*words[1:], "--dry-run"]) == cli.DONE


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (errors.NO_DIFFERENCE, True),
        (errors.UNDECIDED, True),
        (errors.WORSE, False),
        (errors.FAILED, False),
    ],
)
def test_job_fails_by_the_exit_code(code: int, passes: bool, tmp_path: Path) -> None:
    (tmp_path / "raybench").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "raybench").chmod(0o755)
    (tmp_path / "job").write_text(COMMAND)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    completed = subprocess.run(["bash", "-e", "job"], cwd=tmp_path, env=path, check=False)
    assert (completed.returncode == 0) is passes
