"""Figures as SVG for a page: with text, the colors of the page's theme, and trials to click on.

matplotlib writes six decimals per number, a global style sheet, and ids that repeat in every
figure; this module adapts them to a page.
"""

import io
import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

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
"""Colors that are replaced by those of the page's theme."""
SVG, LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
ROOT = "fill:var(--ink);stroke-linejoin:round;stroke-linecap:butt;font-family:inherit"
"""Style of the root element; matplotlib writes no fill for black."""
HEX_COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
LONG_DECIMALS = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
NO_TURN = re.compile(r"rotate\(-?0(?: [^)]*)?\)")
GID = "artist-"


def svg(figure: Figure, prefix: str, title: str = "") -> str:
    """Return a figure as an `<svg>` element.

    The element has a `viewBox` and the class `figure`, but no size, which a style sheet sets.
    Elements that belong to a trial have the attribute `data-trial`.

    Args:
        figure: the figure; the `gid`s of its artists are names of trials, or in `parts.MARKS`.
        prefix: beginning of all HTML ids in the element.
        title: name of the image for screen readers.
    """
    # Names of trials may come from a file, so they must not become ids of the page.
    artists = [one for one in _artists(figure) if one.get_gid() is not None]
    gids = {f"{GID}{number}": str(one.get_gid()) for number, one in enumerate(artists)}
    try:
        for name, one in zip(gids, artists, strict=True):
            one.set_gid(name)
        text = _written(figure, prefix)
    finally:
        for gid, one in zip(gids.values(), artists, strict=True):
            one.set_gid(gid)
    root = ElementTree.fromstring(text)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    _tidy(root, prefix, used, gids)
    box = root.attrib["viewBox"]
    root.attrib = {"xmlns": SVG, "viewBox": box, "class": "figure", "role": "img", "style": ROOT}
    if title:
        root.set("aria-label", clean(title))
        head = ElementTree.Element("title")
        head.text = clean(title)
        root.insert(0, head)
    return ElementTree.tostring(root, encoding="unicode")


def _artists(parent: Artist) -> Iterator[Artist]:
    """Yield the artists of a figure, except those of an axis, which are created when asked for."""
    for child in parent.get_children():
        if not isinstance(child, Axis):
            yield child
            yield from _artists(child)


def _written(figure: Figure, prefix: str) -> str:
    """Return the SVG that matplotlib writes. The layout is computed first, because `savefig` draws
    a figure with a layout engine twice."""
    buffer, engine = io.StringIO(), figure.get_layout_engine()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
    try:
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
            figure.savefig(buffer, format="svg", metadata=nothing, facecolor="none")
    finally:
        figure.set_layout_engine(engine)
    return buffer.getvalue()


def _tidy(
    parent: ElementTree.Element, prefix: str, used: set[str], gids: Mapping[str, str]
) -> None:
    """Adapt an element and its children to a page; remove metadata, styles and groups without
    attributes."""
    parent.tag = parent.tag.removeprefix(f"{{{SVG}}}")
    _name(parent, prefix, used, gids)
    kept: list[ElementTree.Element] = []
    for child in parent:
        _tidy(child, prefix, used, gids)
        child.tail = None
        if child.tag in ("metadata", "style") or (child.tag == "defs" and not len(child)):
            continue
        kept += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = kept
    if parent.tag != "text":
        parent.text = None


def _name(one: ElementTree.Element, prefix: str, used: set[str], gids: Mapping[str, str]) -> None:
    """Replace the attributes of an element with those for a page."""
    name, link = one.attrib.pop("id", ""), one.attrib.pop(LINK, None)
    if name in gids:
        one.set("data-mark" if gids[name] in MARKS else "data-trial", clean(gids[name]))
    elif name in used:
        one.set("id", f"{prefix}-{name}")
    if link is not None:
        one.set("href", link.replace("#", f"#{prefix}-", 1))
    for key in set(one.attrib) - {"id", "href", "data-mark", "data-trial"}:
        value = one.attrib[key].replace("url(#", f"url(#{prefix}-")
        if key == "style":
            value = _style(value, is_marker=one.tag == "use")
        value = LONG_DECIMALS.sub(
            lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value
        )
        one.set(key, " ".join(value.split()))
        if not value or (key == "transform" and NO_TURN.fullmatch(value)):
            del one.attrib[key]
    if "d" in one.attrib:
        one.set("d", re.sub(r" ?([A-Za-z]) ?", r"\1", one.attrib["d"]))


def _style(style: str, *, is_marker: bool) -> str:
    """Return a style with the colors of the theme and without the font family."""
    found = dict(re.findall(r"([\w-]+): ?([^;]*)", style))
    found.pop("font-family", None)
    font = found.pop("font", "")  # weight, size and family
    for key, form in (("font-weight", r"^(\d+|bold) "), ("font-size", r"([\d.]+px)")):
        if part := re.search(form, font):
            found[key] = part[1]
    if is_marker:  # the marker's definition has the stroke
        found = {key: value for key, value in found.items() if not key.startswith("stroke")}
    text = ";".join(f"{key}:{value}" for key, value in found.items())
    return HEX_COLOR.sub(lambda match: THEMED.get(match[0].lower(), match[0]), text)
