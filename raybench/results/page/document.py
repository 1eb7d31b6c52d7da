"""The whole page of one study, or of several side by side."""

from collections.abc import Sequence

from raybench.results.load import StudyResults
from raybench.results.page.comparison import compared, study_names
from raybench.results.page.extra import Extra
from raybench.results.page.glossary import glossary_part
from raybench.results.page.html import Html, element, folded, isolated, join, section, text
from raybench.results.page.parts import head, script
from raybench.results.page.study_part import (
    StudyPart,
    answer_part,
    sections_html,
    study_part,
)
from raybench.results.record_lines import uncollected

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
