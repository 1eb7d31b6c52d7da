"""One study as a part of a page: its answer, pictures, trials, seconds, failures, provenance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.core.record import RunRecord
from raybench.results.answer import in_words
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
from raybench.results.page.state import unfinished
from raybench.results.page.tables import code, frame_table, notes
from raybench.results.page.trials import trials_part
from raybench.results.remarks import effort_words
from raybench.results.scaling.answer import scaling_answer as answer_lines
from raybench.results.scaling.answer import scaling_headline
from raybench.results.scaling.printed import (
    BELOW,
    TITLES,
    other_lines,
    outlier_lines,
    printed_cells,
)
from raybench.results.tables import BATCH_STATISTICS, failures, ledger_totals, predictions
from raybench.results.words import duration, price_of, target_in_words, target_sentence, value_words

ENDED = {
    "target": "it had reached the target",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def single_answer(results: StudyResults) -> Answer:
    """Return what the run has reached."""
    open_ = unfinished(results)
    mind = [open_] if open_ else []
    if not results.runs:
        return Answer("The run has not ended yet, so there is no answer.", (), mind)
    run = next(reversed(results.runs.values()))
    best = value_words(results, run.best_value) + (" at best" if results.is_timed else "")
    facts = [
        ("Configuration", isolated(f"{in_words(results, run.spec)}, seed {run.spec.seed}")),
        ("Reached", text(f"{best}{_test(results, run)}.")),
        ("Target", text(target_sentence(results))),
        ("What it took", _cost(results, run)),
    ]
    if run.stop is not None:
        facts.append(("Ended as", text(f"{ENDED.get(run.stop, run.stop)}.")))
    return Answer(_headline(results, run), facts, mind)


def _headline(results: StudyResults, run: RunRecord) -> str:
    trained = f"{duration(run.ledger['train'])} of training"
    if run.failure is not None:
        return f"The run failed ({run.failure}): {run.message or 'no message'}"
    if run.time_to_target_s is not None and results.is_timed:
        after = f"after {duration(run.time_to_target_s)} of training"
        return f"The run reached {target_in_words(results)} {after}."
    best = value_words(results, run.best_value)
    if results.is_timed:
        missed = f"The run did not reach {target_in_words(results)} within {trained}"
        return f"{missed}: its best was {best}."
    return f"The run reached {best} within {trained}."


def _test(results: StudyResults, run: RunRecord) -> str:
    if run.test_value is None:
        return ""
    return f", {results.metric.shown(run.test_value)} on the test set"


def _cost(results: StudyResults, run: RunRecord) -> Html:
    cost = run.spec.num_workers * run.ledger["train"]
    price = price_of(results, cost, run.trial)
    return text(
        f"{duration(run.ledger['train'])} of training, {cost:.3g} worker-seconds{price}; "
        f"{duration(run.wall_s)} in all."
    )


KINDS = {
    "weak": "weak scaling: each worker keeps its batch",
    "strong": "strong scaling: all together keep the batch",
}
MOST_SERIES = 6
"""Series that have a fact of their own; the table has all."""


def scaling_answer(results: StudyResults) -> Answer:
    """Return what the study says of more workers."""
    open_ = unfinished(results)
    mind = [*([open_] if open_ else []), *map(str, results.study.get("notes", []))]
    effort = ("What the study took", text(effort_words(results)))
    if results.trials.empty:
        return Answer("No run has finished yet, so there is no answer.", [effort], mind)
    cells = results.scaling
    mind += [*outlier_lines(results), *other_lines(cells)]
    ended = cells[cells["n"] > 0]
    if ended.empty:
        number = len(results.trials)
        failed = "the run" if number == 1 else f"all {number} runs"
        return Answer(f"No result: {failed} failed.", [effort], mind)
    gains = ended[ended["speedup"].notna() & (ended["num_workers"] > 1)]
    if gains.empty:
        fastest = _most(ended, "samples_per_s")
        return Answer(
            f"{_where(fastest)} trains {fastest['samples_per_s']:,.0f} samples a second; how it "
            "scales is not told, for that takes one worker and several.",
            [effort],
            mind,
        )
    return Answer(scaling_headline(cells), [*_facts(gains), effort], mind, answer_lines(cells))


def _most(cells: pd.DataFrame, column: str) -> dict[Any, Any]:
    """Return the row with the most of a column."""
    return cells.sort_values(column, ascending=False, kind="stable").to_dict("records")[0]


def _facts(gains: pd.DataFrame) -> list[tuple[str, Html]]:
    """Return the largest gain of each series and kind of scaling, in words."""
    facts = []
    for (series, scaling), rows in gains.groupby(["series", "scaling"], sort=False):
        row = _most(rows, "speedup")
        ends = row["speedup_low"], row["speedup_high"]
        spread = "" if pd.isna(ends[0]) else f" (repeats: {ends[0]:.2f} to {ends[1]:.2f})"
        words = (
            f"{row['speedup']:.2f} times one worker{spread} on {row['num_workers']} workers, batch "
            f"{row['batch_size_per_worker']} each: {row['samples_per_s']:,.0f} samples/s, "
            f"efficiency {100 * row['efficiency']:.0f} %"
        )
        facts.append((f"{series}, {KINDS.get(str(scaling), scaling)}", isolated(words)))
    return facts[:MOST_SERIES]


def _where(row: Any) -> str:
    number = int(row["num_workers"])
    workers = "1 worker" if number == 1 else f"{number} workers"
    return f"{row['series']} on {workers}"


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
