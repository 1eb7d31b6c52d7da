"""The HTML page of one or several studies: a single file that needs no network.

`page.html` is the template, and the dataclasses in this module are its input.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pandas as pd
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from raybench.report.answer import configuration_words, summary_of
from raybench.report.confidence import SuggestedStep, ledger_line, next_steps
from raybench.report.figures import kinds_of
from raybench.report.figures.parts import svg
from raybench.report.page.tables import (
    HtmlTable,
    PageComparison,
    TrialTable,
    compared,
    escaped,
    table_of,
    trial_link,
    trials_of,
)
from raybench.report.scaling_printed import BELOW, TITLES, printed_cells
from raybench.report.words import ENDINGS, duration, fault_words, price_of, target_sentence
from raybench.results.analyses import failures
from raybench.results.place import place_in_words, unique_names
from raybench.results.records import uncollected
from raybench.results.store import PAGE_FILE, STUDY_FILE, StudyFiles, StudyKind, write_out
from raybench.results.study import Study
from raybench.results.verdict import verdict_of
from raybench.scaling.cells import scaling_cells
from raybench.spec.documents import to_yaml
from raybench.spec.objective import StopReason
from raybench.spec.text import clean, clean_lines, counted

HERE = Path(__file__).parent


@dataclass(frozen=True)
class PageAnswer:
    """Summary of a study at the top of the page; fields of type Markup contain links to trials."""

    title: str
    """First sentence of the conclusions."""
    headline: Markup
    """The title, with links to trials."""
    lead: Sequence[Markup]
    """Paragraphs with the other conclusions."""
    facts: Sequence[tuple[str, Markup]]
    """Pairs (name, text), such as confidence, target and cost."""
    caveats: Sequence[Markup]
    """Sentences that limit the conclusions, or say that the study is still running."""
    steps: Sequence[SuggestedStep]
    """Next steps that the user can take."""


def answer_of(results: Study, study: str) -> PageAnswer:
    """Return the summary of a study for the page; its HTML id `study` is the prefix of the ids of
    its trials."""
    summary = summary_of(results)
    (first, *further), *others = summary.conclusions
    steps: list[SuggestedStep] = []
    facts: list[tuple[str, str]] = []
    if results.kind is StudyKind.TRAINING:
        facts = _facts_of_run(results)
    elif not results.is_scaling:
        confidence = summary.confidence[:1].upper() + summary.confidence[1:]
        facts = [("Confidence", confidence), ("Target", target_sentence(results))]
        steps = [
            step
            for step in next_steps(results, verdict_of(results))
            if not step.do.endswith(PAGE_FILE)
        ]
    if len(results.trials):
        facts.append(("Seconds of the study", ledger_line(results)))

    def linked(text: str) -> Markup:
        """Return text in which names of trials are links."""
        return Markup(NAMED_TRIALS.sub(links, escaped(text)))

    def links(match: re.Match[str]) -> str:
        names = match[2].split(", ")
        linked_names = [
            trial_link(results, name, study) if name in results.runs else name for name in names
        ]
        return match[1] + ", ".join(linked_names)

    return PageAnswer(
        first,
        linked(first),
        [linked(" ".join(paragraph)) for paragraph in (further, *others) if paragraph],
        [(name, linked(text)) for name, text in facts if text],
        [linked(caveat) for caveat in (*unfinished(results), *summary.caveats)],
        steps,
    )


TRIAL_NAME = r"[\w-]+(?:\.[\w-]+)*"
NAMED_TRIALS = re.compile(rf"(\btrials? )({TRIAL_NAME}(?:, {TRIAL_NAME})*)")
"""Pattern of names of trials in a sentence, such as `trial 0003` or `trials 0003, 0012.torch2`."""


def unfinished(results: Study) -> list[str]:
    """Return a list with a sentence if the study is still running or was interrupted; otherwise
    []."""
    if results.owner:
        number = counted(len(results.runs), "run")
        return [f"The study is still running ({results.owner}); this page has its first {number}."]
    if any(run.stop == StopReason.INTERRUPTED for run in results.runs.values()):
        again = "" if results.kind is StudyKind.TRAINING else "; rerun the same command to resume"
        return [f"The study was interrupted and its last runs were cut off{again}."]
    return []


def _facts_of_run(results: Study) -> list[tuple[str, str]]:
    """Return pairs (name, text) about a single training run; [] if it has not ended."""
    if not results.runs:
        return []
    run = next(iter(results.runs.values()))
    trained, cost = duration(run.ledger["train"]), run.spec.num_workers * run.ledger["train"]
    costs = f"{cost:.3g} worker-seconds{price_of(results, cost, run.trial)}"
    return [
        ("Configuration", f"{configuration_words(results, run.spec)}, seed {run.spec.seed}"),
        ("Target", target_sentence(results)),
        ("Cost", f"{trained} of training, {costs}; {duration(run.wall_s)} in all."),
        ("Ended as", f"{ENDINGS.get(run.stop, run.stop)}." if run.stop is not None else ""),
    ]


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page."""

    id: str
    """HTML id; empty if the figure is shown under the heading of its part, without one of its
    own."""
    title: str
    reading: str
    """How to read the figure."""
    drawing: Markup
    table: HtmlTable
    """The numbers in the figure."""


@dataclass(frozen=True)
class PagePart:
    """A part of the page with a heading; its contents appear in the order of the fields."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[tuple[str, pd.DataFrame]] = ()
    """Pairs (caption, table); column names are words with units."""
    pictures: Sequence[PageFigure] = ()
    csv_file: str = ""
    """Name of the file that contains all rows of the tables."""
    trials: TrialTable | None = None
    pairs: Sequence[tuple[str, str, bool]] = ()
    """Tuples (name, text, whether the text is code)."""
    name: str = ""
    """HTML id of the part."""


@dataclass(frozen=True)
class StudyPart:
    """A study on the page; `id` is its HTML id and the prefix of the ids of its parts."""

    id: str
    name: str
    answer: PageAnswer
    parts: Sequence[PagePart]


FAILED_CAPTION = "Failed runs by cause, the most frequent first"


OnFault = Callable[[str, Exception], None]
"""Type of the function that is called if a figure could not be drawn, with its title and the
error."""


def study_part(
    results: Study,
    study: str,
    name: str,
    extras: Sequence[PagePart],
    on_fault: OnFault | None,
) -> StudyPart:
    """Return the part of the page about a study.

    Args:
        results: The study.
        study: HTML id of the study.
        name: Name of the study on the page.
        extras: Further parts.
        on_fault: Called for a figure that cannot be drawn.
    """
    parts = {} if results.trials.empty else dict(_parts(results, study, extras, on_fault))
    parts["provenance"] = PagePart("Provenance", pairs=_provenance(results))
    named_parts = [replace(part, name=f"{study}-{key}") for key, part in parts.items()]
    return StudyPart(study, name, answer_of(results, study), named_parts)


def _parts(
    results: Study, study: str, extras: Sequence[PagePart], on_fault: OnFault | None
) -> Iterator[tuple[str, PagePart]]:
    """Yield (id, part) for each part about a study with runs, in the order of the page."""
    is_scaling, trials = results.is_scaling, results.trials
    pictures, missing = _pictures(results, study, on_fault)
    if pictures or missing:
        yield "figures", PagePart("Figures", missing, pictures=pictures)
    for scaling, title in TITLES.items() if is_scaling else ():
        rows = scaling_cells(results)[scaling_cells(results)["scaling"] == scaling]
        if len(rows):
            tables = [(BELOW, printed_cells(rows, metric=results.metric))]
            yield f"cells-{scaling}", PagePart(title, tables=tables, csv_file="scaling.csv")
    for number, extra in enumerate(extras):
        yield f"extra-{number}", extra
    yield "trials", PagePart("Runs" if is_scaling else "Trials", trials=trials_of(results, study))
    failed = failures(trials)
    tables = [(FAILED_CAPTION, failed)] if len(failed) else []
    lines = [] if tables else ["No run failed."]
    yield "failures", PagePart("Failures by cause", lines, tables, csv_file="trials.csv")


def _pictures(
    results: Study, study: str, on_fault: OnFault | None
) -> tuple[list[PageFigure], list[str]]:
    """Draw the figures of a study.

    Returns:
        - The figures.
        - One sentence for each figure that could not be drawn.
    """
    pictures, missing = [], []
    for name, kind in kinds_of(results).items():
        try:
            if kind.applies(results):
                drawing = Markup(svg(kind.draw(results), f"{study}-{name}", kind.title))
                table = table_of(kind.table(results), kind.title)
                heading = kind.title, kind.reading
                pictures.append(PageFigure(f"{study}-{name}", *heading, drawing, table))
        except Exception as error:  # noqa: BLE001 (the page shows it, and on_fault keeps it)
            missing.append(f"{kind.title}: could not be drawn ({fault_words(error)}).")
            if on_fault is not None:
                on_fault(kind.title, error)
    return pictures, missing


def _provenance(results: Study) -> list[tuple[str, str, bool]]:
    """Return the facts that are needed to interpret or reproduce the results, as
    `PagePart.pairs`."""
    return [
        (STUDY_FILE, escape(clean_lines(to_yaml(results.study))), True),
        ("Results", place_in_words(results.place, results.folder), False),
        ("Page written", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", False),
    ]


@cache
def glossary() -> dict[str, dict[str, str]]:
    """Return the meanings of terms, keyed by subject and then by term; code is between
    backticks."""
    terms: dict[str, dict[str, str]] = yaml.safe_load((HERE / "glossary.yaml").read_text("utf-8"))
    return terms


@cache
def _environment() -> Environment:
    """Return the Jinja environment of the template; it escapes all text and removes control
    characters."""

    def digest(content: str) -> str:
        return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters |= {"escaped": escaped, "digest": digest}
    json_options = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = json_options
    for name, file in (("script", "page.js"), ("style", "page.css")):
        environment.globals[name] = Markup((HERE / file).read_text(encoding="utf-8"))
    environment.globals |= {"glossary": glossary(), "table_of": table_of}
    return environment


def page_text(
    studies: Sequence[Study], extras: Sequence[PagePart] = (), on_fault: OnFault | None = None
) -> str:
    """Return the page of one or several studies as HTML.

    Args:
        studies: The studies. If there are several, the page begins with a comparison of the
            winners.
        extras: Further parts of the page of a single study.
        on_fault: Called for a figure that cannot be drawn. The page then contains a sentence
            instead of the figure.
    """
    with uncollected():
        names = unique_names([(results.name, results.place) for results in studies])
        study_parts = [
            study_part(results, f"s{number}", name, extras, on_fault)
            for number, (results, name) in enumerate(zip(studies, names, strict=True), 1)
        ]
        if len(study_parts) == 1:
            return _rendered(study_parts, f"Study {study_parts[0].name}")
        comparison = compared(list(zip(names, studies, strict=True)))
        return _rendered(study_parts, f"{len(studies)} studies side by side", comparison)


def _rendered(
    study_parts: Sequence[StudyPart], kind: str, comparison: PageComparison | None = None
) -> str:
    first = study_parts[0]
    headline: str = first.answer.headline
    title = f"{first.name}: {first.answer.title}"
    links = [(part.name, part.title) for part in first.parts]
    if comparison is not None:
        title = headline = comparison.headline
        links = [("winners", "Winners"), *((study.id, study.name) for study in study_parts)]
    trials = [
        part.trials for study in study_parts for part in study.parts if part.trials is not None
    ]
    data = [(f"{table.study}-rows", table.rows) for table in trials]
    data += [(f"{table.study}-details", table.details) for table in trials]
    links.append(("glossary", "Glossary"))
    variables = {
        "studies": study_parts,
        "title": title,
        "headline": headline,
        "kind": kind,
        "links": links,
    }
    page = _environment().get_template("page.html")
    return page.render(**variables, comparison=comparison, data=data)


def write_page(
    results: Study, folder: Path, extras: Sequence[PagePart] = (), on_fault: OnFault | None = None
) -> Path:
    """Write the page of a study to its folder atomically; return the file."""
    StudyFiles(folder).write_text(PAGE_FILE, page_text([results], extras, on_fault))
    return folder / PAGE_FILE


def write_comparison(studies: Sequence[Study], file: Path) -> Path:
    """Write the page that compares several studies; raise UserError if that fails."""
    write_out(file, page_text(studies))
    return file


def write_extras(title: str, extras: Sequence[PagePart], file: Path) -> Path:
    """Write a page with parts that belong to no single study; raise UserError if that fails."""
    parts = [replace(part, name=f"extra-{number}") for number, part in enumerate(extras)]
    study = StudyPart("s1", "Plan", PageAnswer(title, escaped(title), (), (), (), ()), parts)
    write_out(file, _rendered([study], "Plan"))
    return file
