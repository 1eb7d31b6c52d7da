"""The figures show the numbers of the stored study, and survive studies that found nothing."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from looks import words
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import raybench
from raybench.commands import cli
from raybench.report.figures import parts
from raybench.report.figures.curves import curves_figure
from raybench.report.figures.kinds import FIGURES
from raybench.report.figures.outcomes import pareto_figure
from raybench.report.figures.timeline import ledger_figure
from raybench.report.study import StudyResults
from raybench.results.analyses import pareto_front
from raybench.results.verdict import reached_target
from raybench.stats.clock import PHASES
from tests.made_results import curve, results_folder, run_line

STUDY = Path(__file__).parents[2] / "fixtures" / "digits_study"


@pytest.fixture(scope="module")
def results() -> StudyResults:
    return raybench.load(STUDY)


def line_of(axes: Axes, gid: str) -> Line2D:
    (found,) = [line for line in axes.lines if line.get_gid() == gid]
    return found


def test_curves_show_every_search_run_and_name_the_best(results: StudyResults) -> None:
    figure = curves_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel().endswith("[s]")
    assert axes.get_ylabel() == "validation accuracy [%]"
    search = results.trials[results.trials["phase"] == "search"]["trial"]
    for trial in search:
        curve = results.curves[results.curves["trial"] == trial]
        line = line_of(axes, trial)
        assert list(line.get_xdata()) == list(curve["train_s"])
        assert list(line.get_ydata()) == list(100 * curve["accuracy"])
    assert line_of(axes, "target").get_ydata()[0] == 95
    colored = {trial for trial in search if line_of(axes, trial).get_linewidth() == 2}
    assert colored == {"0016", "0018", "0014"}
    assert "0016  torch 2x64 adam 0.0109" in words(figure)


@pytest.mark.parametrize(
    ("runs", "front"),
    [
        ([("a", 1, 4.0), ("b", 2, 3.0), ("c", 4, 1.6)], ["c", "b", "a"]),
        ([("a", 1, 4.0), ("b", 2, 2.0), ("c", 2, 2.5)], ["b"]),
        ([("a", 1, 2.0), ("b", 1, 2.0)], ["a", "b"]),
        ([("a", 1, None), ("b", 8, 9.0), ("c", 1, math.inf)], ["b"]),
        ([("a", 1, None)], []),
    ],
    ids=["trade-off", "equal cost but slower", "equal in both", "missed", "nothing reached"],
)
def test_pareto_front(runs: list[tuple[str, int, float | None]], front: list[str]) -> None:
    trials = pd.DataFrame(runs, columns=["trial", "num_workers", "time_to_target_s"])
    found = pareto_front(trials)
    assert list(found["trial"]) == front
    assert found["worker_seconds_to_target"].equals(
        found["num_workers"] * found["time_to_target_s"]
    )


def test_pareto_figure_tells_confirmed_from_search(results: StudyResults) -> None:
    figure = pareto_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("worker-seconds")
    assert "seconds" in axes.get_ylabel()
    for row in reached_target(results).itertuples():
        marker = line_of(axes, row.trial)
        assert marker.get_ydata()[0] == row.time_to_target_s
        assert marker.get_xdata()[0] == pytest.approx(row.num_workers * row.time_to_target_s)
        assert (marker.get_markerfacecolor() != parts.PAPER) == row.is_confirmed
    assert list(line_of(axes, "front").get_ydata()) == list(
        pareto_front(reached_target(results))["time_to_target_s"]
    )
    text = words(figure)
    for part in (
        "search (one run)",
        "confirmed (expected, 3 runs)",
        "0016  torch 2x64 adam 0.0109: 1.35 s, 2.71 worker-seconds",
        "2\nworkers",
    ):
        assert part in text


def test_ledger_figure_adds_up_to_the_ledger(results: StudyResults) -> None:
    figure = ledger_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("seconds")
    text = words(figure)
    for phase, bars in zip((*PHASES, "other"), axes.containers, strict=True):
        seconds = results.trials[f"{phase}_s"].sum()
        assert sum(bar.get_width() for bar in bars) == pytest.approx(seconds)
        assert f"{phase} {seconds:.1f} s" in text


def test_no_text_is_read_as_a_formula(tmp_path: Path) -> None:
    lines = [*curve("0000", [0.5, 0.95]), run_line("0000", 2.0)]
    lines[-1]["spec"]["workload"] = r"$\frac{$ $x_1$ \udce9"
    results = results_folder(tmp_path, lines, study={"space": {"workload": {}}})
    for name in ("curves", "pareto", "slices", "timeline", "ledger"):
        if FIGURES[name].applies(results):
            text = words(FIGURES[name].draw(results))  # a formula would raise here
            assert r"\frac{" in text or name not in ("curves", "pareto")


def test_a_report_of_a_running_study_leaves_its_records_alone(tmp_path: Path, capsys: Any) -> None:
    results_folder(tmp_path, [run_line("0000", 2.0)])
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "eval", "tri')  # the search is writing it
    before = (tmp_path / "records.jsonl").read_bytes()
    assert cli.main(["report", str(tmp_path), "--png"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"results: {tmp_path}"
    assert any(line.endswith(str(tmp_path / "report.html")) for line in lines)
    for name in ("curves.png", "pareto.png", "ledger.png", "report.html"):
        assert (tmp_path / name).is_file()
