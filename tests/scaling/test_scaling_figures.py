"""The numbers in docs/scaling.md match the recorded results."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scaling.md").read_text()
RESULTS = ROOT / "benchmarks/results"


@pytest.fixture
def benchmark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/scaling"))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("benchmark", ["extrapolation"], indirect=True)
def test_the_table_of_predictions_matches_the_results(benchmark: ModuleType) -> None:
    rows = json.loads((RESULTS / "extrapolation.json").read_text())["rows"]
    every = rows.pop("all")
    assert "\n".join(benchmark.lines(rows)) in PAGE
    lowest, highest = (extreme(row["inside"] for row in every.values()) for extreme in (min, max))
    words = " ".join(PAGE.split())
    assert f" {100 * lowest:.0f} to {100 * highest:.0f} % of the steps" in words
    widest = max(row["width"] for row in rows["one host"].values())
    assert f"up to {1 + widest:.1f} times" in words


@pytest.mark.parametrize("benchmark", ["mlperf"], indirect=True)
def test_the_table_of_mlperf_families_matches_the_results(benchmark: ModuleType) -> None:
    rows = json.loads((RESULTS / "mlperf.json").read_text())
    assert "\n".join(benchmark.lines(rows)) in PAGE
    assert benchmark.summary(rows) in PAGE
