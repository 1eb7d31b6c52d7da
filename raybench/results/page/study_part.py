"""One study as a part of a page: its answer, pictures, trials, seconds, failures, provenance."""

from collections.abc import Sequence
from dataclasses import dataclass

from raybench.results.failures import failures
from raybench.results.load import StudyResults
from raybench.results.page.answer import Answer, search_answer
from raybench.results.page.extra import Extra
from raybench.results.page.html import (
    Html,
    definitions,
    element,
    folded,
    isolated,
    join,
    paragraphs,
    section,
    text,
)
from raybench.results.page.pictures import pictures_part
from raybench.results.page.provenance import provenance_part
from raybench.results.page.scaling_answer import scaling_answer
from raybench.results.page.single_answer import single_answer
from raybench.results.page.tables import code, frame_table, notes
from raybench.results.page.trials import trials_part
from raybench.results.scaling.printed import BELOW, TITLES, printed_cells
from raybench.results.tables import BATCH_STATISTICS, ledger_totals, predictions

SINGLE = "run"
"""Key of `study.yaml` that says that a folder holds one run."""
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


def answer_of(results: StudyResults, study: str) -> Answer:
    """Return the answer of a study of any kind."""
    if results.is_scaling:
        return scaling_answer(results)
    if results.study["study"].get(SINGLE):
        return single_answer(results)
    return search_answer(results, study)


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
