"""HTML of text that may hold anything: what is no `Html` yet is escaped on its way in."""

from collections.abc import Iterable
from html import escape
from typing import NewType

from raybench.core.text import clean

Html = NewType("Html", str)
"""Text that a browser may be given as it is; `text` and `element` make it."""
VOID = ("meta", "link", "input", "br")
"""Elements without an end."""
NOTHING = Html("")


def text(content: object) -> Html:
    """Return any text, escaped; control characters and marks of direction go."""
    return Html(escape(clean(str(content))))


def element(tag: str, *children: Html, **attributes: str | int | bool | None) -> Html:
    """Return `<tag ...>children</tag>`.

    Of attributes' names a last `_` goes, others are `-`: `class_`, `aria_label`. True is an
    attribute without a value; False and None are none.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{text(value)}"')
    if tag in VOID:
        return Html(f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{''.join(children)}</{tag}>")


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    """Return parts one after another; `between` is escaped."""
    return Html(text(between).join(parts) if between.strip() else between.join(parts))


def paragraphs(lines: Iterable[str], **attributes: str | None) -> Html:
    """Return a paragraph a line."""
    return join(element("p", isolated(line), **attributes) for line in lines)


def isolated(content: object) -> Html:
    """Return a text whose letters may run from right to left, and disturb none around it."""
    safe = text(content)
    return safe if safe.isascii() else element("bdi", safe)


def section(name: str, title: str, *children: Html, level: int = 2) -> Html:
    """Return a part of the page that has a heading and can be jumped to; nothing if empty."""
    if not any(children):
        return NOTHING
    heading = element(f"h{level}", isolated(title), id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def folded(summary: str, *children: Html, is_open: bool = False) -> Html:
    """Return what is shown on demand, without a script too."""
    return element("details", element("summary", text(summary)), *children, open=is_open)


def definitions(pairs: Iterable[tuple[str, Html]], class_: str | None = None) -> Html:
    """Return names and what they are."""
    rows = [
        element("div", element("dt", isolated(name)), element("dd", content))
        for name, content in pairs
    ]
    return element("dl", *rows, class_=class_) if rows else NOTHING
