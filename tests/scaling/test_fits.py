"""Fits of measured steps: files of `raybench scale --fit`, scaling studies, and refused input."""

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raybench.commands import cli
from raybench.report.scaling_report import fit_to_files
from raybench.report.study import StudyResults, load
from raybench.scaling.fits import (
    cells_to_predict,
    fit_series,
    fit_study,
    measurements,
    median_error,
)
from raybench.scaling.measurements import Cell, SeriesKey, read_measurements
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from tests.refusals import refused
from tests.runs.made_up import law, reaching, run_of, study_of, write

pytestmark = pytest.mark.usefixtures("without_pollux")

HEAD = "num_workers,num_nodes,batch_size_per_worker,step_s"
GOOD = f"{HEAD}\n1,1,32,0.05\n2,1,32,0.06\n4,1,32,0.065\n1,1,64,0.08\n"
COLUMNS = [
    *("model", "gpu_type", "num_workers", "num_nodes", "batch_size_per_worker", "accumulate"),
    *("step_s", "low_s", "high_s", "samples_per_s", "efficiency", "extrapolated"),
]


def step(workers: int, nodes: int, batch: int, speed: float) -> float:
    wire = 0.0 if workers == 1 else 0.03 * (1 if nodes == 1 else 3) * 2 * (workers - 1) / workers
    return math.hypot(0.01 + batch / speed, wire)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Measurements of two models, each on another GPU type, with repeats."""
    path = tmp_path / "measured.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["gpu_type", "model", "remark", *HEAD.split(",")])
        for (model, gpu), (k, n), batch, factor in itertools.product(
            (("resnet", "T4"), ("bert", "A100")),
            ((1, 1), (2, 1), (4, 1), (2, 2), (8, 2)),
            (16, 64),
            (0.99, 1.01),
        ):
            speed = 1000 if gpu == "A100" else 400
            rows.writerow([gpu, model, "x, y", k, n, batch, factor * step(k, n, batch, speed)])
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text(GOOD)
    return path


def run(*arguments: object) -> int:
    return cli.main(["scale", *map(str, arguments)])


def test_worker_counts_are_predicted_at_every_batch_size(several, tmp_path, capsys):
    out = tmp_path / "predicted.csv"
    assert run("--fit", several, "--predict", "1, 8,16", "--out", out) == cli.DONE
    table = pd.read_csv(out)
    assert list(table.columns) == COLUMNS
    assert len(table) == 2 * 3 * 2
    # The fullest measured node has four workers.
    assert set(zip(table["num_workers"], table["num_nodes"], strict=True)) == {
        (1, 1),
        (8, 2),
        (16, 4),
    }
    samples = table["num_workers"] * table["batch_size_per_worker"] / table["step_s"]
    assert table["samples_per_s"].to_numpy() == pytest.approx(samples.to_numpy(), rel=1e-4)
    alone = table[table["num_workers"] == 1]
    assert alone["efficiency"].to_numpy() == pytest.approx(1.0)
    assert list(table["extrapolated"]) == list(table["num_workers"] == 16)
    for row in table.to_dict("records"):
        speed = 1000 if row["gpu_type"] == "A100" else 400
        true = step(row["num_workers"], row["num_nodes"], row["batch_size_per_worker"], speed)
        assert row["step_s"] == pytest.approx(true, rel=0.15)
    printed = capsys.readouterr().out
    assert "resnet on T4" in printed
    assert "bert on A100" in printed


def test_a_file_of_cells_is_predicted_for_every_series(several, tmp_path):
    cells_file, out = tmp_path / "asked.csv", tmp_path / "predicted.csv"
    head = "model,num_workers,num_nodes,batch_size_per_worker"
    cells_file.write_text(f"{head}\nx,16,4,32\nx,16,4,32\n,8,8,64\n")
    assert run("--fit", several, "--predict", cells_file, "--out", out) == cli.DONE
    predictions = pd.read_csv(out)
    assert len(predictions) == 2 * 2
    cells = set(predictions[COLUMNS[2:5]].itertuples(index=False, name=None))
    assert cells == {(16, 4, 32), (8, 8, 64)}


def test_unmeasured_conditions_are_reported(good):
    def sentences(predict: str) -> list[str]:
        measured = read_measurements(good)
        (fitted,) = fit_series(measured, cells_to_predict(predict, measured))
        return fitted.sentences()

    # A node holds four workers, so 16 need several nodes, which were not measured.
    assert len(sentences("16")) > len(sentences("2"))
    good.write_text(f"{HEAD}\n1,1,32,0.05\n1,1,64,0.08\n")
    assert len(sentences("16")) > len(sentences("1"))


def test_a_csv_file_of_a_spreadsheet_is_read(tmp_path):
    """Byte order mark, blanks, Windows line endings, an empty line, integers written as 1.0."""
    file = tmp_path / "measured.csv"
    text = f"\ufeff {HEAD.replace(',', ' , ')},accumulate\n1.0, 1,32,5e-2,2\n\n2,1,32,0.06,\n"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    measured = read_measurements(file)
    assert measured == {("", ""): [(Cell(1, 1, 32, 2), 0.05), (Cell(2, 1, 32), 0.06)]}


def test_nodes_are_as_full_as_the_fullest_measured():
    rows = [(Cell(4, 1, 32), 1.0), (Cell(12, 2, 32), 1.0), (Cell(1, 1, 16, 2), 1.0)]
    cells = cells_to_predict("6,7,24", {SeriesKey(): rows})[SeriesKey()]
    assert {(cell.num_workers, cell.num_nodes) for cell in cells} == {(6, 1), (7, 2), (24, 4)}
    assert {(cell.batch_size_per_worker, cell.accumulate) for cell in cells} == {(32, 1), (16, 2)}


TWO = "1,1,8,1\n2,1,8,1\n"


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("", ErrorCode.INVALID_FILE, []),
        ("1,2\n", ErrorCode.INVALID_FILE, HEAD.split(",")),
        (b"\xff\xfe1", ErrorCode.INVALID_FILE, []),
        ("num_workers,num_nodes,step_s\n1,1,1\n", ErrorCode.INVALID_FILE, ["batch_size_per"]),
        (f"{HEAD}\n", ErrorCode.TOO_FEW, []),
        (f"{HEAD}\n1,1,32,0.1\n", ErrorCode.TOO_FEW, []),
        (f"{HEAD}\n1,1,32,0.1\n2,1,32\n", ErrorCode.INVALID_VALUE, ["row 3", "step_s"]),
        (f"{HEAD},accumulate\n2,1,8,1,0\n1,1,8,1,1\n", ErrorCode.INVALID_VALUE, ["accumulate"]),
        (f"{HEAD}\n1.5,1,32,0.1\n{TWO}", ErrorCode.INVALID_VALUE, ["row 2", "num_workers", 1.5]),
        (f"{HEAD}\n1,1,1e300,0.1\n{TWO}", ErrorCode.INVALID_VALUE, ["batch_size_per_worker"]),
        (f"{HEAD}\n1,1,8,0\n{TWO}", ErrorCode.INVALID_VALUE, ["step_s", "'0'"]),
        (f"{HEAD}\n1,1,8,nan\n{TWO}", ErrorCode.INVALID_VALUE, ["step_s", "nan"]),
        (f"{HEAD}\n1,1,8,\n{TWO}", ErrorCode.INVALID_VALUE, ["step_s"]),
        (f"{HEAD}\n2,4,8,1\n{TWO}", ErrorCode.INVALID_VALUE, ["num_nodes", "num_workers"]),
    ],
)
def test_an_invalid_file_is_refused(text, code, names, tmp_path):
    file = tmp_path / "measured.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(code, file, *names):
        read_measurements(file)


@pytest.mark.parametrize(
    ("predict", "code", "name"),
    [
        ("8,,16", ErrorCode.INVALID_VALUE, "--predict"),
        ("9" * 5000, ErrorCode.INVALID_VALUE, "--predict"),
        ("-8", ErrorCode.INVALID_VALUE, "--predict"),
        ("8,x", ErrorCode.INVALID_VALUE, "--predict"),
        ("nowhere.csv", ErrorCode.NOT_FOUND, ""),
    ],
)
def test_invalid_worker_counts_and_missing_files_of_cells_are_refused(predict, code, name, good):
    with refused(code, name, predict[:40]):
        cells_to_predict(predict, read_measurements(good))


@pytest.mark.parametrize(
    ("out", "code"),
    [
        ("measured.csv", ErrorCode.CONFLICT),
        (".", ErrorCode.NOT_WRITABLE),
        ("nowhere/predicted.csv", ErrorCode.NOT_WRITABLE),
    ],
)
def test_an_unwritable_output_file_is_refused(out, code, good):
    with refused(code, good.parent / out):
        fit_to_files(good, "8", good.parent / out)
    assert good.read_text() == GOOD


def test_out_requires_predict_and_fit_excludes_a_study(good, capsys):
    with refused(ErrorCode.MISSING, "--out", "--predict"):
        fit_to_files(good, None, good.parent / "p.csv")
    for argument in ("--quick", "study.yaml"):
        assert run("--fit", good, argument) == cli.WRONG_INPUT
        assert argument in capsys.readouterr().err


def test_a_series_of_one_row_has_a_wide_interval(several, tmp_path):
    with several.open("a") as file:
        file.write("V100,resnet,,1,1,32,0.05\n")
    out = tmp_path / "predicted.csv"
    assert run("--fit", several, "--predict", "8", "--out", out) == cli.DONE
    table = pd.read_csv(out)
    (row,) = table[table["gpu_type"] == "V100"].to_dict("records")
    assert row["high_s"] > 3 * row["low_s"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--fit", "steps.csv", "--network", "0"], "'network'"),
        (["--fit", "steps.csv", "--network", "nan"], "nan"),
        (["--network", "3"], "--fit"),
    ],
)
def test_an_invalid_network_speed_is_refused(arguments, name, capsys):
    assert run(*arguments) == cli.WRONG_INPUT
    assert name in capsys.readouterr().err


def test_a_known_network_speed_narrows_the_interval(tmp_path, capsys):
    file, out = tmp_path / "steps.csv", tmp_path / "predicted.csv"
    file.write_text(f"{GOOD}4,1,64,0.095\n")
    widths, steps = [], []
    for network in ((), ("--network", "1"), ("--network", "10")):
        assert run("--fit", file, "--predict", "16", "--out", out, *network) == cli.DONE
        table = pd.read_csv(out)
        widths.append((table["high_s"] / table["low_s"]).median())
        steps.append(table["step_s"].median())
    printed = capsys.readouterr().out
    assert all(number in printed for number in ("10", "7.2", "14"))
    assert widths[1] < 0.7 * widths[0]
    assert steps[2] > 1.5 * steps[1]


def scaling_results(folder: Path, **content: Any) -> StudyResults:
    study = study_of(**content)
    return load(write(folder / "made", study, *run_of(study, law)))


def test_the_fit_of_a_study_recovers_its_law_and_error(tmp_path):
    results = reaching(tmp_path, batch_sizes=[32, 64, 128, 256], epoch=1100)
    (fitted,) = fit_study(results, predict="8,16")
    assert median_error(fitted.left_out) < 0.1
    assert "Leave-one-out" in " ".join(fitted.sentences())
    table = fitted.predictions
    assert set(table["num_workers"]) == {8, 16}
    assert table["extrapolated"].all()
    for row in table[table["batch_size_per_worker"] == 128].to_dict("records"):
        spec = RunSpec(num_workers=row["num_workers"], batch_size_per_worker=128)
        assert row["low_s"] < law(spec, 0) < row["high_s"]


def test_a_series_of_one_cell_is_not_fitted(tmp_path):
    results = scaling_results(tmp_path, num_workers=[1], scaling="weak")
    assert fit_study(results, predict=None) == []


def test_a_batch_size_without_steps_is_not_fitted(tmp_path):
    """An epoch has 1,000 samples, less than a step of 4 x 256."""
    results = scaling_results(
        tmp_path, num_workers=[1, 2, 4], batch_sizes=[64, 256], scaling="weak"
    )
    (rows,) = measurements(results).values()
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 256} == {1, 2}
    assert {cell.num_workers for cell, _ in rows if cell.batch_size_per_worker == 64} == {1, 2, 4}
