"""A speed-up curve never mixes weak with strong scaling, nor two topologies, nor two series."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from raybench.report.scaling_printed import other_lines
from raybench.scaling.cells import cell_table, curves_of, on_more_hosts, series_of
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.spec.scaling_study import ScalingStudy, WrittenCell
from tests.runs.made_up import run_of, study_of


def table_of(**content: Any) -> pd.DataFrame:
    study = study_of(**content)
    return cell_table(study, *run_of(study))


def on_hosts(counts: dict[str, int]) -> pd.DataFrame:
    """Return weak cells of 1 and 2 workers, each run on so many hosts."""
    study = study_of(scaling="weak")
    runs, curves = run_of(study)
    for name, number in counts.items():
        runs[name] = replace(runs[name], workers_per_node=[1] * number)
    return cell_table(study, runs, curves)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("cpus_per_worker", [1, 2]),
        ("placement_strategy", ["pack", "spread"]),
        ("dataset", ["digits", "mnist"]),
        ("batch_size_per_worker", [64, 128]),
        ("accumulate", [1, 2]),
    ],
)
def test_two_of_something_are_two_curves(key: str, values: list[Any]) -> None:
    cells = [WrittenCell(changes={key: value, "num_workers": 1}) for value in values]
    study = ScalingStudy(name="x", base=RunSpec(), cells=cells, repeats=1)
    curves = curves_of(cell_table(study, *run_of(study)))
    assert [len(curve) for curve in curves.values()] == [1, 1]


def test_as_many_workers_on_more_hosts_are_another_topology() -> None:
    table = on_hosts({"0001-r1": 2})
    assert on_more_hosts(table)["num_nodes"].tolist() == [2]
    (curve,) = curves_of(table).values()
    assert curve["num_nodes"].tolist() == [1, 1]
    assert any("ran on 2 hosts, others of its size on fewer" in line for line in other_lines(table))


def test_two_cells_of_one_curve_are_refused_by_name() -> None:
    cells = [WrittenCell(changes={"num_workers": 1, "seed": seed}) for seed in (0, 100)]
    study = ScalingStudy(name="x", base=RunSpec(), cells=cells, repeats=1)
    with pytest.raises(UserError, match=r"2 here have 1, of several cells \(0000, 0001\)"):
        curves_of(cell_table(study, *run_of(study)))


def test_every_curve_of_a_mixed_study_is_of_one_scaling() -> None:
    table = table_of(
        num_workers=[1, 2, 4], batch_sizes=[64, 128], axes={"framework": ["torch", "tensorflow"]}
    )
    curves = curves_of(table)
    assert len(curves) == 2 * 2 * 2
    assert all(len(set(curve["scaling"])) == 1 for curve in curves.values())
    assert all(curve["num_workers"].tolist() == [1, 2, 4] for curve in curves.values())


def test_runs_without_exchange_are_in_no_curve() -> None:
    table = table_of(scaling="weak")
    table["exchange_gradients"] = [True, False]
    (curve,) = curves_of(table).values()
    assert curve["num_workers"].tolist() == [1]


def test_a_first_epoch_that_is_in_the_figures_is_told() -> None:
    """The second cell's second repeat ends after an epoch, as its budget is over."""
    study = study_of(scaling="weak")
    runs, curves = run_of(study)
    assert not any("first epoch" in line for line in other_lines(cell_table(study, runs, curves)))
    curves["0001-r1"] = curves["0001-r1"][:1]
    ended = replace(runs["0001-r1"], stop="max_train_seconds")
    table = cell_table(study, runs | {"0001-r1": ended}, curves)
    assert table["is_warm"].tolist() == [True, False]
    assert table["stop"].tolist() == ["target", "max_train_seconds, target"]
    (told,) = [line for line in other_lines(table) if "first epoch" in line]
    assert "in them: torch, mnist_small, 2 x 64. A run ended with it or before it" in told
    assert told.endswith("as its seconds of training were over or the target was reached.")
    short = {name: curve[:1] for name, curve in curves.items()}
    lines = other_lines(cell_table(study, runs, short))
    assert any("in them: all cells. A run" in line for line in lines)


def test_what_limits_the_figures_is_said() -> None:
    study = study_of(scaling="weak", num_workers=[2])
    runs, curves = run_of(study)
    runs["0000-r0"] = replace(runs["0000-r0"], state="failed", failure="oom", stop=None)
    lines = other_lines(cell_table(study, runs, curves))
    assert lines[0] == "Failed: 1 run of torch, mnist_small, 2 x 64 (oom)."
    assert lines[1].startswith("No speed-up where nothing ran on one worker")
    assert lines[2].startswith("Steps were not timed one by one")


SYNTHETIC, MORE = (DatasetSpec(name="synthetic", num_samples=count) for count in (64, 128))
DIGITS = {"dataset": DatasetSpec(name="digits")}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # What is off or as usual is told of the others alone.
        (
            [{}, {"exchange_gradients": False}, {"warmup_epochs": 1.0}, {"schedule": "cosine"}],
            [
                "mnist_small, schedule constant",
                "mnist_small, no exchange_gradients, schedule constant",
                "mnist_small, schedule constant, warmup_epochs 1",
                "mnist_small, schedule cosine",
            ],
        ),
        # What differs in nothing but workers is one series.
        (
            [{"num_workers": k, "precision": one} for k in (1, 2) for one in ("fp32", "bf16")],
            ["mnist_small, fp32", "mnist_small, bf16"] * 2,
        ),
        # A class stands for its workload where that is enough.
        ([{"workload": "a.b:Net"}, {"workload": "a.b:Other"}], ["Net", "Other"]),
        ([{"workload": "a.b:Net"}, {"workload": "a.c:Net"}], ["a.b:Net", "a.c:Net"]),
        # A dataset is told by what it reads.
        ([DIGITS, {"dataset": SYNTHETIC}], ["mnist_small, digits", "mnist_small, synthetic"]),
        (
            [DIGITS, {"dataset": SYNTHETIC}, {"dataset": MORE}],
            [
                "mnist_small, digits",
                "mnist_small, synthetic, dataset.num_samples 64",
                "mnist_small, synthetic, dataset.num_samples 128",
            ],
        ),
    ],
)
def test_a_series_tells_what_differs_and_nothing_else(
    changes: list[dict[str, Any]], told: list[str]
) -> None:
    assert series_of([RunSpec(**one) for one in changes]) == [f"torch, {one}" for one in told]
