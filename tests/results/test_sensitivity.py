"""Sentences on the target: nearly all or none reach it, and one point either side of it."""

import pytest

from raybench.report.remarks import speed_line, target_warning
from raybench.report.tables import predictions
from raybench.results.verdict import judge
from raybench.stats.record import Prediction
from tests.made_results import results_folder, run_line


def study(folder, reached, missed):
    lines = [run_line(f"{n:04d}", 3.0 + n) for n in range(reached)]
    lines += [run_line(f"{reached + n:04d}") for n in range(missed)]
    return results_folder(folder, lines)


@pytest.mark.parametrize(
    ("reached", "missed", "words"),
    [(10, 0, "try a higher one"), (0, 10, "try a lower target"), (5, 5, None), (7, 0, None)],
)
def test_a_target_for_all_or_for_none_is_warned_of(tmp_path, reached, missed, words):
    warning = " ".join(target_warning(study(tmp_path, reached, missed)))
    assert words in warning if words else not warning


def test_what_was_stopped_as_too_slow_is_counted_apart(tmp_path):
    lines = [run_line(f"{n:04d}", 3.0 + n) for n in range(10)]
    lines += [run_line(f"{10 + n:04d}", outer_stop="cap") for n in range(5)]
    assert target_warning(results_folder(tmp_path, lines))[0].startswith(
        "10 of 10 trials reach 90 % accuracy (5 others were stopped as too slow before they could)"
    )


def test_what_changes_speed_alone_is_said_beside_the_slowest_other_value(tmp_path):
    """All else the same: of 2 workers in one pass, which were trained, and three predictions."""
    ways = {
        "0": (8.0, {"num_workers": 1, "batch_size_per_worker": 64}),
        "1": (5.0, {"num_workers": 2, "batch_size_per_worker": 16, "accumulate": 2}),
        "2": (9.0, {"num_workers": 1, "batch_size_per_worker": 64, "compile": "default"}),
    }
    lines = [run_line("0000", 4.0, num_workers=2, batch_size_per_worker=32)]
    alone = results_folder(tmp_path / "alone", lines)
    assert speed_line(alone, "0000") == []
    for seconds, way in ways.values():
        given = {"trial": "0000", "framework": "torch", "time_to_target_s": seconds} | way
        lines.append(Prediction(**given).line())
    results = results_folder(tmp_path / "predicted", lines)
    words = "workers 2 over 1 x 2.00, accumulate 1 over 2 x 1.25"
    assert speed_line(results, "0000") == [f"Predicted speeds (~): {words}."]


def predicted(trial, seconds, *, workers, batch, framework="torch"):
    return Prediction(
        trial=trial,
        framework=framework,
        num_workers=workers,
        batch_size_per_worker=batch,
        time_to_target_s=seconds,
    ).line()


def beside_a_measured_run(folder, *lines):
    measured = run_line("0000", 4.0, num_workers=1, batch_size_per_worker=64)
    return results_folder(folder, [measured, *lines])


def test_the_last_prediction_of_a_split_counts(tmp_path):
    lines = [predicted("0000", seconds, workers=2, batch=32) for seconds in (0.5, 0.7)]
    assert list(predictions(beside_a_measured_run(tmp_path, *lines))["seconds ~"]) == [0.7]


def test_what_was_run_meanwhile_is_predicted_no_more(tmp_path):
    placement_check = run_line("0000.torch2", 0.6, num_workers=2, batch_size_per_worker=32)
    results = beside_a_measured_run(
        tmp_path, predicted("0000", 0.5, workers=2, batch=32), placement_check
    )
    assert predictions(results).empty
    assert judge(results).fastest == "0000.torch2"
