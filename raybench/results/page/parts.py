"""The page's own style and script, and the policy that lets a browser run nothing else."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from raybench.results.page.html import Html, element, text

HERE = Path(__file__).parent
SCRIPTS = ("cells", "curve", "detail", "table", "page")
"""Files of `js/`, in the order in which they build on one another."""
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
    """Return the page's script: its files in one scope."""
    files = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['(() => {\n"use strict";', *files, "})();"])


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
