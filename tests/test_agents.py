"""The skill names existing commands and options, and the loop of examples/agent keeps changes that
`compare` finds better."""

import contextlib
import importlib
import io
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from raybench.commands import cli

ROOT = Path(__file__).parents[1]
SKILL = (ROOT / "skills/raybench/SKILL.md").read_text()


def test_the_skill_has_a_name_and_a_description():
    head = yaml.safe_load(SKILL.split("---\n")[1])
    assert head["name"] == "raybench"
    assert 100 < len(head["description"]) < 1024
    assert len(SKILL.splitlines()) < 80, "one page"


@pytest.mark.parametrize("line", re.findall(r"`(raybench [^`]+)`", SKILL))
def test_commands_of_the_skill_are_parsed(line):
    _, name, *words = shlex.split(line)
    options = cli.options_of(name, cli.parser_of(name).parse_args(words))
    assert name == options.OF


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The loop module in a copy of its folder."""
    for file in (ROOT / "examples/agent").glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", ["loop.py"])
    monkeypatch.delitem(sys.modules, "loop", raising=False)
    return importlib.import_module("loop")


def test_the_loop_keeps_changes_that_compare_finds_better(loop, monkeypatch):
    """A batch size of 16 is slower in a single run; of the other edits only rate 3e-3 is better."""
    compared = []

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = Path("candidate.py").read_text() if Path("candidate.py").exists() else ""
        if words[0] == "train":
            slow = "BATCH_SIZE = 16" in code
            return 0, {"details": {"time_to_target_s": 9.0 if slow else 1.0 if code else 2.0}}
        compared.append(code)
        is_better = "LEARNING_RATE = 3e-3" in code and "HIDDEN_UNITS = 32" in code
        is_new = "LEARNING_RATE = 3e-3" not in Path("train.py").read_text()
        return (0 if is_better and is_new else 4), {"answer": ["compared."]}

    monkeypatch.setattr(loop, "run", run)
    monkeypatch.setattr(loop, "median_of", lambda side, folder: 2.0)
    loop.main()
    final_code = Path("train.py").read_text()
    assert "LEARNING_RATE = 3e-3" in final_code
    assert "HIDDEN_UNITS = 32" in final_code
    assert "BATCH_SIZE = 64" in final_code
    assert len(compared) == len(loop.EDITS) - 1
    assert sum("LEARNING_RATE = 3e-3" in code for code in compared) == len(compared) - 1


def test_the_loop_ends_on_invalid_input(loop, monkeypatch):

    def in_process(command: list[str], **_: object) -> SimpleNamespace:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = cli.main(command[3:])
        return SimpleNamespace(returncode=code, stdout=printed.getvalue())

    monkeypatch.setattr("subprocess.run", in_process)
    monkeypatch.setattr(loop, "OBJECTIVE", ("--set", "objective.target=2"))
    with pytest.raises(SystemExit, match="target"):
        loop.main()
    assert "LEARNING_RATE = 1e-3" in Path("train.py").read_text()
