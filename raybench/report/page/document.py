"""The page of a study, or of several side by side, and how it is written to a file.

`page.html` is the page; `StudyPart` and its parts are what it shows.
"""

import base64
import hashlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pandas as pd
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from raybench.report.figures.kinds import kinds_of
from raybench.report.figures.svg import svg
from raybench.report.page.answer import Answer, answer_of
from raybench.report.page.comparison import Comparison, Picture, compared
from raybench.report.page.tables import Table, TrialTable, own, table_of, trials_of
from raybench.report.scaling_printed import BELOW, TITLES, printed_cells
from raybench.report.tables import BATCH_STATISTICS, failures, predictions
from raybench.results.place import shown, unlike
from raybench.results.records import uncollected
from raybench.results.store import STUDY_FILE, StudyFiles
from raybench.results.study import Study
from raybench.scaling.cells import scaling_cells
from raybench.spec.documents import to_yaml
from raybench.spec.errors import UserError
from raybench.spec.text import clean, clean_lines, shorten

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Extra:
    """A part of its own: predictions and plans of a scaling study."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[tuple[str, pd.DataFrame]] = field(default_factory=tuple)
    """Captions and tables; columns in words, with their units."""
    pictures: Sequence[Picture] = ()

    def part(self, name: str) -> "Part":
        """Return it as the page has it."""
        tables = [table_of(table, caption) for caption, table in self.tables]
        return Part(name, self.title, self.pictures, self.lines, tables)


@dataclass(frozen=True)
class Part:
    """A part of the page that has a heading and can be jumped to: what it has, in this order."""

    name: str
    """Its id."""
    title: str
    pictures: Sequence[Picture] = ()
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    trials: TrialTable | None = None
    pairs: Sequence[tuple[str, str, bool]] = ()
    """Names, what they are, and whether that is code."""


@dataclass(frozen=True)
class StudyPart:
    """A study on the page; its `id` begins those of its parts."""

    id: str
    name: str
    answer: Answer
    parts: Sequence[Part]


PREDICTED = (
    "Predicted (~), not run: from a trial's learning curve and the measured step times. Never "
    "mixed with what was measured."
)
FAILED = "Failed runs by cause, the most frequent first"


def study_part(results: Study, study: str, name: str, extras: Sequence[Extra] = ()) -> StudyPart:
    """Return what the page shows of a study."""
    parts = [] if results.trials.empty else [*_parts(results, study, extras)]
    parts.append(Part("provenance", "Provenance", pairs=_provenance(results)))
    own_ids = [replace(one, name=f"{study}-{one.name}") for one in parts]
    return StudyPart(study, name, answer_of(results, study), own_ids)


def _parts(results: Study, study: str, extras: Sequence[Extra]) -> Iterator[Part]:
    """Yield the parts of a study that has runs, in the order of the page."""
    is_scaling, trials = results.is_scaling, results.trials
    if pictures := _pictures(results, study):
        yield Part("figures", "Pictures", pictures)
    for scaling, title in TITLES.items() if is_scaling else ():
        rows = scaling_cells(results)[scaling_cells(results)["scaling"] == scaling]
        if len(rows):
            cells = printed_cells(rows, metric=results.metric)
            yield Part(
                f"cells-{scaling}", title, tables=[table_of(cells, BELOW, rest="scaling.csv")]
            )
    yield from (one.part(f"extra-{number}") for number, one in enumerate(extras))
    yield Part("trials", "Runs" if is_scaling else "Trials", trials=trials_of(results, study))
    predicted = pd.DataFrame() if is_scaling else predictions(results)
    if len(predicted):
        rough = [BATCH_STATISTICS] if trials["batch_statistics"].eq(True).any() else []
        table = table_of(predicted.rename(columns={"trial": "curve of trial"}), PREDICTED)
        yield Part("predicted", "Not run: predicted", lines=rough, tables=[table])
    failed = failures(trials)
    tables = [table_of(failed, FAILED, rest="trials.csv")] if len(failed) else []
    lines = [] if tables else ["No run failed."]
    yield Part("failures", "Failures by cause", lines=lines, tables=tables)


def _pictures(results: Study, study: str) -> list[Picture]:
    return [
        Picture(
            f"{study}-{name}",
            kind.title,
            kind.reading,
            Markup(svg(kind.draw(results), f"{study}-{name}", kind.title)),
            table_of(kind.table(results), kind.title),
        )
        for name, kind in kinds_of(results).items()
        if kind.applies(results)
    ]


MOST_NAMED = 20
"""Hosts, devices that are named."""


def _provenance(results: Study) -> list[tuple[str, str, bool]]:
    """Return what must be known to read the results later, or to repeat them."""
    pairs: list[tuple[str, str, bool]] = [
        (STUDY_FILE, escape(clean_lines(to_yaml(results.study))), True)
    ]
    runs = results.runs.values()
    for name, values in (
        ("Hosts of runs", {host for run in runs for host in run.hosts}),
        ("Devices of runs", {str(device) for run in runs for device in run.devices}),
        ("GPUs of runs", {one for run in runs for one in run.accelerators}),
    ):
        if values:
            more = len(values) - MOST_NAMED
            listed = ", ".join(sorted(values)[:MOST_NAMED])
            pairs.append((name, listed + (f" and {more} more" if more > 0 else ""), False))
    pairs.append(("Results", shown(results.place, results.folder), False))
    pairs.append(("Page written", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", False))
    return pairs


@cache
def glossary() -> dict[str, dict[str, str]]:
    """Return the terms by subject, each with what it means; code stands between backticks."""
    found: dict[str, dict[str, str]] = yaml.safe_load((HERE / "glossary.yaml").read_text("utf-8"))
    return found


@cache
def _environment() -> Environment:
    """Return the template's surroundings: every text is escaped, and safe to show."""
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda one: clean(one) if type(one) is str else one,
    )
    made.filters |= {"own": own, "digest": _digest}
    made.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    for name, file in (("script", "page.js"), ("style", "page.css")):
        made.globals[name] = Markup((HERE / file).read_text(encoding="utf-8"))
    made.globals["glossary"] = glossary()
    return made


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def page_text(studies: Sequence[Study], extras: Sequence[Extra] = ()) -> str:
    """Return the page of a study, or of several side by side.

    `extras` are of a single study: what its command knows beyond the records.
    """
    with uncollected():
        names = unlike([(one.name, one.place) for one in studies])
        shown = [
            study_part(one, f"s{number}", name, extras)
            for number, (one, name) in enumerate(zip(studies, names, strict=True), 1)
        ]
        if len(shown) == 1:
            return _rendered(shown, f"Study {shown[0].name}")
        comparison = compared(list(zip(names, studies, strict=True)))
        return _rendered(shown, f"{len(studies)} studies side by side", comparison)


def _rendered(shown: Sequence[StudyPart], kind: str, comparison: Comparison | None = None) -> str:
    first = shown[0]
    headline: str = first.answer.headline
    title = f"{first.name}: {first.answer.title}"
    links = [(part.name, part.title) for part in first.parts]
    if comparison is not None:
        title = headline = comparison.headline
        links = [("winners", "Winners"), *((one.id, one.name) for one in shown)]
    trials = [part.trials for one in shown for part in one.parts if part.trials is not None]
    return (
        _environment()
        .get_template("page.html")
        .render(
            studies=shown,
            title=title,
            headline=headline,
            kind=kind,
            links=[*links, ("glossary", "Words")],
            comparison=comparison,
            data=[(f"{one.study}-rows", one.rows) for one in trials]
            + [(f"{one.study}-details", one.details) for one in trials],
        )
    )


PAGE_FILE = "report.html"
LONGEST = 300
"""Characters of an error that a sentence shows."""


def write_page(results: Study, folder: Path, extras: Sequence[Extra] = ()) -> Path:
    """Write a study's page into its folder, whole or not at all; return its file."""
    StudyFiles(folder).write_text(PAGE_FILE, page_text([results], extras))
    return folder / PAGE_FILE


def try_page(
    results: Study, folder: Path, say: Callable[[str], None], extras: Sequence[Extra] = ()
) -> list[Path]:
    """Write the page at the end of a study; return its file, in a list.

    The study's numbers must not be lost with the page: whatever is wrong with it is said, its
    traceback kept in `errors/`, and there is no file.
    """
    try:
        return [write_page(results, folder, extras)]
    except Exception as error:  # noqa: BLE001 (any fault of the page; it is said and kept)
        what = shorten(clean(f"{type(error).__name__}: {error}"), LONGEST)
        kept = StudyFiles(folder).write_error(PAGE_FILE, traceback.format_exc())
        say(f"{PAGE_FILE} could not be written ({what}); all else is there (traceback: {kept}).")
        return []


def write_comparison(studies: Sequence[Study], file: Path) -> Path:
    """Write the page of several studies; UserError where the file cannot be written."""
    return _written(lambda: page_text(studies), file)


def write_extras(title: str, extras: Sequence[Extra], file: Path) -> Path:
    """Write a page of parts that are of no single study; UserError as `write_comparison`."""
    parts = [one.part(f"extra-{number}") for number, one in enumerate(extras)]
    shown = StudyPart("s1", "Plan", Answer(title, own(title), (), (), (), ()), parts)
    return _written(lambda: _rendered([shown], "Plan"), file)


def _written(page: Callable[[], str], file: Path) -> Path:
    if file.is_dir():
        raise UserError(f"--out {file}: is a folder; name a file, as {file / 'compare.html'}.")
    if not file.parent.is_dir():
        raise UserError(
            f"--out {file}: there is no folder {file.parent}; make it, or name another."
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {file}: cannot be written (no permission in {file.parent}).")
    StudyFiles(file.parent).write_text(file.name, page())
    return file
