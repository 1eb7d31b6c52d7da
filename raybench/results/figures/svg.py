"""A figure as SVG inside a page: real text, colours of the page's theme, ids of its own."""

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

THEMED = {
    "#333333": "var(--ink)",
    "#000000": "var(--ink)",
    "#eeeeee": "var(--grid)",
    "#c4c4c4": "var(--quiet)",
    "#ffffff": "var(--paper)",
}
"""Colours of a figure that a page's theme decides; those of data stay."""


def svg(figure: Figure, prefix: str) -> str:
    """Return `<svg ...>...</svg>`; every id in it begins with `prefix`."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for colour, variable in THEMED.items():
        text = re.sub(colour, variable, text, flags=re.IGNORECASE)
    return text
