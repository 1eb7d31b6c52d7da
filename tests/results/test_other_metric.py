"""A study that is judged by RMSE: its columns, winners, sentences, tables and pictures say so."""

import numpy as np
import pytest
from test_screens import RMSE, RMSE_BUDGET, RMSE_LINES

from raybench.report.answer import said
from raybench.report.figures.curves import curves_figure
from raybench.report.remarks import sensitivity_lines, target_warning
from raybench.results.verdict import judge, reached_target
from raybench.spec.objective import Objective
from tests.made_results import curve, results_folder, run_line

TIMED = Objective(target=0.5, **RMSE)


@pytest.fixture
def budget(tmp_path):
    return results_folder(tmp_path, RMSE_LINES, objective=RMSE_BUDGET)


def test_columns_have_the_name_of_the_metric(budget, tmp_path):
    assert budget.metric.name == "rmse"
    assert not [name for name in budget.trials if "accuracy" in name]
    assert not [name for name in budget.curves if "accuracy" in name]
    assert budget.trials.set_index("trial").loc["0001", "best_rmse"] == 0.55
    assert list(budget.curves["rmse"][:2]) == [1.9, 0.40]
    assert budget.trials["test_rmse"].dtype == float
    table, verdict = budget.confirmed, judge(budget)
    assert list(table["trial"]) == ["0001", "0002", "0000", "0003"]
    assert list(table["median_rmse"][:3]) == [0.61, 0.66, 0.95]
    assert np.isinf(table["median_rmse"].iloc[3])
    assert (verdict.fastest, verdict.ties) == ("0001", ("0001", "0002"))


def timed(folder):
    lines = []
    for n in range(8):
        lines += [
            *curve(f"{n:04d}", [0.9, 0.512 - n / 500, 0.48]),
            run_line(f"{n:04d}", 3.0, objective=TIMED, best_value=0.49),
        ]
    return results_folder(folder, lines, objective=TIMED)


def test_one_point_is_a_hundredth_of_the_gap_to_chance(tmp_path):
    results = timed(tmp_path)
    easier, harder = sensitivity_lines(results)
    assert easier.startswith("With target RMSE 0.515 trial 0007")
    assert "after 1.96 s; 8 trials reached it" in easier
    assert harder.startswith("With target RMSE 0.485 trial 0007")
    assert "after 2.72 s" in harder
    assert results.time_to(0.6)["seconds"].min() == pytest.approx(1.0 + 0.3 / 0.402)
    (warning,) = target_warning(results)
    assert "a target this high hardly distinguishes them; try a lower one" in warning
    line = said(results).lines[0]
    assert "(trial 0005)" in line
    assert "It reaches RMSE 0.5 after 2.09 s (interpolated) of training, " in line


def test_a_target_beside_a_budget_makes_no_study_of_seconds(tmp_path):
    objective = Objective(kind="best_at_budget", target=0.5, **RMSE)
    lines = [*curve("0000", [0.9, 0.4]), run_line("0000", 2.0, best_value=0.4, objective=objective)]
    results = results_folder(tmp_path, lines, objective=objective)
    assert reached_target(results).empty
    figure = curves_figure(results)
    assert "search best 0.4 (one run)" in figure.legends[0].get_texts()[0].get_text()
