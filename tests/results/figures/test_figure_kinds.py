"""Every figure of every kind of study can be drawn, read and told in numbers."""

import time
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from made_studies import ACCURACY, RMSE, made_study
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

import raybench
from raybench.core.objective import Objective
from raybench.results.figures.kinds import FIGURES
from raybench.results.figures.svg import svg
from raybench.results.load import StudyResults

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits_study"
MOST_BYTES = 150_000
MAKERS: dict[str, Any] = {
    "digits": lambda: raybench.load(DIGITS),
    "race": lambda: made_study(60, pause_s=4000.0),
    "rmse": lambda: made_study(40, objective=Objective(**RMSE)),
    "many": lambda: made_study(1500, num_points=12),
    "missed": lambda: made_study(8, objective=Objective(**ACCURACY | {"target": 0.9999})),
    "failed": lambda: made_study(5, failed=1.0, contenders=0),
    "one": lambda: made_study(1, contenders=0, failed=0.0),
    "empty": lambda: made_study(0),
}
MADE: dict[str, StudyResults] = {}


def study_of(name: str) -> StudyResults:
    if name not in MADE:
        MADE[name] = MAKERS[name]()
    return MADE[name]


def applying() -> list[tuple[str, str]]:
    return [(study, name) for study in MAKERS for name in FIGURES]


def texts(figure: Figure) -> list[Text]:
    """The visible texts that stand inside of the figure."""
    figure.draw_without_rendering()
    found = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and _is_shown(figure, text):
            found.append(text)
    return found


def _is_shown(figure: Figure, text: Text) -> bool:
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for label in axis.get_ticklabels("both"):
                if label is text:
                    return _is_tick(axes, axis, text)
    return all(one.get_visible() and getattr(one, "axison", True) for one in [text])


def _is_tick(axes: Axes, axis: Any, text: Text) -> bool:
    if not axes.axison or not axes.get_visible():
        return False
    low, high = sorted(axis.get_view_interval())
    place = text.get_position()[0 if axis is axes.xaxis else 1]
    return bool(low <= place <= high)


@pytest.mark.parametrize(("study", "name"), applying())
def test_a_figure_is_drawn_inside_its_frame_and_no_text_hides_another(
    study: str, name: str
) -> None:
    results, kind = study_of(study), FIGURES[name]
    if not kind.applies(results):
        return
    figure = kind.draw(results)
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts(figure)]
    assert boxes
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    for (text, box), (other, its) in combinations(boxes, 2):
        wide = min(box.x1, its.x1) - max(box.x0, its.x0)
        high = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert wide <= 1 or high <= 1, (text, other)
    sizes = [one.get_fontsize() for one in figure.findobj(Text) if one.get_text()]
    assert min(sizes) >= 9, "read on a telephone"
    ElementTree.fromstring(svg(figure, name, kind.title))


@pytest.mark.parametrize("study", MAKERS)
def test_every_figure_has_its_numbers_in_words(study: str) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            table = kind.table(results)
            assert len(table), name
            assert len(table) <= 60, name
            assert not [column for column in table if "_" in str(column)] or name == "parallel"
            assert kind.title
            assert kind.reading.endswith(".")


def test_what_has_nothing_to_draw_does_not_apply() -> None:
    assert not [name for name, kind in FIGURES.items() if kind.applies(study_of("empty"))]
    drawn = [name for name, kind in FIGURES.items() if kind.applies(study_of("failed"))]
    assert drawn == ["curves", "pareto", "timeline", "ledger"]
    assert [name for name, kind in FIGURES.items() if kind.applies(study_of("race"))] == [*FIGURES]


def test_of_many_runs_some_are_drawn_and_the_figure_says_so() -> None:
    results = study_of("many")
    for name in ("curves", "batches", "slices", "parallel", "timeline"):
        text = svg(FIGURES[name].draw(results), name)
        assert len(text) < MOST_BYTES, name
        said = "".join(ElementTree.fromstring(text).itertext())
        assert "drawn" in said, name


@pytest.mark.all
def test_five_thousand_trials_are_drawn_in_time() -> None:
    results = made_study(5000, num_points=60, pause_s=7200.0)
    assert len(results.curves) > 150_000
    for value in (results.configurations, results.importance):
        assert isinstance(value, pd.DataFrame)
    for name, kind in FIGURES.items():
        begin = time.process_time()
        figure = kind.draw(results)
        seconds = time.process_time() - begin
        text = svg(figure, name)
        assert seconds < 0.6, name
        assert len(text) < MOST_BYTES, name
