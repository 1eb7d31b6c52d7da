"""Files derived from a study: trials.csv, curves.csv, the winners as run specs, and PNG figures.

The tables can be read with `pd.read_csv(file, dtype={"trial": str})`. Cells that a spreadsheet
would execute as a formula (those that begin with = + - or @) have a leading apostrophe.
"""

import io
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.report.answer import guessing_lines, spec_comment
from raybench.results.ranking import nearest
from raybench.results.store import WINNERS, StudyFiles
from raybench.results.study import Study
from raybench.results.verdict import verdict_of
from raybench.spec.text import file_name
from raybench.stats.record import Phase

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a formula; the last four are full-width forms."""


def export(results: Study, store: StudyFiles) -> list[Path]:
    """Write trials.csv, curves.csv, best.yaml and cheapest.yaml; return the files.

    If there is no winner, files of earlier winners are deleted, and best.yaml contains the trial
    that came nearest to the target. In an imported study, and if the best configuration is no
    better than guessing, best.yaml is not written at all.
    """
    written = [store.folder / name for name in ("trials.csv", "curves.csv")]
    trials = results.trials
    constant = [] if len(set(trials["code"].dropna())) > 1 else ["code"]
    store.write_text("trials.csv", to_csv(trials.drop(columns=constant)))
    store.write_text("curves.csv", to_csv(results.curves))
    verdict = verdict_of(results)
    if verdict is None:
        for name in WINNERS:
            (store.folder / name).unlink(missing_ok=True)
        trial = nearest(results) or nearest(results, Phase.REFERENCE)
        can_train = not results.is_imported and not guessing_lines(results)
        if trial is not None and can_train:
            comment = spec_comment(results, trial, None, "nearest to the target")
            store.write_yaml("best.yaml", results.specs[trial].complete(), comment=comment)
            written.append(store.folder / "best.yaml")
        return written
    titles = ("fastest", "cheapest") if results.is_timed else [results.metric.superlative] * 2
    for name, trial, title in zip(
        WINNERS, (verdict.fastest, verdict.cheapest), titles, strict=True
    ):
        comment = spec_comment(results, trial, verdict, title)
        store.write_yaml(name, results.specs[trial].complete(), comment=comment)
        written.append(store.folder / name)
    return written


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV; cells that a spreadsheet would execute as a formula get a leading
    apostrophe."""
    safe = table.copy()
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name]):
            safe[name] = pd.Series(map(_quoted, table[name]), index=safe.index, dtype=object)
    return str(safe.to_csv(index=False))


def _quoted(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.lstrip(" '").startswith(FORMULA)
    return f"'{value}" if is_formula else value


DPI = 150
"""Resolution of PNG files in dots per inch."""


def write_plots(results: Study, folder: Path) -> list[Path]:
    """Write the figures that apply to a study as PNG files to a folder; return the files."""
    from raybench.report.figures import kinds_of  # late: matplotlib takes a second

    files, written = StudyFiles(folder), []
    for name, kind in kinds_of(results).items():
        if kind.applies(results):
            file = f"{file_name(results.metric.name) if name == 'values' else name}.png"
            picture = io.BytesIO()
            kind.draw(results).savefig(picture, format="png", dpi=DPI)
            files.write_bytes(file, picture.getvalue())
            written.append(folder / file)
    return written
