"""A benchmark names tools that are not installed at its start, and measures the others."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOLDERS = [file for file in sorted(BENCHMARKS.iterdir()) if list(file.glob("*.py"))]
MODULES = [
    "benchmarks.installed",
    "benchmarks.output",
    *(file.stem for one in FOLDERS for file in one.glob("*.py")),
]
PEERS = ("syne_tune", "neps", "smac", "flaml", "chinchilla")
"""Modules that only benchmarks need: the extra `benchmarks`, or an environment of their own."""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks can be imported by name, and no other tool is installed."""
    for folder in (BENCHMARKS.parent, *FOLDERS):
        monkeypatch.syspath_prepend(str(folder))
    for name in MODULES:
        # Each test imports them anew; afterwards sys.modules is restored.
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)  # "not installed", to find_spec and import


def module(name: str) -> ModuleType:
    pytest.importorskip("torch")  # the benchmarks train
    return importlib.import_module(name)


@pytest.mark.usefixtures("bare")
def test_every_benchmark_imports_without_its_peers() -> None:
    for name in MODULES:
        assert module(name).__doc__, name


@pytest.mark.usefixtures("bare")
def test_a_contestant_without_its_library_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search_table = module("search_table")
    asked = ["--contestants", "random", "Syne Tune ASHA", "Syne Tune BORE"]
    size = ["--tables", "mnist_conv", "--seeds", "1", "--trials", "3", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["search_table.py", *asked, *size, "--out", str(tmp_path)])
    assert search_table.main() == 0
    printed = capsys.readouterr()
    names = ("ASHA", "BORE", "syne_tune", "'raybench[benchmarks]'")
    lines = printed.err.splitlines()
    assert all(name in lines[0] for name in names), "named before anything is computed"
    assert [line for line in lines if line.startswith("1 of 2: mnist_conv, random")]
    text = (tmp_path / "search_table.md").read_text()
    assert "| random |" in text
    assert "| Syne Tune" not in text
    assert all(name in text for name in names[:3])
    content = json.loads((tmp_path / "search_table.json").read_text())
    assert {row["contestant"] for row in content["searches"]} == {"random"}
    assert "syne-tune" not in content["versions"]
