"""`raybench.load`: which records count, the columns of the tables, several studies side by side."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest

import raybench
from raybench.report.answer import summary_of
from raybench.report.study import Studies, load
from raybench.results.store import STUDY_FILE
from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TRIAL_TYPES
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from tests.made_results import confirmed_trial, curve, results_folder, run_line
from tests.refusals import refused

ONE, OTHER = curve("0000", [0.1, 0.2]), curve("0001", [0.6, 0.7])
STOPPED = run_line("0000", outer_stop="interrupted")


@pytest.mark.parametrize(
    ("lines", "curves"),
    [
        ([*ONE, run_line("0001", 1.0)], {"0001": []}),  # 0000 has no run record
        (
            [*ONE, STOPPED, run_line("0001", 9.0), *curve("0000", [0.5]), run_line("0000", 2.0)],
            {"0001": [], "0000": [0.5]},  # ordered by finish time
        ),
        ([*ONE, STOPPED, run_line("0000", failure="oom")], {"0000": []}),
        # A run that lost its workers repeats every evaluation after its checkpoint.
        (
            [*curve("0000", [0.1, 0.2, 0.3, 0.4]), *curve("0000", [0, 0.25, 0.35])[1:], STOPPED],
            {"0000": [0.1, 0.25, 0.35]},
        ),
        (
            [ONE[0], *OTHER, ONE[1], run_line("0001", 9.0), run_line("0000", 8.0)],
            {"0001": [0.6, 0.7], "0000": [0.1, 0.2]},
        ),
    ],
)
def test_a_run_counts_once_with_its_last_curve(tmp_path, lines, curves):
    results = results_folder(tmp_path, lines)
    assert list(results.trials["trial"]) == list(results.runs) == list(curves)
    last = {line["trial"]: line for line in lines if line["kind"] == "run"}
    assert {name: run.line() for name, run in results.runs.items()} == last
    for trial, values in curves.items():
        assert list(results.curves["accuracy"][results.curves["trial"] == trial]) == values
    assert len(results.curves) == sum(map(len, curves.values()))


def test_confirmed_configurations_rank_before_single_runs(tmp_path):
    lines = [
        *confirmed_trial("0000", [6.0, 7.0, 8.0]),
        *confirmed_trial("0001", [3.0, 3.5, None], missed_s=30.0),
        run_line("0002", 1.0, num_workers=2),  # the luckiest single run
        run_line("0003"),
        run_line("0004", failure="oom"),
    ]
    table = results_folder(tmp_path, lines).configurations
    columns = ["trial", "is_confirmed", "hits", "runs", "expected_s", "worker_seconds_to_target"]
    assert table[columns].head(3).to_numpy().tolist() == [
        ["0000", True, 3, 3, 7.0, 7.0],
        ["0001", True, 2, 3, 41.5 / 2, 41.5 / 2],  # a miss costs what it took, and the next start
        ["0002", False, 1, 1, 1.0, 2.0],
    ]
    assert table["time_to_target_s"].tolist()[:3] == table["expected_s"].tolist()[:3]
    assert table.loc[3, ["trial", "hits"]].tolist() == ["0003", 0]
    assert table.loc[3:, "time_to_target_s"].isna().tolist() == [True]


FIXTURE = Path(__file__).parents[1] / "fixtures" / "digits_study"


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("a/study", 2.0), ("b/study", 1.0)):
        results_folder(tmp_path / name, [*curve("0000", [0.5, 0.92]), run_line("0000", seconds)])
    return [Path("a/study"), Path("b/study")]


def test_tables_of_several_studies_are_joined_with_a_study_column(places):
    studies = raybench.load([*places, FIXTURE])
    assert isinstance(studies, Studies)
    assert studies.names == ("a/study", "b/study", "digits_study")
    assert raybench.load([places[0], places[0]]).names == ("a/study", "a/study (2)")
    assert next(iter(studies.trials.columns)) == "study"
    counts = studies.trials["study"].value_counts()
    assert dict(counts) == {"digits_study": 33, "a/study": 1, "b/study": 1}
    assert len(studies.curves) == 206 + 4
    assert set(studies.confirmed["study"]) == {"digits_study"}
    assert studies["b/study"] is studies[1]
    assert studies[:2].names == ("a/study", "b/study")
    with refused(ErrorCode.UNKNOWN_NAME, "'c'", *studies.names):
        studies["c"]


def test_winners_of_several_studies_are_compared(places):
    studies = raybench.load([*places, FIXTURE])
    table = studies.winners.set_index("study")
    assert dict(table["seconds"])["b/study"] == 1.0
    assert list(table["is_confirmed"]) == [False, False, True]
    assert (table["ties"]["digits_study"], table["trials"]["digits_study"]) == (2, 24)
    lines = repr(studies).split("\n")
    assert lines[0].startswith("3 studies")
    assert lines[2] == f"b/study: {' '.join(studies['b/study'].answer)}"
    page = studies._repr_html_()
    assert "<strong>3 studies</strong>" in page
    assert "<td>b/study</td>" in page


def test_studies_without_a_result_are_in_the_table(tmp_path, places):
    results_folder(tmp_path / "empty", [])
    studies = raybench.load([tmp_path / "empty", places[0]])
    assert studies.winners["trial"].isna().tolist() == [True, False]
    assert f"empty: {summary_of(load(tmp_path / 'empty')).lines[0]}" in repr(studies)


def test_different_metrics_have_separate_columns(tmp_path, places):
    loss = Objective(target=0.4, metric="loss", direction="min")
    results_folder(tmp_path / "loss", [run_line("0000", 2.0, objective=loss)], objective=loss)
    studies = raybench.load([tmp_path / "loss", places[0]])
    assert {"best_loss", "best_accuracy"} <= set(studies.trials.columns)
    assert list(studies.winners["metric"]) == ["loss", "accuracy"]


def test_a_folder_of_studies_is_refused_with_their_names(tmp_path, places):
    with refused(ErrorCode.NOT_FOUND, "a", f"'{places[0]}'"):
        raybench.load("a")
    with refused(ErrorCode.MISSING, "raybench.load"):
        raybench.load([])
    study = raybench.load(places[0])
    assert (study == study, study == raybench.load(places[1])) == (True, False)
    (places[0] / "records.jsonl").rename("some.txt")
    (places[1] / STUDY_FILE).unlink()
    for folder, missing in (
        (places[0], "records.jsonl"),
        (places[1], STUDY_FILE),
        (tmp_path / "nowhere", "records.jsonl"),
        (Path("some.txt"), "some.txt"),
    ):
        with refused(ErrorCode.NOT_FOUND, folder, missing):
            raybench.load(folder)


# The columns that design.md section 4 promises to scripts.
TRIAL_COLUMNS = re.split(
    r",\s*",
    """trial, phase, state, failure, framework, workload, num_parameters, num_workers,
    batch_size_per_worker, global_batch_size, optimizer, learning_rate, seed,
    time_to_target_s, best_accuracy, queue_s, start_s, setup_s, compile_s, train_s, input_s,
    eval_s, checkpoint_s, report_s, wall_s, samples_per_s, worker_seconds""",
)
CURVE_COLUMNS = ["trial", "epoch", "samples", "train_s", "train_loss", "accuracy"]
CURVE_COLUMNS += ["learning_rate", "samples_per_s"]


FINISHED = "2026-11-22T10:46:01+00:00"


def test_a_row_holds_the_recorded_values(tmp_path):
    spec = {"framework": "tensorflow", "optimizer": "lars", "learning_rate": 0.5, "seed": 11}
    spec |= {"num_workers": 2, "batch_size_per_worker": 32, "accumulate": 3}
    line = run_line("0003", 4.0, train_s=5.0, **spec)
    untrained = run_line("0004", failure="oom") | {"finished": "yesterday"}
    untrained["ledger"]["train"] = 0.0
    trials = results_folder(tmp_path, [line | {"finished": FINISHED}, untrained]).trials
    row = trials.iloc[0].to_dict()
    del spec["accumulate"]
    seconds = {"time_to_target_s": 4.0, "train_s": 5.0, "input_s": 0.0625, "start_s": 8.0}
    seconds |= {"worker_seconds": 10.0, "worker_seconds_to_target": 8.0, "wall_s": 19.875}
    expected = {"trial": "0003", "phase": "search", "state": "complete", "workload": "mnist_small"}
    expected |= {"num_parameters": 402_442, "global_batch_size": 192, "best_accuracy": 0.92}
    expected |= {"samples_per_s": 200.0, "finished_at": pd.Timestamp(FINISHED)}
    expected |= spec | seconds
    assert {key: row[key] for key in expected} == expected
    phases = ("queue", "start", "setup", "compile", "train", "eval", "checkpoint", "report")
    assert sum(row[f"{phase}_s"] for phase in phases) == row["wall_s"]
    assert row["failure"] is None or math.isnan(row["failure"])
    unknown = ["worker_seconds_to_target", "finished_at", "samples_per_s"]
    assert trials.loc[1, unknown].isna().all()
    known = ["state", "failure", "worker_seconds"]
    assert trials.loc[1, known].tolist() == ["failed", "oom", 0.0]


def test_searched_keys_are_columns_and_differing_keys_are_in_the_label(tmp_path):
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
    assert results.trials.iloc[:, -3:].to_dict("list") == {
        "weight_decay": [0.0, 0.012345],
        "schedule": ["constant", "cosine"],
        "precision": ["fp32", "fp32"],
    }
    assert list(results.trials["config"]) == [
        "torch 1x64 adam 0.001 weight_decay 0 schedule constant",
        "torch 1x64 adam 0.001 weight_decay 0.0123 schedule cosine",
    ]
    assert results.label(results.specs["0001"]) == results.trials["config"][1]


@pytest.mark.parametrize("lines", [[], [run_line("0000", failure="oom")], [run_line("0000", 2.0)]])
def test_columns_match_the_documentation_with_any_records(tmp_path, lines):
    lines = [line | {"num_parameters": None, "concurrent": 0} for line in lines]
    lines += [run_line("0009", 1.0)] if len(lines) else []
    results = results_folder(tmp_path, lines)
    types = {key: str(kind) for key, kind in results.trials.dtypes.items()}
    assert types == TRIAL_TYPES | EXTRA_TYPES
    assert list(types)[: len(TRIAL_COLUMNS)] == TRIAL_COLUMNS
    curves = {key: str(kind) for key, kind in results.curves.dtypes.items()}
    assert curves == CURVE_TYPES
    assert list(curves) == CURVE_COLUMNS
    assert (len(results.trials), len(results.specs)) == (len(lines), len(lines))
    if lines:
        assert results.trials["num_parameters"].tolist() == [pd.NA, 402_442]
        assert results.trials.to_csv(index=False).count(",402442,") == 1, "integers stay integers"
