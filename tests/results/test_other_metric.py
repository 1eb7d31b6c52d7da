"""A study that is judged by RMSE: its columns, winners, sentences, tables and pictures say so."""

import io

import numpy as np
import pytest
from rich.console import Console

from raybench.report.answer import spec_comment, verdict_lines
from raybench.report.export import export
from raybench.report.figures.curves import curves_figure
from raybench.report.figures.pareto import pareto_figure
from raybench.report.figures.parts import metric_axis, new_figure
from raybench.report.live.progress import Progress
from raybench.report.live.screen import study_screen
from raybench.report.remarks import sensitivity_lines, target_warning
from raybench.report.show import show
from raybench.results.store import Store
from raybench.results.verdict import judge, reached_target
from raybench.spec.objective import Objective
from tests.made_results import curve, results_folder, run_line
from tests.search.made_up import evaluation, record

RMSE = {"metric": "rmse", "direction": "min", "baseline_value": 2.0, "max_train_seconds": 60.0}
BUDGET = Objective(kind="best_at_budget", **RMSE)
TIMED = Objective(target=0.5, **RMSE)


def at_budget(trial, searched, found):
    """A trial of the search and its confirming runs by RMSE; None is a run that failed."""
    given = {"objective": BUDGET, "stop": "max_train_seconds"}
    runs = [*curve(trial, [1.9, searched]), run_line(trial, best_value=searched, **given)]
    for repeat, value in enumerate(found):
        failed = {"failure": "nan", "stop": None} if value is None else {"test_value": 0.8}
        name = f"{trial}-confirm{repeat}"
        runs.append(run_line(name, role="confirm", best_value=value or 0.1, **given | failed))
    return runs


@pytest.fixture
def budget(tmp_path):
    groups = [
        at_budget("0000", 0.40, [0.90, 0.95, 0.99]),
        at_budget("0001", 0.55, [0.60, 0.62, 0.61]),
        at_budget("0002", 0.50, [0.61, 0.66, 0.70]),
        at_budget("0003", 0.58, [0.10, None, None]),
    ]
    lines = [line for group in groups for line in group]
    return results_folder(tmp_path, lines, objective=BUDGET)


def test_columns_have_the_name_of_the_metric(budget, tmp_path):
    assert budget.metric.name == "rmse"
    assert not [name for name in budget.trials if "accuracy" in name]
    assert not [name for name in budget.curves if "accuracy" in name]
    assert budget.trials.set_index("trial").loc["0001", "best_rmse"] == 0.55
    assert list(budget.curves["rmse"][:2]) == [1.9, 0.40]
    assert budget.trials["test_rmse"].dtype == float
    with Store(tmp_path) as store:
        export(budget, store)
    best = (tmp_path / "best.yaml").read_text()
    assert best.startswith(f"# best RMSE of {tmp_path.name}: trial 0001")
    assert "# reaches RMSE 0.61 within 60 s of training (median of 3 new seeds; 90 % inter" in best


def test_the_least_median_wins_and_a_run_that_failed_counts_as_the_worst(budget):
    table, verdict = budget.confirmed, judge(budget)
    assert list(table["trial"]) == ["0001", "0002", "0000", "0003"]
    assert list(table["median_rmse"][:3]) == [0.61, 0.66, 0.95]
    assert np.isinf(table["median_rmse"].iloc[3])
    assert (verdict.fastest, verdict.ties) == ("0001", ("0001", "0002"))
    best, near = verdict_lines(budget, verdict)
    assert (
        "(trial 0001), the best of 1 configuration tried; 1 other may be as good. It reaches RMSE "
        "0.61 within 60 s of training (median of 3 new seeds; 90 % interval over seeds: 0.5"
    ) in best
    assert near == "Statistically tied with the best RMSE: trial 0002."
    assert list(budget.configurations["best_rmse"][:2]) == [0.61, 0.66]


def test_what_is_printed_speaks_of_the_metric(budget):
    console = Console(file=io.StringIO(), width=120)
    show(console, budget, verbose=True)
    text = console.file.getvalue()
    for words in ("best", "median", "search", "test", "RMSE", "0.5749 - 0.6451", "0.8"):
        assert words in text
    assert "accuracy" not in text
    assert "%" not in text.partition("Where the seconds went")[0].replace("90 %", "")


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
    assert "a target this high hardly distinguishes them; try a lower one" in target_warning(
        results
    )
    line = verdict_lines(results, judge(results))[0]
    assert "(trial 0005)" in line
    assert "It reaches RMSE 0.5 after 2.09 s (interpolated) of training, " in line


def test_curves_fall_to_the_target_and_the_marker_is_at_the_least(budget, tmp_path):
    axes = curves_figure(budget).axes[0]
    assert axes.get_ylabel() == "validation RMSE"
    assert axes.get_yscale() == "log"
    marks = [line for line in axes.lines if line.get_marker() in "os^"]
    assert sorted(float(line.get_ydata()[0]) for line in marks) == [0.40, 0.50, 0.55]
    results = timed(tmp_path / "timed")
    _, axes = new_figure(4, 3)
    metric_axis(axes, results)
    (target,) = [line for line in axes.lines if line.get_gid() == "target"]
    assert target.get_ydata()[0] == 0.5
    assert [text.get_text() for text in axes.texts] == ["target\n0.5"]


def test_the_front_of_a_metric_that_falls_goes_down_with_the_cost(budget):
    axes = pareto_figure(budget).axes[0]
    assert axes.get_ylabel() == "best validation RMSE"
    (front,) = [line for line in axes.lines if line.get_gid() == "front"]
    assert list(front.get_ydata()) == [0.61]


def test_the_live_screen_shows_the_metric():
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    progress = Progress(console, num_trials=2)
    done = record(
        "0000",
        spec := record().spec.model_copy(update={"objective": BUDGET}),
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


def test_an_interval_that_nothing_bounds_is_not_printed(tmp_path):
    given = {"objective": BUDGET, "stop": "max_train_seconds"}
    lines = [run_line("0000", best_value=0.5, **given)]
    lines.append(run_line("0000-race0", best_value=0.6, role="race", **given))
    results = results_folder(tmp_path, lines, objective=BUDGET)
    verdict = judge(results)
    text = "\n".join([*verdict_lines(results, verdict), spec_comment(results, "0000", verdict, "")])
    assert "(median of 1 new seed); confirmed, run beside others." in text
    assert "inf" not in text
