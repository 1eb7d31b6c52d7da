"""A study that is judged by RMSE: its columns, winners, sentences, tables and pictures say so."""

import io

import numpy as np
import pytest
from rich.console import Console
from test_screens import RMSE, RMSE_BUDGET, RMSE_LINES

from raybench.report.answer import said
from raybench.report.figures.curves import curves_figure
from raybench.report.figures.parts import metric_axis, new_figure
from raybench.report.live.progress import Progress
from raybench.report.live.screen import study_screen
from raybench.report.remarks import sensitivity_lines, target_warning
from raybench.results.verdict import judge, reached_target
from raybench.spec.objective import Objective
from tests.made_results import curve, results_folder, run_line
from tests.search.made_up import evaluation, record

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


def test_curves_fall_to_the_target_and_the_marker_is_at_the_least(budget, tmp_path):
    axes = curves_figure(budget).axes[0]
    assert axes.get_ylabel() == "validation RMSE"
    assert axes.get_yscale() == "log"
    marks = [line for line in axes.lines if line.get_marker() in "os^"]
    assert sorted(float(line.get_ydata()[0]) for line in marks) == [0.40, 0.50, 0.55]
    results = timed(tmp_path / "timed")
    _, axes = new_figure(3)
    metric_axis(axes, results)
    (target,) = [line for line in axes.lines if line.get_gid() == "target"]
    assert target.get_ydata()[0] == 0.5
    assert [text.get_text() for text in axes.texts] == ["target\n0.5"]


def test_the_live_screen_shows_the_metric():
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    progress = Progress(console, num_trials=2)
    done = record(
        "0000",
        spec := record().spec.model_copy(update={"objective": RMSE_BUDGET}),
        stop="epochs",
        value=0.4321,
    )
    progress.started("0001", spec)
    progress.evaluated("0001", evaluation(value=0.98765))
    progress.finished(done)
    assert " rmse=0.4321 stop=epochs best=yes" in console.file.getvalue()
    with console.capture() as taken:
        console.print(study_screen(console, progress.state, 0.0))
    screen = taken.get()
    assert "best     RMSE 0.4321 after" in screen
    assert "0.9877" in screen


def test_a_target_beside_a_budget_makes_no_study_of_seconds(tmp_path):
    objective = Objective(kind="best_at_budget", target=0.5, **RMSE)
    lines = [*curve("0000", [0.9, 0.4]), run_line("0000", 2.0, best_value=0.4, objective=objective)]
    results = results_folder(tmp_path, lines, objective=objective)
    assert reached_target(results).empty
    figure = curves_figure(results)
    assert "search best 0.4 (one run)" in figure.legends[0].get_texts()[0].get_text()
