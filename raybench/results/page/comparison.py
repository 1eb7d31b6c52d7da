"""Several studies side by side: who wins, what each reaches at every budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from raybench.results.figures.svg import svg
from raybench.results.load import StudyResults
from raybench.results.page.answer import Answer
from raybench.results.page.html import Html, element, folded, isolated, join, section
from raybench.results.page.overlay import Named, overlay_figure, overlay_table
from raybench.results.page.pictures import plot
from raybench.results.page.tables import frame_table, notes
from raybench.results.page.winners import (
    conditions,
    differing,
    winner_sentence,
    winners_table,
)

OVERLAY = "Best at every budget"
READING = (
    "What the search of each study had reached after so many seconds of training; higher and "
    "further left is better. Dotted: the target."
)
READING_DOWN = READING.replace("higher", "lower")


@dataclass(frozen=True)
class Comparison:
    """What the page opens with, and what stands before the studies themselves."""

    headline: str
    opening: Html
    body: Html


def study_names(studies: Sequence[StudyResults]) -> list[str]:
    """Return a name for each that no other has: the folder's, else its place, with a number."""
    names = [one.name for one in studies]
    if len(set(names)) < len(names):
        names = [one.place for one in studies]
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def compared(
    studies: Sequence[StudyResults], names: Sequence[str], answers: Sequence[Answer]
) -> Comparison:
    """Return the comparison; `answers` are the studies' own."""
    named = list(zip(names, studies, strict=True))
    items = [
        element(
            "li",
            element("a", isolated(name), href=f"#s{number}"),
            element("br"),
            isolated(answer.headline),
        )
        for number, (name, answer) in enumerate(zip(names, answers, strict=True), 1)
    ]
    opening = join([element("ul", *items, class_="answers"), notes(_mind(named))])
    table = frame_table(winners_table(named), "The winner of each study")
    body = join([section("winners", "Winners", table), *_overlays(named)])
    return Comparison(_headline(named), opening, body)


def _headline(named: Named) -> str:
    studies = [one for _, one in named]
    if any(one.is_scaling for one in studies):
        return f"{len(named)} studies side by side"
    apart = differing(studies)
    if apart:
        return (
            f"{len(named)} studies with different {' and '.join(apart)}: none is named the best of "
            "them"
        )
    return winner_sentence(named)


def _mind(named: Named) -> list[str]:
    """Return what limits the comparison."""
    machines = {conditions(one)["machine"] for _, one in named}
    if len(machines) > 1:
        return ["They ran on different machines, so their seconds differ by that too."]
    return []


def _overlays(named: Named) -> list[Html]:
    """Return a figure for every metric that a search of them is judged by."""
    by_metric: dict[str, list[tuple[str, StudyResults]]] = {}
    for name, one in named:
        if not one.is_scaling and len(one.curves):
            by_metric.setdefault(one.metric.name, []).append((name, one))
    found = []
    for number, group in enumerate(by_metric.values()):
        metric = group[0][1].metric
        title = OVERLAY if len(by_metric) == 1 else f"{OVERLAY}: {metric.words}"
        drawing = svg(overlay_figure(group), f"overlay{number}", title)
        figure = element(
            "figure",
            element(
                "figcaption",
                element("p", isolated(READING if metric.direction == "max" else READING_DOWN)),
            ),
            plot(drawing, title),
            folded("Its numbers as a table", frame_table(overlay_table(group), title)),
        )
        found.append(section(f"overlay-{number}", title, figure))
    return found
