"""Studies with another metric than accuracy: its name in columns, text and figures."""

import csv
import re

import numpy as np
import pytest

from raybench.commands import cli
from raybench.report.answer import summary_of
from raybench.report.confidence import target_warning
from raybench.results.verdict import reached_target
from raybench.runs.preflight import check_task
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.made_results import RMSE, RMSE_BUDGET, RMSE_LINES, curve, results_folder, run_line
from tests.refusals import refused


def test_columns_are_named_after_the_metric(tmp_path):
    budget = results_folder(tmp_path, RMSE_LINES, objective=RMSE_BUDGET)
    assert budget.metric.name == "rmse"
    assert not [name for name in budget.trials if "accuracy" in name]
    assert not [name for name in budget.curves if "accuracy" in name]
    assert budget.trials.set_index("trial").loc["0001", "best_rmse"] == 0.55
    assert list(budget.curves["rmse"][:2]) == [1.9, 0.40]
    assert budget.trials["test_rmse"].dtype == float
    table = budget.confirmed
    assert list(table["trial"]) == ["0001", "0002", "0000", "0003"]
    assert list(table["median_rmse"][:3]) == [0.61, 0.66, 0.95]
    assert np.isinf(table["median_rmse"].iloc[3])


def test_targets_of_other_metrics_are_reported(tmp_path):
    objective, lines = Objective(target=0.5, **RMSE), []
    for n in range(8):
        lines += curve(f"{n:04d}", [0.9, 0.512 - n / 500, 0.48])
        lines.append(run_line(f"{n:04d}", 3.0, objective=objective, best_value=0.49))
    results = results_folder(tmp_path, lines, objective=objective)
    assert len(target_warning(results)) == 1
    line = summary_of(results).lines[0]
    assert "(trial 0005)" in line
    assert "RMSE 0.5 " in line
    assert "2.09 s (interpolated)" in line


def test_a_target_with_a_budget_objective_is_not_timed(tmp_path):
    objective = Objective(kind="best_at_budget", target=0.5, **RMSE)
    lines = [*curve("0000", [0.9, 0.4]), run_line("0000", 2.0, best_value=0.4, objective=objective)]
    results = results_folder(tmp_path, lines, objective=objective)
    assert reached_target(results).empty


NAME = "metrics/Top1's acc [%] {x}: <b>$y$"


@pytest.mark.usefixtures("one_picture")
def test_a_metric_is_shown_with_its_own_name(tmp_path, capsys):
    objective = Objective(metric=NAME, direction="max", is_share=True, target=0.95)
    lines = [*curve("0000", [0.5, 0.96]), run_line("0000", 2.0, objective=objective)]
    study = results_folder(tmp_path, lines, objective=objective)
    assert f"best_{NAME}" in study.trials
    assert NAME in study.curves
    assert cli.main(["report", str(tmp_path)]) == 0
    assert f"trial to {NAME} 95 %" in re.sub(r"\s+", " ", capsys.readouterr().out)
    with (tmp_path / "trials.csv").open() as file:
        assert f"best_{NAME}" in next(csv.reader(file))
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;$y$" in page
    assert "<b>$y$" not in page


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.UNKNOWN_NAME),
        (" acc", ErrorCode.INVALID_VALUE),
        ("a\nb", ErrorCode.INVALID_VALUE),
        *((name, ErrorCode.CONFLICT) for name in ("samples", "evenness", "input", "n", "step_ms")),
        ("x" * 81, ErrorCode.INVALID_VALUE),
    ],
)
def test_invalid_metric_names_are_refused(name, code):
    objective = Objective(metric=name, direction="max", target=0.9)
    spec = RunSpec(workload="$ true", objective=objective)
    with refused(code, "objective.metric"):
        check_task(spec, ["python"])
