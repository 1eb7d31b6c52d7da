"""Runs that are hard to judge: short steps, stalls, failures, a first epoch unlike the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybench.report.scaling_printed import other_lines, outlier_lines, printed_cells
from raybench.report.study import load
from raybench.scaling.cells import cell_table
from raybench.scaling.runs import RUN_COLUMNS, run_table
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import study_cells
from raybench.stats.record import Evaluation, Failure
from tests.runs.made_up import EPOCH, point, run_of, study_of, timed, write


@pytest.mark.parametrize(("stalled", "repeats"), [(2, 3), (0, 2), (0, 3)])
def test_a_stall_is_an_outlier_that_the_median_bears(
    stalled: int, repeats: int, tmp_path: Path
) -> None:
    """Of the last epoch, or of the first one."""
    study = study_of(scaling="weak", repeats=repeats)
    runs, curves = run_of(study)
    name, is_first = "0000-r1", stalled == 0
    seconds = np.cumsum([7200.0 if i == stalled else 1.0 for i in range(3)])
    rates = [EPOCH / 7200 if i == stalled else 1000.0 for i in range(3)]
    curves[name] = [point(i, rates[i], train_s=float(seconds[i])) for i in range(3)]
    each = run_table(study_cells(study), runs, curves)
    assert tuple(each.columns) == RUN_COLUMNS
    assert each.loc[each["is_outlier"], "trial"].tolist() == [name]
    assert each.loc[each["is_slow_start"], "trial"].tolist() == [name] * is_first
    row = cell_table(study, runs, curves).iloc[0]
    assert row["outliers"] == 1
    assert row["samples_per_s"] == pytest.approx(1000)
    assert row["longest_step_s"] == pytest.approx(7200 * 64 / EPOCH)
    (told,) = outlier_lines(load(write(tmp_path / "stalled", study, runs, curves)))
    usual = "its first epoch, usual in its cell are" if is_first else "with its stalls, its cell's"
    assert f"0 samples/s {'in ' * is_first}{usual}" in told
    assert "longest step took 461 s" in told


def test_ordinary_noise_is_no_outlier() -> None:
    def step(spec: RunSpec, repeat: int) -> float:
        return spec.batch_size_per_worker / 1000 * (1, 1.2, 0.9)[repeat]

    study = study_of(repeats=3)
    assert cell_table(study, *run_of(study, step))["outliers"].sum() == 0


def test_input_share_is_of_the_steady_state_as_the_steps_are() -> None:
    """The first epoch reads its data from a disk for 9 of 10 s; then a tenth of a second waits."""
    study = study_of(scaling="weak", repeats=1)
    runs, curves = run_of(study, ledger={"train": 12.0, "input": 9.2, "compile": 0.0})
    waited = (9.0, 9.1, 9.2)
    told = {
        name: [
            point(i, 1000.0, train_s=10.0 + i, input_s=seconds) for i, seconds in enumerate(waited)
        ]
        for name in curves
    }
    assert cell_table(study, runs, told)["input_share"].tolist() == pytest.approx([0.1, 0.1])
    short = {name: curve[:1] for name, curve in told.items()}
    assert cell_table(study, runs, short)["input_share"].tolist() == pytest.approx([0.9, 0.9])


def epochs_of(num: int, size: int, seconds: float, *, whole: float | None) -> list[Evaluation]:
    """Return evaluations after epochs of `size` samples; their whole steps took `whole` seconds."""
    names = ("median_s", "p25_s", "p75_s", "p95_s", "max_s")
    curve = []
    for i in range(num):
        now = point(i, size / seconds, samples=size * (i + 1), train_s=seconds * (i + 1))
        curve.append(now if whole is None else timed(now, num=1, **dict.fromkeys(names, whole)))
    return curve


def test_a_short_last_step_makes_no_samples_out_of_nothing() -> None:
    """50,000 samples at a million a second, in batches of 32,768 and of 65,536."""
    study = study_of(scaling="weak", num_workers=[8], batch_sizes=[4096, 8192], repeats=1)
    runs, _ = run_of(study)
    curves = {
        "0000-r0": epochs_of(3, 50_000, 0.05, whole=0.032768),
        "0001-r0": epochs_of(3, 50_000, 0.05, whole=None),
    }
    table = cell_table(study, runs, curves)
    np.testing.assert_allclose(table["samples_per_s"], 1e6)
    np.testing.assert_allclose(table["step_median_s"], [0.032768, 0.05])
    assert table["epoch_samples"].tolist() == [50_000, 50_000]
    assert table["outliers"].tolist() == [0, 0]
    lines = other_lines(table)
    (told,) = [line for line in lines if line.startswith("Batch above the dataset")]
    assert "8 x 8192 had the 50,000 samples of an epoch, not 65,536" in told


def test_a_short_step_that_takes_as_long_is_no_stall() -> None:
    """1,000 samples in batches of 960: the second step has 40, and needs a second all the same."""
    study = study_of(scaling="weak", num_workers=[1], batch_sizes=[960], repeats=1)
    runs, _ = run_of(study)
    usual = {"0000-r0": epochs_of(3, 1000, 2.0, whole=1.0)}
    assert cell_table(study, runs, usual)["outliers"].tolist() == [0]
    stalled = {"0000-r0": epochs_of(3, 1000, 4.0, whole=1.0)}
    assert cell_table(study, runs, stalled)["outliers"].tolist() == [1]


@pytest.mark.parametrize("failure", ["nan", "oom"])
def test_runs_that_cannot_train_have_missed_the_target(failure: Failure) -> None:
    study = study_of(scaling="weak", repeats=3)
    runs, curves = run_of(study)
    for repeat, seconds in enumerate((1.0, 3.0, None)):
        name = f"0000-r{repeat}"
        runs[name] = replace(runs[name], time_to_target_s=seconds)
    lost = replace(runs["0000-r2"], state="failed", failure=failure, stop=None)
    one = cell_table(study, runs | {"0000-r2": lost}, curves).iloc[0]
    # The middle one of 1, 3 and never; without the miss it would be 2, of 2/2.
    assert (one["time_to_target_s"], one["reached"], one["tried"], one["n"]) == (3.0, 2, 3, 2)
    told = printed_cells(cell_table(study, runs | {"0000-r2": lost}, curves))
    assert told["target after s"].tolist()[0] == "3.00 2/3"
    # What a mistake in the code ends says nothing of the target.
    broken = replace(lost, failure="error")
    one = cell_table(study, runs | {"0000-r2": broken}, curves).iloc[0]
    assert (one["time_to_target_s"], one["reached"], one["tried"]) == (2.0, 2, 2)
