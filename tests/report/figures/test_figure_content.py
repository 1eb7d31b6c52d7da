"""What the figures show: the numbers of the study, with what is not known left out or marked."""

from typing import Any

import numpy as np
import pytest
from made_studies import RMSE, SPACE, made_study
from matplotlib.figure import Figure

from raybench.report.figures import outcomes
from raybench.report.figures.curves import curves_figure, race_figure, race_rows
from raybench.report.figures.timeline import best_so_far, phases, spans
from raybench.report.study import StudyResults
from raybench.results.verdict import judge
from raybench.spec.objective import Objective

PAUSE_S = 4000.0


@pytest.fixture(scope="module")
def study() -> StudyResults:
    return made_study(40, pause_s=PAUSE_S)


@pytest.fixture(scope="module")
def rmse() -> StudyResults:
    return made_study(20, objective=Objective(**RMSE))


def of(figure: Figure, gid: str) -> list[Any]:
    return [line for axes in figure.axes for line in axes.lines if line.get_gid() == gid]


def test_the_envelope_is_what_any_run_had_reached_by_then(study, rmse) -> None:
    for results, best, factor in ((study, np.max, 100), (rmse, np.min, 1)):
        (line,) = of(curves_figure(results), "envelope")
        search = results.trials["trial"][results.trials["phase"] == "search"]
        curves = results.curves[results.curves["trial"].isin(search)]
        for seconds, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
            reached = curves[curves["train_s"] <= seconds + 1e-12][results.metric.name]
            assert value == pytest.approx(factor * best(reached))


def test_no_two_runs_of_a_lane_ran_at_once_and_an_interruption_is_left_out(study) -> None:
    found = spans(study)
    assert set(found.runs["trial"]) == set(study.trials["trial"])
    for lane, runs in found.runs.groupby("lane"):
        assert (runs["begin"].to_numpy()[1:] >= runs["end"].to_numpy()[:-1] - 1.0).all()
        assert set(runs["group"]) == {found.lanes[lane]}
    ((at, seconds),) = found.pauses.items()
    assert 0 < at < found.total_s < PAUSE_S
    assert seconds == pytest.approx(PAUSE_S, rel=0.05)
    assert list(phases(found.runs)["role"]) == ["trial", "race", "confirm"]


def test_the_best_so_far_only_gets_better(study, rmse) -> None:
    table = best_so_far(study, spans(study).runs)
    hits = study.trials[(study.trials["role"] == "trial") & study.trials["crossed_s"].notna()]
    assert set(table["trial"]) == set(hits["trial"])
    assert table["best"].is_monotonic_decreasing
    assert table["best"].iloc[-1] == hits["crossed_s"].min()
    table = best_so_far(rmse, spans(rmse).runs)
    assert table["best"].is_monotonic_decreasing


def test_a_race_shows_every_run_and_who_is_tied(study) -> None:
    figure, verdict = race_figure(study), judge(study)
    again = study.trials[study.trials["role"].isin(["race", "confirm"])]
    rows = race_rows(study)
    assert set(again["trial"]) <= set(rows["run"])
    drawn = {line.get_gid() for line in figure.axes[0].lines} - {None}
    assert drawn == set(rows["run"])
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said[0].startswith(verdict.fastest)
    tied = {text[:4] for text in said if text.endswith("· tied")}
    assert tied == set(verdict.ties) - {verdict.fastest}


def test_the_plateau_holds_the_best_what_is_near_it_and_the_ties(study) -> None:
    found, near = outcomes.outcome(study), outcomes.plateau(study, outcomes.outcome(study))
    values = found.known.set_index("trial")["outcome"]
    best = found.known.iloc[0]["trial"]
    assert near == {*values.index[values <= outcomes.NEAR * values[best]], *judge(study).ties}
    table = outcomes.plateaus(study).set_index("key")
    assert set(table.index) == set(SPACE)
    rates = found.known[found.known["trial"].isin(near)]["learning_rate"]
    assert table.loc["learning_rate", "from"] == rates.min()
    assert table.loc["learning_rate", "to"] == rates.max()
    assert table.loc["learning_rate", "best"] == found.known.iloc[0]["learning_rate"]


def test_an_axis_is_a_log_where_values_span_much(study) -> None:
    rows = study.configurations.set_index("trial")
    panels = {axes.get_title("left"): axes for axes in outcomes.slices_figure(study).axes}
    assert panels["learning_rate"].get_xscale() == "log"
    ticks = [label.get_text() for label in panels["num_workers"].get_xticklabels()]
    assert ticks == ["1", "2", "4"]
    for key in ("learning_rate", "num_workers"):
        for line in panels[key].lines:
            if line.get_gid():
                value, place = rows.loc[line.get_gid(), key], line.get_xdata()[0]
                stripe = key == "num_workers" and ticks.index(str(value))
                assert round(place) == stripe if stripe is not False else place == value
