"""Every figure of every kind of study can be drawn, read and told in numbers."""

from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from made_studies import ACCURACY, RMSE, made_study
from matplotlib.figure import Figure
from matplotlib.text import Text

import raybench
from raybench.report.figures import parts
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


def texts(figure: Figure) -> list[Text]:
    """The texts that can be seen; of an axis, those of the ticks within its ends."""
    figure.draw_without_rendering()
    found = [*figure.texts]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in legends:
        found += [*legend.get_texts(), legend.get_title()] if legend is not None else []
    for axes in figure.axes:
        found += [*axes.texts, axes.title, axes._left_title, axes._right_title]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = [one for one in axis.get_major_ticks() if low <= one.get_loc() <= high]
            found += [axis.label, *(one.label1 for one in ticks)]
    return [one for one in found if one.get_visible() and one.get_text().strip()]


@pytest.mark.parametrize("study", studies("race", "recorded"))
def test_figures_are_drawn_inside_their_frames_and_no_text_hides_another(study: str) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            look_at(name, kind.draw(results))


def look_at(name: str, figure: Figure) -> None:
    """Fail where a text is cut off, hidden, or too small for a telephone."""
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts(figure)]
    assert boxes, name
    for text, box in boxes:
        assert box.x0 >= -1, (name, text)
        assert box.y0 >= -1, (name, text)
        assert box.x1 <= figure.bbox.x1 + 1, (name, text)
        assert box.y1 <= figure.bbox.y1 + 1, (name, text)
    for (text, box), (other, its) in combinations(boxes, 2):
        wide = min(box.x1, its.x1) - max(box.x0, its.x0)
        high = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert wide <= 1 or high <= 1, (name, text, other)
    assert min(one.get_fontsize() for one in texts(figure)) >= parts.SMALL, name


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
    for name in ("curves", "batches", "slices", "timeline"):
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
