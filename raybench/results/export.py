"""Derived files of a results folder: tables for spreadsheets, winners as run specs.

Read a table back with `read_csv`. In pandas alone: `pd.read_csv(file, dtype={"trial": str})`;
there a text cell that would be a formula to a spreadsheet (its first character is = + - or @)
has a ' before it, which `read_csv` takes away.

Also a study's figures as PNG files: for `raybench report --png`, and for the documentation.
"""

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from raybench.core.metric import Metric
from raybench.core.text import clean
from raybench.results.how_sure import again
from raybench.results.load import StudyResults
from raybench.results.ranking import nearest
from raybench.results.store import WINNERS, StudyFiles
from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TEXT, TIME, TRIAL_TYPES
from raybench.results.verdict import Verdict, guessing_lines, judge
from raybench.results.words import (
    confirmed_row,
    counted,
    how_run,
    median_and_interval,
    refuted_words,
    searched_mark,
    searched_s,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def spec_comment(results: StudyResults, trial: str, verdict: Verdict | None, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    run = results.runs[trial]
    name = f"{what} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict is not None and verdict.is_confirmed:
        proof = _proof(results, trial)
    elif run.time_to_target_s is None or not results.is_timed:
        value = _number(results.metric, run.best_value)
        proof = (
            f"unconfirmed: {results.metric.words} {value} after {run.ledger['train']:.3f} s in one "
            "search trial"
        )
    else:
        seconds, mark = searched_s(results, trial), searched_mark(results, trial)
        proof = f"unconfirmed: target after {seconds:.3f} s{mark} in one search trial"
        if refuted := refuted_words(results, trial):
            proof = f"refuted: {refuted} (after {seconds:.3f} s{mark})"
    return f"{name}\n{proof}\nrun it again: {again(results, 'train', 'THIS_FILE')}"


def _proof(results: StudyResults, trial: str) -> str:
    found, metric = confirmed_row(results, trial), results.metric
    if not found["new_hits"]:
        return (
            f"not confirmed: target after {found['search_s']:.3f} s"
            f"{searched_mark(results, trial)} in one search trial, reached by 0 of "
            f"{counted(found['new_runs'], 'new seed')} {how_run(found)}"
        )
    tested = ""
    if not math.isnan(found[metric.test_column]):
        tested = f", test {metric.words} {_number(metric, found[metric.test_column])}"
    seeds = f"{counted(found['new_runs'], 'new seed')} {how_run(found)}"
    if results.is_timed:
        mark = ", interpolated" if found["is_interpolated"] else ""
        ends = (
            f"90 % interval: {found['interval_low_s']:.3f} to {found['interval_high_s']:.3f}{mark}"
        )
        hits = f"reached by {found['new_hits']} of {found['new_runs']}"
        if found["new_hits"] < found["new_runs"]:
            return (
                f"confirmed: expect {found['printed_s']:.3f} s to the target, what misses cost "
                f"counted ({seeds}, {ends}), {hits}{tested}"
            )
        return (
            f"confirmed: target after {found['median_s']:.3f} s (median of {seeds}, {ends}), "
            f"{hits}{tested}"
        )
    median, *ends_of = (_number(metric, value) for value in median_and_interval(metric, found))
    within = f", 90 % interval: {ends_of[0]} to {ends_of[1]}" if ends_of else ""
    return f"confirmed: {metric.words} {median} at the budget (median of {seeds}{within}){tested}"


def _number(metric: Metric, value: float | None) -> str:
    """Return a value as it stands in files: shares as fractions."""
    if value is None:
        return "not known"
    return f"{value:.4f}" if metric.is_share else f"{value:.6g}"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a cell that spreadsheets run; the last four are the wide ones."""


def export(results: StudyResults, store: StudyFiles) -> list[Path]:
    """Write trials.csv, curves.csv, best.yaml and cheapest.yaml; return them.

    Where no run reached the target, best.yaml is the one that came nearest, if it learnt anything.
    What an earlier session named goes where nothing takes its place.
    """
    written = [store.folder / name for name in ("trials.csv", "curves.csv")]
    store.write_text("trials.csv", to_csv(results.trials))
    store.write_text("curves.csv", to_csv(results.curves))
    verdict = judge(results)
    if verdict is None:
        for name in WINNERS:
            (store.folder / name).unlink(missing_ok=True)
        if (trial := nearest(results)) is not None and not guessing_lines(results):
            comment = spec_comment(results, trial, None, "nearest to the target")
            store.write_yaml("best.yaml", results.specs[trial].document(), comment=comment)
            written.append(store.folder / "best.yaml")
        return written
    best = results.metric.superlative
    names = ("fastest", "cheapest") if results.is_timed else (best, best)
    for name, trial, what in (
        (WINNERS[0], verdict.fastest, names[0]),
        (WINNERS[1], verdict.cheapest, names[1]),
    ):
        comment = spec_comment(results, trial, verdict, what)
        store.write_yaml(name, results.specs[trial].document(), comment=comment)
        written.append(store.folder / name)
    return written


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV in which no text is a formula to a spreadsheet."""
    safe = table.copy()
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name]):
            safe[name] = pd.Series(
                [_quoted(value) for value in table[name]], index=safe.index, dtype=object
            )
    if all(_is_plain(safe[name]) for name in safe):
        file = io.BytesIO()  # ten times as fast: the curves of a large study are 200,000 rows
        csv.write_csv(pa.Table.from_pandas(safe, preserve_index=False), file)
        return file.getvalue().decode()
    return str(safe.to_csv(index=False))


def read_csv(path: Path) -> pd.DataFrame:
    """Read trials.csv or curves.csv back: the columns, types and values of `raybench.load`.

    Columns of metrics other than accuracy hold numbers, and are told by that.
    """
    types = TRIAL_TYPES | EXTRA_TYPES | CURVE_TYPES
    head = pd.read_csv(path, nrows=0).columns
    known = {name: types[name] for name in head if name in types and types[name] != TIME}
    times = [name for name in head if types.get(name) == TIME]
    table = pd.read_csv(path, dtype=known, keep_default_na=False, na_values=[""])
    for name in times:
        table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
    table = table.astype(dict.fromkeys(times, TIME))
    for name in head:
        if types.get(name, TEXT) == TEXT and not pd.api.types.is_numeric_dtype(table[name]):
            column = [_unquoted(value) for value in table[name]]
            table[name] = pd.Series(column, dtype=object)
    return table


def _is_plain(column: "pd.Series[Any]") -> bool:
    """Whether a column holds numbers that are no objects, or texts alone."""
    if column.dtype == "object":
        return all(isinstance(value, str | None) for value in column)
    return column.dtype in ("float64", "int64")


def _quoted(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip(" '").startswith(FORMULA):
        return f"'{value}"
    return value


def _unquoted(value: Any) -> Any:
    if not isinstance(value, str):
        return None  # missing
    if value.startswith("'") and value.lstrip(" '").startswith(FORMULA):
        return value[1:]
    return value


DPI = 150
"""Of a picture: as sharp as the page's on a screen of today."""


def write_plots(results: StudyResults, folder: Path) -> list[Path]:
    """Draw every figure that a study has something for into its folder; return the files."""
    # Late: matplotlib takes a second.
    from raybench.results.figures.kinds import kinds_of

    files, written = StudyFiles(folder), []
    for name, kind in kinds_of(results).items():
        if kind.applies(results):
            file = f"{results.metric.name if name == 'values' else name}.png"
            files.write_bytes(file, png(kind.draw(results)))
            written.append(folder / file)
    return written


def png(figure: "Figure") -> bytes:
    """Return a figure as a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()
