"""One study as a part of a page: its answer, pictures, trials, seconds, failures, provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from raybench.report.figures.kinds import FigureKind, kinds_of
from raybench.report.figures.svg import svg
from raybench.report.page.answer import Answer, answer_of
from raybench.report.page.html import (
    Html,
    code,
    definitions,
    element,
    folded,
    frame_table,
    isolated,
    join,
    notes,
    paragraphs,
    section,
    text,
)
from raybench.report.page.trials import trials_part
from raybench.report.scaling_printed import BELOW, TITLES, printed_cells
from raybench.report.tables import BATCH_STATISTICS, failures, ledger_totals, predictions
from raybench.results.load import StudyResults
from raybench.results.place import shown


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


MOST = 20
"""Hosts, devices that are named."""


def provenance_part(results: StudyResults) -> Html:
    """Return what must be known to read the results later, or to repeat them."""
    content = results.study
    study = content["study"]
    pairs: list[tuple[str, Html]] = []
    sessions = [content, *_mappings(content.get("continued"))]
    for number, session in enumerate(sessions):
        which = "" if number == 0 else f", session {number + 1}"
        if session.get("command"):
            pairs.append((f"Command{which}", code(str(session["command"]))))
        for key in ("versions", "machine", "cluster"):
            if session.get(key):
                pairs.append((f"{key.capitalize()}{which}", isolated(words(session[key]))))
    for key in ("workload", "dataset", "search", "confirm", "fixed"):
        if study.get(key):
            pairs.append((key.capitalize(), isolated(words(study[key]))))
    runs = results.runs.values()
    for name, found in (
        ("Hosts of runs", {host for run in runs for host in run.hosts}),
        ("Devices of runs", {str(device) for run in runs for device in run.devices}),
        ("GPUs of runs", {one for run in runs for one in run.accelerators}),
    ):
        if found:
            pairs.append((name, isolated(_listed(sorted(found)))))
    pairs.append(("Results", isolated(shown(results.place, results.folder))))
    pairs.append(("Page written", text(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")))
    return join([definitions(pairs, class_="provenance")])


def words(value: Any) -> str:
    """Return plain data in words: `ray 2.60.0, torch 2.15.0`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(inner)}" for key, inner in value.items() if _tells(inner))
    if isinstance(value, list):
        return "; ".join(map(words, value))
    return str(value)


def _tells(value: Any) -> bool:
    """Whether a value says anything: none and empty ones do not."""
    return value is not None and value not in ({}, [])


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _listed(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Extra:
    """A part of its own: predictions and plans of a scaling study."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[tuple[str, pd.DataFrame]] = field(default_factory=tuple)
    """Captions and tables; columns in words, with their units."""


PREDICTED = (
    "Predicted (~), not run: from a trial's learning curve and the measured step times. Never "
    "mixed with what was measured."
)


@dataclass(frozen=True)
class StudyPart:
    """A study's parts of the page."""

    answer: Answer
    sections: Sequence[tuple[str, str, Html]]
    """Ids, titles and contents, in order."""
    data: Html
    """What the script reads; the last thing of the page."""


def study_part(
    results: StudyResults, study: str, extras: Sequence[Extra] = (), *, level: int = 2
) -> StudyPart:
    """Return the parts of a study; `study` begins their ids, `level` is that of their headings."""
    answer = answer_of(results, study)
    if results.trials.empty:
        return StudyPart(
            answer, _told(study, [("provenance", "Provenance", provenance_part(results))]), Html("")
        )
    trials, data = trials_part(results, study)
    parts = [
        ("figures", "Pictures", pictures_part(results, study, level + 1)),
        *_scaling_parts(results),
        *(_extra_part(number, one) for number, one in enumerate(extras)),
        ("trials", "Trials" if not results.is_scaling else "Runs", trials),
        ("predicted", "Not run: predicted", _predicted(results)),
        ("seconds", "Where the seconds went", _seconds(results)),
        ("failures", "Failures by cause", _failures(results)),
        ("provenance", "Provenance", provenance_part(results)),
    ]
    return StudyPart(answer, _told(study, parts), data)


def answer_part(answer: Answer) -> Html:
    """Return what follows the headline."""
    parts = [definitions(answer.facts, class_="facts")]
    if answer.mind:
        parts.append(
            element("div", element("p", text("To bear in mind")), notes(answer.mind), class_="mind")
        )
    if answer.steps:
        steps = [(step.what, code(step.do)) for step in answer.steps]
        parts.append(
            element("div", element("p", text("What to do next")), definitions(steps), class_="next")
        )
    if answer.details:
        parts.append(folded("The verdict in full", paragraphs(answer.details)))
    return join(parts)


def sections_html(part: StudyPart, level: int = 2) -> Html:
    """Return the parts of a study after its answer."""
    return join(section(name, title, body, level=level) for name, title, body in part.sections)


def _told(study: str, parts: Sequence[tuple[str, str, Html]]) -> list[tuple[str, str, Html]]:
    """Return the parts that have something to show; names are ids in this page."""
    return [(f"{study}-{name}", title, body) for name, title, body in parts if body]


def _scaling_parts(results: StudyResults) -> list[tuple[str, str, Html]]:
    """Return the tables of a scaling study's cells."""
    if not results.is_scaling:
        return []
    cells, found = results.scaling, []
    for scaling, title in TITLES.items():
        rows = cells[cells["scaling"] == scaling]
        if len(rows):
            cells_ = printed_cells(rows, metric=results.metric)
            table = frame_table(cells_, BELOW, rest="scaling.csv")
            found.append((f"cells-{scaling}", title, table))
    return found


def _extra_part(number: int, extra: Extra) -> tuple[str, str, Html]:
    tables = [frame_table(frame, caption) for caption, frame in extra.tables]
    return f"extra-{number}", extra.title, join([paragraphs(extra.lines), *tables])


def _predicted(results: StudyResults) -> Html:
    if results.is_scaling or results.predictions.empty:
        return Html("")
    table = predictions(results)
    if table.empty:
        return Html("")
    rough = [BATCH_STATISTICS] if results.trials["batch_statistics"].eq(True).any() else []
    return join(
        [
            frame_table(table.rename(columns={"trial": "curve of trial"}), PREDICTED),
            paragraphs(rough),
        ]
    )


def _seconds(results: StudyResults) -> Html:
    totals = ledger_totals(results.trials)
    totals["share"] = (100 * totals["share"]).round(1)
    return frame_table(
        totals.rename(columns={"seconds": "seconds [s]", "share": "share [%]"}),
        "Seconds of all runs together; only train counts for the target",
    )


def _failures(results: StudyResults) -> Html:
    broken = failures(results.trials)
    if broken.empty:
        return element("p", isolated("No run failed."))
    return frame_table(broken, "Failed runs by cause, the most frequent first", rest="trials.csv")
