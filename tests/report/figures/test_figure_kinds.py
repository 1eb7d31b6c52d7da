"""Every figure of every kind of study can be drawn, read and told in numbers."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from looks import look_at
from made_studies import ACCURACY, RMSE, made_study

import raybench
from raybench.report.figures.kinds import FIGURES
from raybench.report.figures.svg import svg
from raybench.report.study import StudyResults
from raybench.spec.objective import Objective

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOST_BYTES = 150_000
MAKERS: dict[str, Any] = {
    "digits": lambda: raybench.load(FIXTURES / "digits_study"),
    "recorded": lambda: raybench.load(FIXTURES / "digits_race"),
    "race": lambda: made_study(40, pause_s=4000.0),
    "rmse": lambda: made_study(40, objective=Objective(**RMSE)),
    "many": lambda: made_study(1500, num_points=12),
    "missed": lambda: made_study(8, objective=Objective(**ACCURACY | {"target": 0.9999})),
    "failed": lambda: made_study(5, failed=1.0, candidates=0),
    "one": lambda: made_study(1, candidates=0, failed=0.0),
    "empty": lambda: made_study(0),
}
MADE: dict[str, StudyResults] = {}


def study_of(name: str) -> StudyResults:
    if name not in MADE:
        MADE[name] = MAKERS[name]()
    return MADE[name]


def studies(*fast: str) -> list[Any]:
    """All studies, of which a usual run of the tests takes but `fast`."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.all) for name in MAKERS]


@pytest.mark.parametrize("study", studies("race"))
def test_figures_are_drawn_inside_their_frames_and_no_text_hides_another(study: str) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            look_at(name, kind.draw(results))


@pytest.mark.parametrize("study", studies("race", "failed"))
def test_every_figure_has_its_numbers_in_words(study: str) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            table = kind.table(results)
            assert len(table), name
            assert len(table) <= 60, name
            assert not [column for column in table if "_" in str(column)]
            assert kind.title
            assert kind.reading.endswith(".")


def test_what_has_nothing_to_draw_does_not_apply() -> None:
    assert not [name for name, kind in FIGURES.items() if kind.applies(study_of("empty"))]
    drawn = [name for name, kind in FIGURES.items() if kind.applies(study_of("failed"))]
    assert drawn == ["curves", "timeline", "ledger"]
    assert [name for name, kind in FIGURES.items() if kind.applies(study_of("race"))] == [*FIGURES]


@pytest.mark.all
def test_of_many_runs_some_are_drawn_and_the_figure_says_so() -> None:
    results = study_of("many")
    for name in ("curves", "slices", "timeline"):
        text = svg(FIGURES[name].draw(results), name)
        assert len(text) < MOST_BYTES, name
        said = "".join(ElementTree.fromstring(text).itertext())
        assert "drawn" in said, name


@pytest.mark.all
def test_of_five_thousand_trials_figures_stay_small() -> None:
    results = made_study(5000, num_points=60, pause_s=7200.0)
    assert len(results.curves) > 150_000
    for value in (results.configurations, results.importance):
        assert isinstance(value, pd.DataFrame)
    for name, kind in FIGURES.items():
        assert len(svg(kind.draw(results), name)) < MOST_BYTES, name
