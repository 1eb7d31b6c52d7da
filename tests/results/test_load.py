"""`raybench.load`: which records count, and what of a study is read back."""

import math

import pytest

import raybench
from raybench.results.store import STUDY_FILE
from raybench.spec.errors import UserError
from tests.made_results import again, curve, results_folder, run_line


def test_a_run_that_never_trained_has_no_speed(tmp_path):
    line = run_line("0000", failure="oom")
    line["ledger"]["train"] = 0.0
    row = results_folder(tmp_path, [line]).trials.iloc[0]
    assert row["samples_per_s"] is None or math.isnan(row["samples_per_s"])
    assert (row["state"], row["failure"], row["worker_seconds"]) == ("failed", "oom", 0.0)


ONE, OTHER = curve("0000", [0.1, 0.2]), curve("0001", [0.6, 0.7])
STOPPED = run_line("0000", outer_stop="interrupted")


@pytest.mark.parametrize(
    ("lines", "curves"),
    [
        ([*ONE, run_line("0001", 1.0)], {"0001": []}),  # without a finished run
        (
            [*ONE, STOPPED, run_line("0001", 9.0), *curve("0000", [0.5]), run_line("0000", 2.0)],
            {"0001": [], "0000": [0.5]},  # in the order they finished in
        ),
        ([*ONE, STOPPED, run_line("0000", failure="oom")], {"0000": []}),
        # A run that lost its workers repeats what came after its checkpoint, and all that followed.
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


@pytest.mark.parametrize("missing", ["records.jsonl", STUDY_FILE])
def test_another_folder_is_refused(tmp_path, missing):
    results_folder(tmp_path, [])
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=missing):
        raybench.load(tmp_path)


def test_configurations_rank_the_confirmed_apart_from_single_runs(tmp_path):
    lines = [
        *again("0000", [6.0, 7.0, 8.0]),
        *again("0001", [3.0, 3.5, None], missed_s=30.0),
        run_line("0002", 1.0, num_workers=2),  # the luckiest single run
        run_line("0003"),
        run_line("0004", failure="oom"),
    ]
    table = results_folder(tmp_path, lines).configurations
    assert list(table["trial"]) == ["0000", "0001", "0002", "0003"]
    assert list(table["is_confirmed"]) == [True, True, False, False]
    assert list(table["hits"]) == [3, 2, 1, 0]
    assert list(table["runs"]) == [3, 3, 1, 1]
    assert list(table["time_to_target_s"])[:3] == [7.0, 41.5 / 2, 1.0], (
        "a miss costs what it took, and the next start"
    )
    assert list(table["expected_s"])[:3] == [7.0, 41.5 / 2, 1.0]
    assert list(table["worker_seconds_to_target"])[:3] == [7.0, 41.5 / 2, 2.0]
    assert math.isnan(table["time_to_target_s"][3])
    assert {"config", "framework", "num_workers", "learning_rate"} <= set(table.columns)
