"""Predicted times: read beside the measured ones, marked, and never among them."""

from raybench.report.tables import predictions
from raybench.results.verdict import judge
from raybench.stats.record import Prediction
from tests.made_results import results_folder, run_line


def predicted(trial, seconds, *, workers, batch, framework="torch"):
    return Prediction(
        trial=trial,
        framework=framework,
        num_workers=workers,
        batch_size_per_worker=batch,
        time_to_target_s=seconds,
    ).line()


def study(folder, *lines):
    measured = run_line("0000", 4.0, num_workers=1, batch_size_per_worker=64)
    return results_folder(folder, [measured, *lines])


def test_the_last_prediction_of_a_split_counts(tmp_path):
    lines = [predicted("0000", seconds, workers=2, batch=32) for seconds in (0.5, 0.7)]
    assert list(predictions(study(tmp_path, *lines))["seconds ~"]) == [0.7]


def test_what_was_run_meanwhile_is_predicted_no_more(tmp_path):
    placement_check = run_line("0000.torch2", 0.6, num_workers=2, batch_size_per_worker=32)
    results = study(tmp_path, predicted("0000", 0.5, workers=2, batch=32), placement_check)
    assert predictions(results).empty
    assert judge(results).fastest == "0000.torch2"
