"""`raybench scale --fit`: files in, predictions out, and a sentence for every mistake."""

import csv
import itertools
import math
from pathlib import Path

import pandas as pd
import pytest

from raybench.commands import cli
from raybench.scaling.fit_command import cells_matched
from raybench.scaling.measurements import Cell, Measurements, read_measurements

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
    """Measurements of two models, one of them on two GPU types, with repeats."""
    path = tmp_path / "measured.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["gpu_type", "model", "remark", *HEAD.split(",")])
        for (model, gpu), (k, n), batch, factor in itertools.product(
            (("resnet", "T4"), ("resnet", "A100"), ("bert", "T4")),
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


def test_worker_counts_are_predicted_at_every_batch(several: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "predicted.csv"
    assert run("--fit", several, "--predict", "1, 8,16", "--out", out) == cli.DONE
    table = pd.read_csv(out)
    assert list(table.columns) == COLUMNS
    assert len(table) == 3 * 3 * 2
    # Four workers on a node is the fullest that was seen.
    assert set(zip(table["num_workers"], table["num_nodes"], strict=True)) == {
        (1, 1),
        (8, 2),
        (16, 4),
    }
    assert (table["low_s"] < table["step_s"]).all()
    assert (table["step_s"] < table["high_s"]).all()
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
    assert printed.count("Leave-one-out error: median ") == 3
    assert "resnet on A100" in printed
    assert "~ beyond what was measured" in printed


def test_a_file_of_cells_is_predicted_row_by_row(several: Path, tmp_path: Path) -> None:
    asked, out = tmp_path / "asked.csv", tmp_path / "predicted.csv"
    asked.write_text(
        "model,gpu_type,num_workers,num_nodes,batch_size_per_worker,step_s\n"
        "bert,T4,16,4,32,9\nbert,T4,16,4,32,8\nresnet,A100,8,8,64,7\nbert,T4,1,1,16,6\n"
    )
    assert run("--fit", several, "--predict", asked, "--out", out) == cli.DONE
    found = pd.read_csv(out)
    rows = {tuple(row) for row in found[COLUMNS[:5]].itertuples(index=False)}
    assert rows == {
        ("bert", "T4", 16, 4, 32),
        ("resnet", "A100", 8, 8, 64),
        ("bert", "T4", 1, 1, 16),
    }
    assert len(found) == 3


def test_what_was_never_measured_is_said(good: Path, capsys) -> None:
    assert run("--fit", good, "--predict", "16") == cli.DONE
    assert "Never measured on more than one node" in capsys.readouterr().out
    good.write_text(f"{HEAD}\n1,1,32,0.05\n1,1,64,0.08\n")
    assert run("--fit", good, "--predict", "16") == cli.DONE
    assert "Never measured on more than one worker" in capsys.readouterr().out


def test_a_spreadsheet_s_file_is_read(tmp_path: Path) -> None:
    """A byte order mark, blanks, Windows' line ends, an empty line, whole numbers with a point."""
    file = tmp_path / "measured.csv"
    text = f"\ufeff {HEAD.replace(',', ' , ')},accumulate\n1.0, 1,32,5e-2,2\n\n2,1,32,0.06,\n"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    measured = read_measurements(file)
    assert measured.series == {("", ""): [(Cell(1, 1, 32, 2), 0.05), (Cell(2, 1, 32), 0.06)]}


def test_nodes_are_as_full_as_the_fullest_measured() -> None:
    rows = [(Cell(4, 1, 32), 1.0), (Cell(12, 2, 32), 1.0), (Cell(1, 1, 16, 2), 1.0)]
    asked = cells_matched("6,7,24", Measurements("x", {("", ""): rows}))[0]["", ""]
    assert {(cell.num_workers, cell.num_nodes) for cell in asked} == {(6, 1), (7, 2), (24, 4)}
    assert {(cell.batch_size_per_worker, cell.accumulate) for cell in asked} == {(32, 1), (16, 2)}


GREATER, WHOLE = "input should be greater than ", "input should be a valid integer"


ROWS = [
    ("", "has no rows below the names of its columns"),
    ("1,1,32,0.1\n", "has one row, which says nothing of how a training scales"),
    ("1,1,32,0.1\n2,1,32\n", "row 3: has 3 values, the first line names 4 columns"),
    ("1,1,32,0.1\n1.5,1,32,0.1\n", f"row 3: num_workers '1.5': {WHOLE}"),
    ("1,1,1e300,0.1\n1,1,8,1\n", "row 2: batch_size_per_worker '1e300': input should be a"),
    ("1,1,8,0\n1,1,8,1\n", f"row 2: step_s '0': {GREATER}0"),
    ("1,1,8,nan\n1,1,8,1\n", "row 2: step_s 'nan': input should be"),
    ("1,1,8,\n1,1,8,1\n", "row 2: step_s '': field required"),
    ("2,4,8,1\n1,1,8,1\n", "row 2: num_nodes 4 is more than its num_workers, 2"),
    ('1,1,8,"1\n', "row"),
]
"""Below HEAD, and what is said of them."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its first line must name num_workers, num_nodes, batch_size_per_worker, step_s"),
        ("num_workers,num_nodes,step_s\n1,1,1\n", "batch_size_per_worker stands there 0 times"),
        (f"{HEAD},step_s\n1,1,1,1,1\n", "step_s stands there 2 times"),
        (f"{HEAD},accumulate\n2,1,8,1,0\n1,1,8,1,1\n", f"row 2: accumulate '0': {GREATER}"),
        (b"\xff\xfe1", "is not a text file in UTF-8"),
        *((f"{HEAD}\n{rows}", words) for rows, words in ROWS),
    ],
)
def test_a_wrong_file_is_one_sentence(
    text: str | bytes, words: str, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "measured.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run("--fit", file, "--predict", "8") == cli.WRONG_INPUT
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"raybench: {file}")
    assert words in line
    assert captured.out == ""


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        ("8,,16", "'' is no number of workers"),
        ("9" * 5000, "is no number of workers"),
        ("-8", "--predict -8: '-8' is no number of workers; write 1 to 1,000,000 with commas"),
        ("٨", "is no number of workers"),
        ("nowhere.csv", "nowhere.csv: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_questions_are_one_sentence(predict: str, words: str, good: Path, capsys) -> None:
    assert run("--fit", good, f"--predict={predict}") == cli.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_model_that_was_not_measured_is_named(several: Path, tmp_path: Path, capsys) -> None:
    asked = tmp_path / "asked.csv"
    asked.write_text("model,gpu_type,num_workers,num_nodes,batch_size_per_worker\nyolo,T4,1,1,8\n")
    assert run("--fit", several, "--predict", asked) == cli.WRONG_INPUT
    line = capsys.readouterr().err
    assert f"{asked}, row 2: yolo on T4 was not measured" in line
    assert "has resnet on T4, resnet on A100, bert on T4" in line


def test_a_place_where_nothing_can_be_written_is_said(good: Path, capsys) -> None:
    for out, words in (
        ("measured.csv", "is the file of measurements"),
        (".", "cannot be written (Is a directory)"),
        ("nowhere/predicted.csv", "cannot be written (No such file or directory)"),
    ):
        assert run("--fit", good, "--predict", "8", "--out", good.parent / out) == cli.WRONG_INPUT
        assert words in capsys.readouterr().err
    assert good.read_text() == GOOD


def test_out_needs_predict_and_fit_runs_no_study(good: Path, capsys) -> None:
    assert run("--fit", good, "--out", good.parent / "p.csv") == cli.WRONG_INPUT
    assert "nothing to write without --predict" in capsys.readouterr().err
    for given, name in ((("--quick",), "--quick"), (("study.yaml",), "study study.yaml")):
        assert run("--fit", good, *given) == cli.WRONG_INPUT
        said = capsys.readouterr().err
        assert f"{name}: is of a study, and --fit runs none" in said


def test_one_row_among_others_is_predicted_widely(several: Path, tmp_path: Path, capsys) -> None:
    with several.open("a") as file:
        file.write("V100,resnet,,1,1,32,0.05\n")
    out = tmp_path / "predicted.csv"
    assert run("--fit", several, "--predict", "8", "--out", out) == cli.DONE
    assert "Leave-one-out error: none, there is one cell" in capsys.readouterr().out
    table = pd.read_csv(out)
    (row,) = table[table["gpu_type"] == "V100"].to_dict("records")
    assert row["high_s"] > 3 * row["low_s"]
