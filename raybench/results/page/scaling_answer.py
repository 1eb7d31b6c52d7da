"""The answer of a scaling study: what more workers bring."""

from typing import Any

import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.page.answer import Answer
from raybench.results.page.html import Html, isolated, text
from raybench.results.page.state import unfinished
from raybench.results.scaling.answer import scaling_answer as answer_lines
from raybench.results.scaling.answer import scaling_headline
from raybench.results.scaling.printed import other_lines, outlier_lines
from raybench.results.spent import effort_words

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
