"""The figures of a study in the page: each with its reading and its numbers."""

from raybench.results.figures.kinds import FigureKind, kinds_of
from raybench.results.figures.svg import svg
from raybench.results.load import StudyResults
from raybench.results.page.html import Html, element, folded, isolated, join
from raybench.results.page.tables import frame_table


def pictures_part(results: StudyResults, study: str, level: int) -> Html:
    """Return all figures that the study has what to draw of."""
    return join(
        _picture(results, name, kind, study, level)
        for name, kind in kinds_of(results).items()
        if kind.applies(results)
    )


def _picture(results: StudyResults, name: str, kind: FigureKind, study: str, level: int) -> Html:
    prefix = f"{study}-{name}"
    drawing = svg(kind.draw(results), prefix, kind.title)
    return element(
        "figure",
        element(
            "figcaption",
            element(f"h{level}", isolated(kind.title)),
            element("p", isolated(kind.reading)),
        ),
        plot(drawing, kind.title),
        folded("Its numbers as a table", frame_table(kind.table(results), kind.title)),
        id=prefix,
    )


def plot(drawing: str, title: str) -> Html:
    """Return a drawing (`figures.svg`) in a frame that scrolls where the page is narrower."""
    return element(
        "div",
        Html(drawing),
        class_="plot",
        role="group",
        tabindex=0,
        aria_label=f"{title}, scrolls",
    )
