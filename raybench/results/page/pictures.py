"""The figures of a study in the page: each with its reading and its numbers."""

import re

from raybench.results.figures.kinds import FIGURES, FigureKind
from raybench.results.figures.svg import svg
from raybench.results.load import StudyResults
from raybench.results.page.html import Html, element, folded, isolated, join
from raybench.results.page.tables import frame_table

STYLE = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
"""A figure's own style, which the page's policy refuses; page.css has what it says."""
FILES = {"curves": "curves.csv"}


def pictures_part(results: StudyResults, study: str, level: int) -> Html:
    """Return all figures that the study has what to draw of."""
    return join(
        _picture(results, name, kind, study, level)
        for name, kind in FIGURES.items()
        if kind.applies(results)
    )


def _picture(results: StudyResults, name: str, kind: FigureKind, study: str, level: int) -> Html:
    prefix = f"{study}-{name}"
    table = frame_table(kind.table(results), kind.title, rest=FILES.get(name, "trials.csv"))
    return element(
        "figure",
        element(
            "figcaption",
            element(f"h{level}", isolated(kind.title), id=f"{prefix}-title"),
            element("p", isolated(kind.reading)),
        ),
        inline(svg(kind.draw(results), prefix), kind.title),
        folded("Its numbers as a table", table),
        id=prefix,
    )


def inline(drawn: str, title: str) -> Html:
    """Return a drawing for the page: named for who cannot see it, scrolling where it is wide."""
    drawing = Html(STYLE.sub("", drawn))
    return element("div", drawing, class_="plot", role="group", tabindex=0, aria_label=title)
