"""Cells and speedup curves of a scaling study: medians, baselines, shares, outliers, failures."""

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from raybench.report.console import print_frame
from raybench.report.scaling_printed import other_lines, outlier_lines, printed_cells
from raybench.report.study import load
from raybench.report.words import ENDINGS
from raybench.scaling.cells import (
    CELL_COLUMNS,
    RUN_COLUMNS,
    cell_table,
    curves_of,
    epoch_samples,
    on_more_hosts,
    peak_flops,
    run_rates,
    run_table,
    series_of,
)
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import METRICS
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.spec.scaling_study import ScalingStudy, WrittenCell, study_cells
from raybench.stats.record import Evaluation
from tests.refusals import refused
from tests.runs.made_up import EPOCH, equal_steps, point, run_of, study_of, write


def table_of(study: ScalingStudy, *arguments: Any, **changes: Any) -> pd.DataFrame:
    return cell_table(study, *run_of(study, *arguments, **changes))


def weak(**content):
    """Return a study of weak scaling, its records and its curves."""
    study = study_of(scaling="weak", **content)
    return study, *run_of(study)


def written(*cells: WrittenCell) -> ScalingStudy:
    return ScalingStudy(name="x", base=RunSpec(), cells=list(cells), repeats=1)


def at(table: pd.DataFrame, **keys: Any) -> Any:
    """Return the only row with these values."""
    for key, value in keys.items():
        table = table[table[key] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_ideal_scaling_has_an_efficiency_of_one():
    table = table_of(study_of())
    assert tuple(table.columns) == CELL_COLUMNS
    # One worker belongs to both scalings.
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
    first = table.iloc[0]
    assert first["compile_s"] == 1
    assert first["first_epoch_samples_per_s"] == pytest.approx(EPOCH / (1 + 1))


def test_columns_are_named_after_the_metric():
    study = study_of(base={"objective": {"metric": "loss", "direction": "min", "target": 0.1}})
    table = table_of(study)
    assert not {"accuracy", "best_accuracy"} & set(table.columns)
    assert table["loss"].notna().all()
    assert printed_cells(table, metric=METRICS["loss"])["loss"].tolist()[0] == "0.9"


def test_a_dropped_title_does_not_drop_columns_that_begin_with_it():
    console = Console(file=io.StringIO(), width=10)
    table = pd.DataFrame({"n": ["1"], "nll": ["2"], "test a": ["3"], "series": ["4"]})
    print_frame(console, table, "title", drop=("n", "test "))
    assert console.file.getvalue().splitlines()[1].split() == ["nll", "series"]


def test_speedup_is_relative_to_the_best_single_worker_of_any_batch():
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
    ("key", "first", "second"),
    [
        ("framework", "torch", "tensorflow"),
        ("dataset.repeat", 1, 2),
        ("placement_strategy", "pack", "spread"),
        ("cpus_per_worker", 1, 2),
    ],
)
def test_a_baseline_has_the_same_settings(key, first, second):
    """The second value of `key` has no run with a single worker, so it has no speedup."""
    runs_by_value = ((first, 1), (first, 2), (second, 2))
    cells = [
        WrittenCell(changes={key: value, "num_workers": workers})
        for value, workers in runs_by_value
    ]
    table = table_of(written(*cells))
    assert table["speedup"].isna().tolist() == [False, False, True]
    assert len(set(table["series"])) == 2 or key in ("placement_strategy", "cpus_per_worker")


def test_weak_scaling_is_no_baseline_of_strong_scaling():
    weak = WrittenCell(scaling="weak", changes={"num_workers": 1})
    strong = WrittenCell(scaling="strong", changes={"num_workers": 2})
    assert table_of(written(weak, strong))["speedup"].isna().tolist() == [False, True]


def test_another_gpu_model_is_another_row():
    study, runs, curves = weak(repeats=2)
    for name, run in runs.items():
        model = "T4" if name.endswith("r0") else "A100"
        runs[name] = replace(run, accelerators=[model])
    table = cell_table(study, runs, curves)
    assert len(table) == 4
    assert table["n"].tolist() == [1] * 4
    # Each GPU model has its own run with a single worker.
    assert table["speedup"].notna().all()
    assert len(set(table["topology"])) == 1, "the study requests no GPU"
    assert sorted(set(table["accelerators"])) == ["A100", "T4"]


def test_the_spread_of_a_speedup_pairs_repeats_of_the_same_round():
    """All runs of a round are equally slower: throughput varies, the speedup does not."""

    def step(spec: RunSpec, repeat: int) -> float:
        return spec.batch_size_per_worker / 1000 * (1 + repeat)

    row = at(table_of(study_of(scaling="weak", repeats=3), step), num_workers=2)
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((2, 2))
    assert row["samples_per_s"] == pytest.approx(1000)


def test_failed_runs_are_counted_and_interrupted_runs_are_not():
    study, runs, curves = weak(repeats=3)
    runs["0000-r0"] = replace(runs["0000-r0"], state="failed", failure="oom", stop=None)
    runs["0000-r1"] = replace(runs["0000-r1"], state="stopped", stop="interrupted")
    runs["0001-r1"] = replace(runs["0001-r1"], state="failed", failure="worker_lost", stop=None)
    table = cell_table(study, runs, curves)
    single, parallel = at(table, num_workers=1), at(table, num_workers=2)
    assert (single["n"], single["failed"], single["failure"]) == (1, 1, "oom")
    assert (parallel["n"], parallel["failed"]) == (2, 0)


def test_shares_of_a_step_use_one_worker_and_the_cell_without_exchange():
    def step(spec: RunSpec, repeat: int) -> float:
        return 0.1 if spec.num_workers == 1 or not spec.exchange_gradients else 0.125

    study = study_of(scaling="weak", axes={"exchange_gradients": [True, False]})
    table = table_of(study, step)
    row = at(table, num_workers=2, exchange_gradients=True)
    assert row["communication_share"] == pytest.approx(0.2)
    assert row["alone_share"] == pytest.approx(0.8)
    assert at(table, num_workers=1, exchange_gradients=True)["alone_share"] == 1
    assert row["speedup"] == pytest.approx(1.6)


def test_memory_and_gpu_columns_come_from_evaluations():
    study, runs, curves = weak(repeats=1)
    measured = {
        name: [
            replace(
                point,
                steps=equal_steps(9, 0.064),
                memory_peak_bytes=100 + point.index,
                gpu_utilization=point.index / 2,
                evenness=0.9,
                bytes_exchanged_per_step=4000,
                flops_per_sample=2e9,
                tokens_per_sample=100,
            )
            for point in curve
        ]
        for name, curve in curves.items()
    }
    table = cell_table(study, runs, measured)
    rows = table.to_dict("records")
    for row in rows:
        assert row["evenness"] == pytest.approx(0.9)
        assert (row["bytes_exchanged_per_step"], row["memory_peak_bytes"]) == (4000, 102)
        assert (row["gpu_utilization"], row["num_steps"]) == (0.5, 18)
        assert row["flops_per_s"] == pytest.approx(2e9 * row["samples_per_s"])
        assert row["tokens_per_s"] == pytest.approx(100 * row["samples_per_s"])
        assert math.isnan(row["mfu"]), "the peak of a CPU is unknown"
    printed = printed_cells(table)
    assert {"tokens/s", "TFLOP/s"} < set(printed.columns)
    assert "MFU" not in printed
    run, curve = runs["0000-r0"], measured["0000-r0"]
    rates = run_rates(run, curve)
    for name in ("samples_per_s", "flops_per_s", "tokens_per_s"):
        assert rates[name] == pytest.approx(rows[0][name])
    unreported = [replace(point, samples=point.index + 1, epoch=9.0) for point in curve]
    assert run_rates(run, unreported) == {}
    assert epoch_samples(unreported) == 1


@pytest.mark.parametrize(
    ("accelerator", "precision", "peak"),
    [
        ("A100-80G", "bf16", 2 * 312e12),
        ("V100", "bf16", math.nan),
        ("A100, H100", "bf16", math.nan),
        ("", "fp32", math.nan),
    ],
)
def test_peak_flops_are_summed_over_known_gpus(accelerator, precision, peak):
    spec = RunSpec(num_workers=2, gpus_per_worker=1, precision=precision)
    assert peak_flops(spec, accelerator) == pytest.approx(peak, nan_ok=True)


@pytest.mark.parametrize(
    ("key", "values"), [("placement_strategy", ["pack", "spread"]), ("accumulate", [1, 2])]
)
def test_different_settings_are_different_curves(key, values):
    cells = [WrittenCell(changes={key: value, "num_workers": 1}) for value in values]
    curves = curves_of(table_of(written(*cells)))
    assert [len(curve) for curve in curves.values()] == [1, 1]


def test_equal_worker_counts_on_more_hosts_are_another_topology():
    study, runs, curves = weak()
    runs["0001-r1"] = replace(runs["0001-r1"], workers_per_node=[1, 1])
    table = cell_table(study, runs, curves)
    assert on_more_hosts(table)["num_nodes"].tolist() == [2]
    (curve,) = curves_of(table).values()
    assert curve["num_nodes"].tolist() == [1, 1]
    assert any("2 hosts" in line for line in other_lines(table))


def test_duplicate_cells_of_a_curve_are_refused():
    cells = [WrittenCell(changes={"num_workers": 1, "seed": seed}) for seed in (0, 100)]
    with refused(ErrorCode.CONFLICT, "0000", "0001"):
        curves_of(table_of(written(*cells)))


def test_runs_without_exchange_are_in_no_curve():
    table = table_of(study_of(scaling="weak"))
    table["exchange_gradients"] = [True, False]
    (curve,) = curves_of(table).values()
    assert curve["num_workers"].tolist() == [1]


def test_runs_without_a_steady_state_are_reported():
    """The time budget ends the second repeat of the second cell after one epoch."""
    study, runs, curves = weak()
    before = len(other_lines(cell_table(study, runs, curves)))
    curves["0001-r1"] = curves["0001-r1"][:1]
    ended = replace(runs["0001-r1"], stop="max_train_seconds")
    table = cell_table(study, runs | {"0001-r1": ended}, curves)
    assert table["is_warm"].tolist() == [True, False]
    assert table["stop"].tolist() == ["target", "max_train_seconds, target"]
    lines = other_lines(table)
    assert len(lines) == before + 1
    assert any("2 x 64" in line and ENDINGS["max_train_seconds"] in line for line in lines)


SYNTHETIC, MORE = (DatasetSpec(name="synthetic", num_samples=count) for count in (64, 128))
DIGITS = {"dataset": DatasetSpec(name="digits")}


@pytest.mark.parametrize(
    "labels",
    [
        [
            ({}, ""),
            ({"exchange_gradients": False}, ", exchange_gradients false"),
            ({"warmup_epochs": 1.0}, ", warmup_epochs 1.0"),
            ({"schedule": "cosine"}, ", schedule cosine"),
        ],
        # Specs that differ only in workers are one series.
        [
            ({"num_workers": k, "precision": precision}, label)
            for k in (1, 2)
            for precision, label in (("fp32", ""), ("bf16", ", precision bf16"))
        ],
        [
            (DIGITS, ""),
            ({"dataset": SYNTHETIC}, ", dataset.name synthetic, dataset.num_samples 64"),
            ({"dataset": MORE}, ", dataset.name synthetic, dataset.num_samples 128"),
        ],
    ],
)
def test_a_series_label_holds_only_the_keys_that_differ(labels):
    names = [f"torch, mnist_small{label}" for _, label in labels]
    assert series_of([RunSpec(**changes) for changes, _ in labels]) == names


@pytest.mark.parametrize(
    ("workloads", "names"),
    [
        (["a.b:Net", "a.b:Other"], ["Net", "Other"]),
        (["a.b:Net", "a.c:Net"], ["a.b:Net", "a.c:Net"]),
    ],
)
def test_a_series_label_holds_the_class_name_if_it_is_unique(workloads, names):
    labels = series_of([RunSpec(workload=workload) for workload in workloads])
    assert labels == [f"torch, {name}" for name in names]


@pytest.mark.parametrize(("stalled", "repeats"), [(2, 3), (0, 2)])
def test_a_stall_is_an_outlier_and_does_not_change_the_median(stalled, repeats, tmp_path):
    """The stall is in the last epoch or in the first."""
    study, runs, curves = weak(repeats=repeats)
    name, is_first = "0000-r1", stalled == 0
    seconds = np.cumsum([7200.0 if i == stalled else 1.0 for i in range(3)])
    rates = [EPOCH / 7200 if i == stalled else 1000.0 for i in range(3)]
    curves[name] = [point(i, rates[i], train_s=float(seconds[i])) for i in range(3)]
    by_run = run_table(study_cells(study), runs, curves)
    assert tuple(by_run.columns) == RUN_COLUMNS
    assert by_run.loc[by_run["is_outlier"], "trial"].tolist() == [name]
    assert by_run.loc[by_run["is_slow_start"], "trial"].tolist() == [name] * is_first
    row = cell_table(study, runs, curves).iloc[0]
    assert row["outliers"] == 1
    assert row["samples_per_s"] == pytest.approx(1000)
    assert row["longest_step_s"] == pytest.approx(7200 * 64 / EPOCH)
    (sentence,) = outlier_lines(load(write(tmp_path / "stalled", study, runs, curves)))
    for words in (name, "461 s"):
        assert words in sentence


def test_ordinary_noise_is_no_outlier():
    def step(spec: RunSpec, repeat: int) -> float:
        return spec.batch_size_per_worker / 1000 * (1, 1.2, 0.9)[repeat]

    assert table_of(study_of(repeats=3), step)["outliers"].sum() == 0


def test_input_share_is_of_the_steady_state():
    """The first epoch waits 9 of 10 s for data; later epochs wait 0.1 s."""
    study = study_of(scaling="weak", repeats=1)
    runs, curves = run_of(study, ledger={"train": 12.0, "input": 9.2, "compile": 0.0})
    waited = (9.0, 9.1, 9.2)
    waiting = {
        name: [
            point(i, 1000.0, train_s=10.0 + i, input_s=seconds) for i, seconds in enumerate(waited)
        ]
        for name in curves
    }
    assert cell_table(study, runs, waiting)["input_share"].tolist() == pytest.approx([0.1, 0.1])
    short = {name: curve[:1] for name, curve in waiting.items()}
    assert cell_table(study, runs, short)["input_share"].tolist() == pytest.approx([0.9, 0.9])


def epochs_of(size: int, seconds: float, *, step_s: float | None) -> list[Evaluation]:
    """Return evaluations after three epochs of `size` samples; their full steps took `step_s`."""
    steps = None if step_s is None else equal_steps(1, step_s)
    return [
        point(i, size / seconds, samples=size * (i + 1), train_s=seconds * (i + 1), steps=steps)
        for i in range(3)
    ]


def test_a_partial_last_step_does_not_inflate_throughput():
    """50,000 samples at a million per second, in batches of 32,768 and 65,536."""
    study, runs, _ = weak(num_workers=[8], batch_sizes=[4096, 8192], repeats=1)
    curves = {
        "0000-r0": epochs_of(50_000, 0.05, step_s=0.032768),
        "0001-r0": epochs_of(50_000, 0.05, step_s=None),
    }
    table = cell_table(study, runs, curves)
    np.testing.assert_allclose(table["samples_per_s"], 1e6)
    np.testing.assert_allclose(table["step_median_s"], [0.032768, 0.05])
    assert table["epoch_samples"].tolist() == [50_000, 50_000]
    assert table["outliers"].tolist() == [0, 0]
    lines = other_lines(table)
    (sentence,) = [line for line in lines if "8 x 8192" in line and "50,000" in line]
    assert "65,536" in sentence


def test_a_partial_step_of_full_duration_is_no_stall():
    """1,000 samples in batches of 960: the second step has 40 samples and also takes 1 s."""
    study, runs, _ = weak(num_workers=[1], batch_sizes=[960], repeats=1)
    regular = {"0000-r0": epochs_of(1000, 2.0, step_s=1.0)}
    assert cell_table(study, runs, regular)["outliers"].tolist() == [0]
    stalled = {"0000-r0": epochs_of(1000, 4.0, step_s=1.0)}
    assert cell_table(study, runs, stalled)["outliers"].tolist() == [1]


@pytest.mark.parametrize("failure", ["nan", "oom"])
def test_runs_that_fail_to_train_miss_the_target(failure):
    study, runs, curves = weak(repeats=3)
    for repeat, seconds in enumerate((1.0, 3.0, None)):
        name = f"0000-r{repeat}"
        runs[name] = replace(runs[name], time_to_target_s=seconds)
    lost = replace(runs["0000-r2"], state="failed", failure=failure, stop=None)
    row = cell_table(study, runs | {"0000-r2": lost}, curves).iloc[0]
    # The median of 1, 3 and a miss; without the miss it would be 2.
    assert (row["time_to_target_s"], row["reached"], row["tried"], row["n"]) == (3.0, 2, 3, 2)
    printed = printed_cells(cell_table(study, runs | {"0000-r2": lost}, curves))
    assert printed["target after s"].tolist()[0] == "3.00 2/3"
    # A run that ended by an error in the code is not informative about the target.
    broken = replace(lost, failure="error")
    row = cell_table(study, runs | {"0000-r2": broken}, curves).iloc[0]
    assert (row["time_to_target_s"], row["reached"], row["tried"]) == (2.0, 2, 2)
