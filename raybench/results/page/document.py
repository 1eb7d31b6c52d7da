"""The whole page of one study, or of several side by side, and how it is written to a file."""

import base64
import hashlib
import os
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.text import clean, shorten
from raybench.results.glossary import SECTIONS
from raybench.results.load import StudyResults
from raybench.results.page.comparison import compared, study_names
from raybench.results.page.html import (
    Html,
    definitions,
    element,
    folded,
    isolated,
    join,
    section,
    text,
)
from raybench.results.page.study_part import (
    Extra,
    StudyPart,
    answer_part,
    sections_html,
    study_part,
)
from raybench.results.records import uncollected
from raybench.results.store import StudyFiles

HERE = Path(__file__).parent
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M1 14 5 7l3 3 6-8' fill='none' stroke='%230072b2' stroke-width='2.5'/%3E%3C/svg%3E"
)


@cache
def style() -> str:
    """Return the page's style."""
    return (HERE / "page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the page's script."""
    return (HERE / "page.js").read_text(encoding="utf-8")


def policy() -> str:
    """Return what the page may load: nothing; run: its own script; use: its own style.

    Figures have style attributes; these are allowed, style elements are not.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script())}'",
            f"style-src-elem '{_digest(style())}'",
            "style-src-attr 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def head(title: str) -> Html:
    """Return the page's head."""
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", text(title)),
        element("link", rel="icon", href=ICON),
        element("style", Html(style())),
    )


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def glossary_part() -> Html:
    """Return all terms by subject, folded."""
    groups = [
        folded(title, definitions([(term, _meaning(words)) for term, words in terms.items()]))
        for title, terms in SECTIONS.items()
    ]
    return section("glossary", "Words", *groups)


def _meaning(words: str) -> Html:
    """Return an explanation; what stands between backticks is code."""
    pieces = words.split("`")
    return Html(
        "".join(
            element("code", isolated(piece)) if number % 2 else isolated(piece)
            for number, piece in enumerate(pieces)
        )
    )


DOCTYPE = Html("<!doctype html>\n")
FOOT = (
    "Made by raybench. This file needs no network and sends nothing; what it shows is in "
    "trials.csv, curves.csv and records.jsonl too."
)


def page_text(studies: Sequence[StudyResults], extras: Sequence[Extra] = ()) -> str:
    """Return the page of a study, or of several side by side.

    `extras` are of a single study: what its command knows beyond the records.
    """
    with uncollected():
        return _single(studies[0], extras) if len(studies) == 1 else _several(studies)


def _single(results: StudyResults, extras: Sequence[Extra]) -> str:
    part = study_part(results, "s1", extras)
    links = [(name, title) for name, title, _ in part.sections]
    return _page(
        title=f"{results.name}: {part.answer.headline}",
        headline=part.answer.headline,
        kind=f"Study {results.name}",
        opening=answer_part(part.answer),
        links=[*links, ("glossary", "Words")],
        body=sections_html(part),
        data=part.data,
    )


def _several(studies: Sequence[StudyResults]) -> str:
    names = study_names(studies)
    parts = [study_part(one, f"s{i}", level=3) for i, one in enumerate(studies, 1)]
    both = compared(studies, names, [part.answer for part in parts])
    return _page(
        title=both.headline,
        headline=both.headline,
        kind=f"{len(studies)} studies side by side",
        opening=both.opening,
        links=[
            ("winners", "Winners"),
            *((f"s{i}", name) for i, name in enumerate(names, 1)),
            ("glossary", "Words"),
        ],
        body=join([both.body, *(_study(i, *one) for i, one in enumerate(zip(names, parts), 1))]),  # noqa: B905
        data=join(part.data for part in parts),
    )


def _study(number: int, name: str, part: StudyPart) -> Html:
    """Return a study of several: its answer, the rest folded."""
    answer = element("p", element("strong", isolated(part.answer.headline)))
    rest = folded("Pictures, trials and all the rest", sections_html(part, level=3))
    inner = element("div", answer, answer_part(part.answer), rest, class_="study")
    return section(f"s{number}", name, inner)


def _page(
    *,
    title: str,
    headline: str,
    kind: str,
    opening: Html,
    links: Sequence[tuple[str, str]],
    body: Html,
    data: Html,
) -> str:
    """Return a page; the answer is the first that a reader meets, on a screen or by ear."""
    toggle = element("button", text("Dark page"), type="button", id="theme", hidden=True)
    where = element("div", element("p", isolated(kind)), toggle, class_="where")
    entries = [
        element("li", element("a", isolated(words), href=f"#{name}")) for name, words in links
    ]
    return DOCTYPE + element(
        "html",
        head(title),
        element(
            "body",
            element("a", text("Skip to pictures and tables"), class_="skip", href="#main"),
            element("header", element("h1", isolated(headline)), where, opening, class_="page"),
            element("nav", element("ul", *entries), aria_label="Parts of this page"),
            element("main", body, glossary_part(), id="main", tabindex=-1),
            element("footer", element("p", text(FOOT))),
            data,
            element("script", Html(script())),
        ),
        lang="en",
    )


PAGE_FILE = "report.html"
LONGEST = 300
"""Characters of an error that a sentence shows."""


def write_page(results: StudyResults, folder: Path, extras: Sequence[Extra] = ()) -> Path:
    """Write a study's page into its folder, whole or not at all; return its file."""
    StudyFiles(folder).write_text(PAGE_FILE, page_text([results], extras))
    return folder / PAGE_FILE


def try_page(
    results: StudyResults, folder: Path, say: Callable[[str], None], extras: Sequence[Extra] = ()
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


def write_comparison(studies: Sequence[StudyResults], file: Path) -> Path:
    """Write the page of several studies; UserError where the file cannot be written."""
    if file.is_dir():
        raise UserError(f"--out {file}: is a folder; name a file, as {file / 'compare.html'}.")
    if not file.parent.is_dir():
        raise UserError(
            f"--out {file}: there is no folder {file.parent}; make it, or name another."
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {file}: cannot be written (no permission in {file.parent}).")
    StudyFiles(file.parent).write_text(file.name, page_text(studies))
    return file
