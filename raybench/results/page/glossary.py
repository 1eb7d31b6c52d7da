"""The words of the page and what they mean."""

from raybench.results.glossary import SECTIONS
from raybench.results.page.html import Html, definitions, element, folded, isolated, section


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
