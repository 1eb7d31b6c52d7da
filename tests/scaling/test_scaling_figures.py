"""The figures of docs/scaling.md are those of the recorded results."""

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
def test_the_table_of_predictions_is_the_recorded_one(benchmark: ModuleType) -> None:
    rows = json.loads((RESULTS / "extrapolation.json").read_text())["rows"]
    every = rows.pop("all")
    assert "\n".join(benchmark.lines(rows)) in PAGE
    least, most = (one(row["inside"] for row in every.values()) for one in (min, max))
    assert f"holds {100 * least:.0f} to {100 * most:.0f} % of the steps of each set" in PAGE
    widest = max(row["width"] for row in rows["one host"].values())
    assert f"up to {1 + widest:.1f} times as long is possible" in PAGE


@pytest.mark.parametrize("benchmark", ["extrapolation"], indirect=True)
def test_every_loss_is_named(benchmark: ModuleType) -> None:
    """Who is better than ours on a set stands below the table."""
    rows = json.loads((RESULTS / "extrapolation.json").read_text())["rows"]
    losses = {
        (task, name): [one for one in benchmark.PEERS if row[one] < row[benchmark.OURS]]
        for task, named in rows.items()
        for name, row in named.items()
        if task != "all"
    }
    assert {at: who for at, who in losses.items() if who} == {
        ("one host", "older GPUs"): ["Ernest"],
        ("two hosts", "older GPUs"): ["Ernest"],
        ("largest", "ElasticFlow"): ["Ernest", "Pollux"],
        ("largest", "llm-foundry H100"): ["Pollux"],
    }, "say so in docs/scaling.md"


@pytest.mark.parametrize("benchmark", ["mlperf"], indirect=True)
def test_the_table_of_mlperf_s_families_is_the_recorded_one(benchmark: ModuleType) -> None:
    rows = json.loads((RESULTS / "mlperf.json").read_text())
    assert "\n".join(benchmark.lines(rows)) in PAGE
    assert benchmark.summary(rows) in PAGE
    assert "from the published logs" in " ".join(PAGE.split())


@pytest.mark.parametrize("benchmark", ["mlperf"], indirect=True)
def test_a_family_s_largest_system_is_not_seen(benchmark: ModuleType) -> None:
    """Ten samples a step and GPU, the same at every scale: time to train divides by the GPUs."""
    import pandas as pd

    rows = [
        {
            **{"release": "v0", "benchmark": "b", "submitter": "s", "gpu_type": "g"},
            **{"train_gpus": gpus, "num_nodes": gpus // 8, "global_batch_size": 10 * gpus},
            **{"grad_accum": 1, "step_s": 0.5, "samples_to_target": 1e5},
            "time_to_train_s": (1.1 if gpus < 64 else 5.0) * 1e5 / (10 * gpus) * 0.5,
        }
        for gpus in (8, 16, 32, 64)
    ]
    family = pd.DataFrame(rows)
    found = benchmark.predict(family, family)
    assert found["from"] == [8, 16, 32]
    assert found["predicted_s"] == pytest.approx(1.1 * 1e5 / 640 * 0.5, rel=0.1)
    assert found["errors"]["raybench"] == pytest.approx(1.1 / 5 - 1, abs=0.03)
    assert not benchmark.is_inside(found)
    assert benchmark.lines([found])[-1].count("*") == 1
    assert benchmark.predict(family.head(2), family) is None
