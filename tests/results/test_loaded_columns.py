"""The columns that `raybench.load` makes of records: their names, types and values."""

import math
import re

import pandas as pd
import pytest

from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TRIAL_TYPES
from tests.made_results import results_folder, run_line

# What design.md section 4 says scripts may rely on.
TRIAL_COLUMNS = re.split(
    r",\s*",
    """trial, phase, state, failure, framework, workload, num_parameters, num_workers,
    batch_size_per_worker, global_batch_size, optimizer, learning_rate, seed,
    time_to_target_s, best_accuracy, queue_s, start_s, setup_s, compile_s, train_s, input_s,
    eval_s, checkpoint_s, report_s, wall_s, samples_per_s, worker_seconds""",
)
CURVE_COLUMNS = ["trial", "epoch", "samples", "train_s", "train_loss", "accuracy"]
CURVE_COLUMNS += ["learning_rate", "samples_per_s"]


def test_a_row_holds_what_was_recorded(tmp_path):
    line = run_line(
        "0003",
        4.0,
        num_workers=2,
        batch_size_per_worker=32,
        accumulate=3,
        framework="tensorflow",
        optimizer="lars",
        learning_rate=0.5,
        seed=11,
    )
    row = results_folder(tmp_path, [line]).trials.iloc[0].to_dict()
    expected = {
        "trial": "0003",
        "phase": "search",
        "state": "complete",
        "framework": "tensorflow",
        "workload": "mnist_small",
        "num_parameters": 402_442,
        "num_workers": 2,
        "batch_size_per_worker": 32,
        "global_batch_size": 192,
        "optimizer": "lars",
        "learning_rate": 0.5,
        "seed": 11,
        "time_to_target_s": 4.0,
        "best_accuracy": 0.92,
        "train_s": 4.0,
        "input_s": 0.0625,
        "start_s": 8.0,
        "wall_s": 18.875,
        "samples_per_s": 250.0,
        "worker_seconds": 8.0,
    }
    assert {key: row[key] for key in expected} == expected
    phases = ("queue", "start", "setup", "compile", "train", "eval", "checkpoint", "report")
    assert sum(row[f"{phase}_s"] for phase in phases) == row["wall_s"]
    assert row["failure"] is None or math.isnan(row["failure"])


def test_every_searched_key_is_a_column_and_in_the_label_where_it_differs(tmp_path):
    space = {
        "optimizer": ["adam"],
        "weight_decay": {"low": 0.0, "high": 0.1},
        "schedule": ["constant", "cosine"],
        "precision": ["fp32"],
    }
    lines = [
        run_line("0000", 2.0, weight_decay=0.0, schedule="constant"),
        run_line("0001", 2.0, weight_decay=0.012345, schedule="cosine"),
    ]
    results = results_folder(tmp_path, lines, study={"space": space})
    assert results.searched == tuple(space)
    assert list(results.trials.columns)[-3:] == ["weight_decay", "schedule", "precision"]
    assert list(results.trials["weight_decay"]) == [0.0, 0.012345]
    assert list(results.trials["schedule"]) == ["constant", "cosine"]
    assert list(results.trials["precision"]) == ["fp32", "fp32"]
    assert list(results.trials["config"]) == [
        "torch 1x64 adam 0.001 weight_decay 0 schedule constant",
        "torch 1x64 adam 0.001 weight_decay 0.0123 schedule cosine",
    ]
    assert results.label(results.specs["0001"]) == results.trials["config"][1]


@pytest.mark.parametrize("lines", [[], [run_line("0000", failure="oom")], [run_line("0000", 2.0)]])
def test_columns_are_those_that_are_documented_whatever_is_missing(tmp_path, lines):
    lines = [line | {"num_parameters": None, "concurrent": 0} for line in lines]
    lines += [run_line("0009", 1.0)] if len(lines) else []
    results = results_folder(tmp_path, lines)
    found = {key: str(kind) for key, kind in results.trials.dtypes.items()}
    assert found == TRIAL_TYPES | EXTRA_TYPES
    assert list(found)[: len(TRIAL_COLUMNS)] == TRIAL_COLUMNS
    curves = {key: str(kind) for key, kind in results.curves.dtypes.items()}
    assert curves == CURVE_TYPES
    assert list(curves) == CURVE_COLUMNS
    assert (len(results.trials), len(results.specs)) == (len(lines), len(lines))
    if lines:
        assert results.trials["num_parameters"].tolist() == [pd.NA, 402_442]
        assert results.trials.to_csv(index=False).count(",402442,") == 1, "an integer stays one"


def test_times_of_day_and_worker_seconds(tmp_path):
    line = run_line("0000", 2.0, num_workers=4, train_s=5.0)
    line["finished"] = "2026-11-22T10:46:01+00:00"
    missed = run_line("0001", num_workers=4) | {"finished": "yesterday"}
    results = results_folder(tmp_path, [line, missed])
    row = results.trials.iloc[0]
    assert row["finished_at"] == pd.Timestamp("2026-11-22 10:46:01", tz="UTC")
    assert (row["worker_seconds"], row["worker_seconds_to_target"]) == (20.0, 8.0)
    assert math.isnan(results.trials["worker_seconds_to_target"][1])
    assert pd.isna(results.trials["finished_at"][1])
