"""Every command of the README is run: here without training, where a dry run is offered, and
in tests/e2e for real (the search, best.yaml, the user's own model, the cluster job)."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raybench import init

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines() if line.strip()
]
PYTHON_COMMANDS = [line for line in COMMANDS if " -m raybench." in line and "ray job" not in line]
MAKE_COMMANDS = [line for line in COMMANDS if line.startswith("make ")]
CLUSTER_COMMANDS = [line for line in COMMANDS if line.startswith("ray ")]


def block(kind: str, containing: str) -> str:
    """The README's code block of a kind that contains some text."""
    return next(text for k, text in BLOCKS if k == kind and containing in text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader of the README has it: the default search was run, my_model exists, and
    my_data.csv, of which init has written my_data.yaml."""
    shutil.copytree(ROOT / "tests/fixtures/digits_race", tmp_path / "results/digits")
    (tmp_path / "my_model.py").write_text(block("python", "class MyModel"))
    rows = [
        f"{room % 7},{'north' if room % 3 else 'south'},{room % 7 * 90.5}" for room in range(300)
    ]
    (tmp_path / "my_data.csv").write_text("\n".join(["rooms,side,price", *rows]))
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert init.main(["my_data.csv", "--label", "price", "--out", "my_data.yaml"]) == 0
    return tmp_path


def test_no_command_is_left_out() -> None:
    assert sorted(COMMANDS) == sorted(PYTHON_COMMANDS + MAKE_COMMANDS + CLUSTER_COMMANDS)
    assert [*MAKE_COMMANDS] == ["make tune", "make test"]


@pytest.mark.parametrize(
    "line", [line for line in PYTHON_COMMANDS if f"{line} --dry-run" not in PYTHON_COMMANDS]
)
def test_command(line: str, folder: Path) -> None:
    words = shlex.split(line)
    while "=" in words[0]:  # RAYBENCH_DATA=... before the command
        words.pop(0)
    assert words[0] == ".venv/bin/python"
    if "mnist" in words:
        pytest.skip("tests/data reads MNIST; a dry run would need the files here")
    if "--compare" in words:
        shutil.copytree(folder / "results/digits", folder / "results/lamb")
    if "raybench.report" in words:
        words = [word.replace("results/digits", str(folder / "results/digits")) for word in words]
    elif "raybench.watch" in words:
        pass
    elif "raybench.init" in words:
        words.append("--force")
    elif "--dry-run" not in words:
        words.append("--dry-run")
    if "results/digits/best.yaml" in words:
        subprocess.run(
            [sys.executable, "-m", "raybench.report", "results/digits"], cwd=folder, check=True
        )
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", MAKE_COMMANDS)
def test_make_target_exists(line: str) -> None:
    done = subprocess.run(
        [*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "-m raybench.tune" in done.stdout or "-m pytest" in done.stdout


def test_python_example_reads_a_study(folder: Path) -> None:
    code = block("python", "raybench.load(")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_the_screen_shown_is_what_the_report_prints(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raybench.report", "results/digits"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == block(
        "", "Answer: Train with"
    ).splitlines()


def test_the_space_shown_is_the_default_one() -> None:
    import yaml

    shown = yaml.safe_load(block("yaml", "learning_rate"))
    assert shown == yaml.safe_load((ROOT / "search_spaces/digits.yaml").read_text())


def test_files_and_links_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:raybench|search_spaces|notebooks|tests)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name
