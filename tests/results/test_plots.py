"""The figures show the numbers of the stored study, and survive studies that found nothing."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import raybench
from raybench.core.clock import PHASES
from raybench.results import plots
from raybench.results.load import StudyResults
from raybench.results.pareto import configurations, pareto_front

STUDY = Path(__file__).parents[1] / "fixtures" / "digits_study"
FIGURES = (plots.curves_figure, plots.repeats_figure, plots.pareto_figure, plots.ledger_figure)


@pytest.fixture(scope="module")
def results() -> StudyResults:
    return raybench.load(STUDY)


@pytest.fixture
def part_of_study(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], bool]], StudyResults]:
    """A study of the runs for which `keep(run record)` holds."""

    def build(keep: Callable[[dict[str, Any]], bool]) -> StudyResults:
        lines = [json.loads(line) for line in (STUDY / "records.jsonl").read_text().splitlines()]
        kept = {line["trial"] for line in lines if line["kind"] == "run" and keep(line)}
        text = "".join(json.dumps(line) + "\n" for line in lines if line["trial"] in kept)
        (tmp_path / "records.jsonl").write_text(text)
        (tmp_path / "study.yaml").write_text((STUDY / "study.yaml").read_text())
        return raybench.load(tmp_path)

    return build


def line_of(axes: Axes, gid: str) -> Line2D:
    (found,) = [line for line in axes.lines if line.get_gid() == gid]
    return found


def words(figure: Figure) -> str:
    """All text of a figure, its legends included."""
    figure.draw_without_rendering()
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    texts = [text for legend in legends if legend for text in legend.get_texts()]
    texts += [text for axes in figure.axes for text in (axes.title, *axes.texts)]
    return "\n".join(text.get_text() for text in texts)


def test_curves_show_every_search_run_and_name_the_best(results: StudyResults) -> None:
    figure = plots.curves_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "seconds of training"
    assert axes.get_ylabel() == "validation accuracy [%]"
    search = results.trials[results.trials["phase"] == "search"]["trial"]
    for trial in search:
        curve = results.curves[results.curves["trial"] == trial]
        line = line_of(axes, trial)
        assert list(line.get_xdata()) == list(curve["train_s"])
        assert list(line.get_ydata()) == list(100 * curve["accuracy"])
    assert line_of(axes, "target").get_ydata()[0] == 95
    coloured = {trial for trial in search if line_of(axes, trial).get_linewidth() == 2}
    assert coloured == {"0016", "0018", "0014"}
    assert "0016  torch 2x64 adam 0.0109\nsearch 1.67 s, confirmed 1.25 s (median of 3)" in words(
        figure
    )


def test_repeats_show_the_search_run_and_its_confirm_runs(results: StudyResults) -> None:
    figure = plots.repeats_figure(results)
    assert [axes.get_title()[:4] for axes in figure.axes] == ["0016", "0018", "0014"]
    for axes in figure.axes:
        trial = axes.get_title()[:4]
        names = {line.get_gid() for line in axes.lines} & set(results.trials["trial"])
        assert names == {trial, *(f"{trial}-confirm{repeat}" for repeat in range(3))}


def test_configurations_stand_with_the_median_of_their_confirm_runs(results: StudyResults) -> None:
    table = configurations(results).set_index("trial")
    reached = results.trials[results.trials["time_to_target_s"].notna()]
    search = reached[reached["phase"] == "search"].set_index("trial")["time_to_target_s"]
    confirm = reached[reached["phase"] == "confirm"]
    medians = confirm.groupby(confirm["trial"].str[:4])["time_to_target_s"].median()
    assert set(table.index) == set(search.index)
    assert table["time_to_target_s"].to_dict() == pytest.approx({**search, **medians})
    assert set(table.index[table["is_confirmed"]]) == set(medians.index)


def brute_force(trials: pd.DataFrame) -> set[str]:
    """Trials that no other beats in both."""
    points = [
        (row.trial, row.time_to_target_s, row.num_workers * row.time_to_target_s)
        for row in trials.itertuples()
        if row.time_to_target_s is not None and math.isfinite(row.time_to_target_s)
    ]
    return {
        name
        for name, seconds, cost in points
        if not any(s <= seconds and c <= cost and (s, c) != (seconds, cost) for _, s, c in points)
    }


def test_pareto_front_is_what_brute_force_finds(results: StudyResults) -> None:
    for trials in (results.trials, configurations(results)):
        assert set(pareto_front(trials)["trial"]) == brute_force(trials)


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
    figure = plots.pareto_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("worker-seconds to the target")
    assert axes.get_ylabel().startswith("seconds of training to the target")
    for row in configurations(results).itertuples():
        marker = line_of(axes, row.trial)
        assert marker.get_ydata()[0] == row.time_to_target_s
        assert marker.get_xdata()[0] == pytest.approx(row.num_workers * row.time_to_target_s)
        assert (marker.get_markerfacecolor() != "white") == row.is_confirmed
    assert list(line_of(axes, "front").get_ydata()) == list(
        pareto_front(configurations(results))["time_to_target_s"]
    )
    assert "search (one run)" in words(figure)
    assert "confirmed (median of 3)" in words(figure)
    (top,) = axes.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["1\n0 of 5", "2\n8 of 19"]


def test_ledger_figure_adds_up_to_the_ledger(results: StudyResults) -> None:
    figure = plots.ledger_figure(results)
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("seconds summed over runs")
    for phase, bars in zip(PHASES, axes.containers, strict=True):
        seconds = results.trials[f"{phase}_s"].sum()
        assert sum(bar.get_width() for bar in bars) == pytest.approx(seconds)
        assert f"{phase} {seconds:.1f} s" in words(figure)


def test_without_confirm_phase_all_points_are_single_runs(part_of_study: Any) -> None:
    results = part_of_study(lambda run: run["phase"] == "search")
    assert not configurations(results)["is_confirmed"].any()
    assert "confirmed" not in "".join(words(draw(results)) for draw in FIGURES)
    assert "search 1.44 s (one run)" in words(plots.curves_figure(results))


def test_without_a_reached_target_accuracy_stands_against_cost(part_of_study: Any) -> None:
    results = part_of_study(lambda run: run["time_to_target_s"] is None)
    figure = plots.pareto_figure(results)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "best validation accuracy [%]"
    assert "no run reached the target" in words(figure)
    trials = results.trials
    front = line_of(axes, "front")
    best = trials.loc[trials["best_accuracy"].idxmax()]
    assert front.get_ydata()[-1] == 100 * best["best_accuracy"]
    assert front.get_xdata()[0] == trials["worker_seconds"].min()
    assert "search best 96.4% (one run)" in words(plots.curves_figure(results))


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("trials", [[], ["0016"], ["0001"], ["0005", "0007"]], ids=str)
def test_small_studies_are_drawn(draw: Any, trials: list[str], part_of_study: Any) -> None:
    figure = draw(part_of_study(lambda run: run["trial"] in trials))
    figure.draw_without_rendering()
    assert ("no run has finished" in words(figure)) == (not trials)


def test_run_that_failed_before_its_first_evaluation_is_drawn(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (STUDY / "records.jsonl").read_text().splitlines()]
    run = next(line for line in lines if line["kind"] == "run")
    run |= {"state": "failed", "failure": "oom", "best_accuracy": None, "samples": 0}
    run["ledger"] = dict.fromkeys(run["ledger"], 0.0)
    (tmp_path / "records.jsonl").write_text(json.dumps(run) + "\n")
    (tmp_path / "study.yaml").write_text((STUDY / "study.yaml").read_text())
    for draw in FIGURES:
        draw(raybench.load(tmp_path)).draw_without_rendering()


def test_drawing_leaves_pyplot_alone() -> None:
    code = f"""
import sys, raybench
from raybench.results import plots
plots.curves_figure(raybench.load({str(STUDY)!r})).draw_without_rendering()
print(sorted({{"matplotlib.pyplot", "ray", "torch", "tensorflow"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
