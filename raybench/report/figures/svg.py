"""Figures as SVG for a page, with selectable text, the colors of the page's theme, and trials that
can be clicked.

The SVG of matplotlib has six decimals per number, a global style sheet, and the same ids in every
figure. This module changes it so that several figures fit on one page.
"""

import html
import io
import re
from collections.abc import Iterator, Mapping

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from raybench.report.figures.parts import MARKS
from raybench.spec.text import clean

THEMED = {
    "#333333": "var(--ink)",
    "#000000": "var(--ink)",
    "#eeeeee": "var(--grid)",
    "#c4c4c4": "var(--quiet)",
    "#ffffff": "var(--paper)",
    "#0072b2": "var(--blue,#0072b2)",
    "#d55e00": "var(--vermillion,#d55e00)",
    "#009e73": "var(--green,#009e73)",
    "#cc79a7": "var(--purple,#cc79a7)",
}
"""Colors that are replaced by colors of the page's theme."""
SVG = "http://www.w3.org/2000/svg"
ROOT = "fill:var(--ink);stroke-linejoin:round;stroke-linecap:butt;font-family:inherit"
"""Style of the root element; matplotlib writes no fill for black."""
HEX_COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
IDS = re.compile(r'(\bid="|href="#|url\(#)')
FONTS = re.compile(r"'DejaVu Sans'[^;\"]*")
LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->", re.DOTALL)
LONG_DECIMALS = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
TAG = re.compile(r"<[^>]*>")
GID = "artist-"


def svg(figure: Figure, prefix: str, title: str = "") -> str:
    """Return a figure as an `<svg>` element.

    The element has a `viewBox` and the class `figure`, but no size, which a style sheet sets.
    Elements that belong to a trial have the attribute `data-trial`.

    Args:
        figure: The figure. The `gid` of an artist is the name of a trial, or one of `parts.MARKS`.
        prefix: Prefix of all HTML ids in the element.
        title: Name of the figure for screen readers.
    """
    # Names of trials may come from a file of the user, so they must not become ids of the page.
    artists = [artist for artist in _artists(figure) if artist.get_gid() is not None]
    gids = {f"{GID}{number}": str(artist.get_gid()) for number, artist in enumerate(artists)}
    try:
        for name, artist in zip(gids, artists, strict=True):
            artist.set_gid(name)
        text = _written(figure, prefix)
    finally:
        for gid, artist in zip(gids.values(), artists, strict=True):
            artist.set_gid(gid)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = LEFT_OUT.sub("", text[text.index(">", box.end()) + 1 :]).replace("xlink:href", "href")
    body = TAG.sub(lambda match: _tidied(match[0], prefix, gids), body)
    body = body.replace("</svg>", "").strip()
    name = html.escape(clean(title))
    head = f'<svg xmlns="{SVG}" viewBox="{box[1]}" class="figure" role="img" style="{ROOT}"'
    label_and_title = f' aria-label="{name}"><title>{name}</title>' if title else ">"
    return f"{head}{label_and_title}{body}</svg>"


def _artists(parent: Artist) -> Iterator[Artist]:
    """Yield all artists of a figure, except those of its axis objects, since accessing these would
    create them."""
    for child in parent.get_children():
        if not isinstance(child, Axis):
            yield child
            yield from _artists(child)


def _written(figure: Figure, prefix: str) -> str:
    """Return the unchanged SVG of matplotlib."""
    buffer, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata=nothing, facecolor="none")
    return buffer.getvalue()


def _tidied(tag: str, prefix: str, gids: Mapping[str, str]) -> str:
    """Adapt an SVG tag to a page.

    It gets the colors of the page's theme, short numbers, ids that begin with `prefix`, and an
    attribute for the trial to which it belongs.

    Args:
        tag: The tag.
        prefix: Prefix of HTML ids.
        gids: Name of the trial, or one of `parts.MARKS`, by id in the SVG.
    """
    mark = re.search(rf'id="({GID}\d+)"', tag)
    tag = LONG_DECIMALS.sub(lambda match: f"{float(match[0]):.2f}", FONTS.sub("sans-serif", tag))
    tag = HEX_COLOR.sub(lambda match: THEMED.get(match[0].lower(), match[0]), tag)
    tag = IDS.sub(rf"\g<1>{prefix}-", tag)
    if mark is None:
        return tag
    name = gids[mark[1]]
    data = "" if name in MARKS else f'data-trial="{html.escape(clean(name))}"'
    return tag.replace(f'id="{prefix}-{mark[1]}"', data)
