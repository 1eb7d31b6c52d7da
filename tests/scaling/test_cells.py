"""Cells of a scaling study: medians, speed-up over the best single worker, shares, outliers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raybench.report.scaling_printed import printed_cells
from raybench.scaling.cells import CELL_COLUMNS, cell_table
from raybench.spec.metric import METRICS
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, WrittenCell
from tests.runs.made_up import EPOCH, run_of, study_of, timed


def table_of(study: ScalingStudy, *given: Any, **changes: Any) -> pd.DataFrame:
    return cell_table(study, *run_of(study, *given, **changes))


def at(table: pd.DataFrame, **keys: Any) -> Any:
    """Return the one row with these values."""
    for key, value in keys.items():
        table = table[table[key] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_ideal_scaling_is_an_efficiency_of_one() -> None:
    table = table_of(study_of())
    assert tuple(table.columns) == CELL_COLUMNS
    # One worker is a point of both scalings, two are of one each.
    assert sorted(zip(table["scaling"], table["num_workers"], strict=True)) == [
        ("strong", 1),
        ("strong", 2),
        ("weak", 1),
        ("weak", 2),
    ]
    assert table["n"].tolist() == [2] * 4
    np.testing.assert_allclose(table["samples_per_s"], 1000.0 * table["num_workers"])
    np.testing.assert_allclose(table["speedup"].astype(float), table["num_workers"])
    np.testing.assert_allclose(table["efficiency"].astype(float), 1)
    np.testing.assert_allclose(table["step_median_s"], table["batch_size_per_worker"] / 1000)


def test_columns_have_the_name_of_another_metric() -> None:
    study = study_of(base={"objective": {"metric": "loss", "direction": "min", "target": 0.1}})
    table = table_of(study)
    assert not {"accuracy", "best_accuracy"} & set(table.columns)
    assert table["loss"].notna().all()
    assert printed_cells(table, metric=METRICS["loss"])["loss"].tolist()[0] == "0.9"


def test_the_first_epoch_has_its_own_number_with_the_compiling() -> None:
    row = table_of(study_of()).iloc[0]
    assert row["first_epoch_train_samples_per_s"] == pytest.approx(1000)
    assert row["first_epoch_samples_per_s"] == pytest.approx(EPOCH / (1 + 1))
    assert row["compile_s"] == 1


def test_speed_up_is_over_the_best_single_worker_whatever_its_batch() -> None:
    def step(spec: RunSpec, repeat: int) -> float:
        return (10 + spec.batch_size_per_worker) / 1000

    table = table_of(study_of(batch_sizes=[10, 90], scaling="weak"), step)
    row = at(table, num_workers=2, batch_size_per_worker=10)
    best = at(table, num_workers=1, batch_size_per_worker=90)
    assert row["baseline"] == best["cell"]
    assert row["speedup"] == pytest.approx(1000.0 / 900)
    assert row["speedup_same_batch"] == pytest.approx(2)
    assert row["efficiency_same_batch"] == pytest.approx(1)
    assert best["speedup"] == best["speedup_low"] == best["speedup_high"] == 1


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("framework", "torch", "tensorflow"),
        ("dataset.repeat", 1, 2),
        ("placement_strategy", "pack", "spread"),
        ("cpus_per_worker", 1, 2),
    ],
)
def test_a_baseline_is_of_the_same_kind(key: str, one: Any, other: Any) -> None:
    """Two values of `key`, the second one's single worker not run: it has no speed-up."""
    made = ((one, 1), (one, 2), (other, 2))
    cells = [WrittenCell(changes={key: value, "num_workers": workers}) for value, workers in made]
    study = ScalingStudy(name="x", base=RunSpec(), cells=cells, repeats=1)
    table = table_of(study)
    assert table["speedup"].isna().tolist() == [False, False, True]
    assert len(set(table["series"])) == 2 or key in ("placement_strategy", "cpus_per_worker")


def test_weak_is_no_baseline_of_strong() -> None:
    cells = [
        WrittenCell(scaling="weak", changes={"num_workers": 1}),
        WrittenCell(scaling="strong", changes={"num_workers": 2}),
    ]
    study = ScalingStudy(name="x", base=RunSpec(), cells=cells, repeats=1)
    assert table_of(study)["speedup"].isna().tolist() == [False, True]


def test_gpus_of_another_model_are_another_topology_and_another_row() -> None:
    study = study_of(scaling="weak", repeats=2)
    runs, curves = run_of(study)
    for name, run in runs.items():
        model = "T4" if name.endswith("r0") else "A100"
        runs[name] = replace(run, accelerators=[model])
    table = cell_table(study, runs, curves)
    assert len(table) == 4
    assert table["n"].tolist() == [1] * 4
    # Each model has a single worker of its own to compare with.
    assert table["speedup"].notna().all()
    assert len(set(table["topology"])) == 1, "no GPU was asked for"
    assert sorted(set(table["accelerators"])) == ["A100", "T4"]


def test_the_spread_of_a_speed_up_pairs_repeats_of_the_same_round() -> None:
    """All of a round twice as slow: the throughput varies by two, the speed-up not at all."""

    def step(spec: RunSpec, repeat: int) -> float:
        return spec.batch_size_per_worker / 1000 * (1 + repeat)

    row = at(table_of(study_of(scaling="weak", repeats=3), step), num_workers=2)
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((2, 2))
    assert row["samples_per_s_max"] == pytest.approx(3 * row["samples_per_s_min"])
    assert row["samples_per_s"] == pytest.approx(1000)


def test_failed_runs_are_counted_and_cut_off_ones_are_not_there() -> None:
    study = study_of(scaling="weak", repeats=3)
    runs, curves = run_of(study)
    runs["0000-r0"] = replace(runs["0000-r0"], state="failed", failure="oom", stop=None)
    runs["0000-r1"] = replace(runs["0000-r1"], state="stopped", stop="interrupted")
    runs["0001-r1"] = replace(runs["0001-r1"], state="failed", failure="worker_lost", stop=None)
    table = cell_table(study, runs, curves)
    one, two = at(table, num_workers=1), at(table, num_workers=2)
    assert (one["n"], one["failed"], one["failure"]) == (1, 1, "oom")
    assert (two["n"], two["failed"]) == (2, 0)


def test_what_one_worker_alone_needs_is_of_the_same_batch_per_worker() -> None:
    def step(spec: RunSpec, repeat: int) -> float:
        return 0.1 if spec.num_workers == 1 else 0.125

    table = table_of(study_of(scaling="weak"), step)
    assert at(table, num_workers=2)["alone_share"] == pytest.approx(0.8)
    assert at(table, num_workers=1)["alone_share"] == 1


def test_communication_is_told_by_the_cell_that_exchanges_nothing() -> None:

    def step(spec: RunSpec, repeat: int) -> float:
        return 0.1 if spec.num_workers == 1 or not spec.exchange_gradients else 0.125

    study = study_of(scaling="weak", axes={"exchange_gradients": [True, False]})
    table = table_of(study, step)
    row = at(table, num_workers=2, exchange_gradients=True)
    assert row["communication_share"] == pytest.approx(0.2)
    assert row["speedup"] == pytest.approx(1.6)


def test_memory_and_gpus_are_read_where_runs_tell_them() -> None:
    study = study_of(scaling="weak", repeats=1)
    runs, curves = run_of(study)
    steps = dict.fromkeys(("median_s", "p25_s", "p75_s", "p95_s", "max_s"), 0.064)
    told = {
        name: [
            replace(
                timed(one, num=9, **steps),
                memory_peak_bytes=100 + one.index,
                gpu_utilization=one.index / 2,
                evenness=0.9,
                bytes_exchanged_per_step=4000,
            )
            for one in curve
        ]
        for name, curve in curves.items()
    }
    table = cell_table(study, runs, told)
    assert table["evenness"].tolist() == pytest.approx([0.9, 0.9])
    assert table["bytes_exchanged_per_step"].tolist() == [4000, 4000]
    assert table["memory_peak_bytes"].tolist() == [102, 102]
    assert table["gpu_utilization"].tolist() == [0.5, 0.5]
    assert table["num_steps"].tolist() == [18, 18]
