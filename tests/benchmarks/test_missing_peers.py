"""A benchmark names tools that are not installed at its start, and measures the others."""

import json
import sys


def test_every_benchmark_imports_without_its_peers(bare, modules):
    for name in modules:
        assert bare(name).__doc__, name


def test_a_contestant_without_its_library_is_named_and_left_out(
    bare, tmp_path, monkeypatch, capsys
):
    search_table = bare("search_table")
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
