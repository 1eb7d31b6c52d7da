"""A figure as SVG inside a page: real text, colours of the page's theme, trials to click on.

What matplotlib writes is a whole document whose numbers have six decimals, whose style sheet is
meant for all of it and whose ids are those of every other figure: in a page all of that is wrong.
"""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

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
"""Colours of a figure that a page's theme decides."""
DARK = {"--blue": "#4aa8e0", "--vermillion": "#f0803c", "--green": "#2fc298"}
DARK |= {"--purple": "#dd92bb"}
"""What data's darker colours may be on a dark page, where they are hard to see; without, they stay
as they are."""
NOT_PART: tuple[str, ...] = (
    r"<\?xml.*?\?>",
    r"<!DOCTYPE.*?>",
    r"<!--.*?-->",
    r"<metadata>.*?</metadata>",
)
NOT_PART += (r"<style\b.*?</style>", r"<defs>\s*</defs>")
"""What belongs to a document of its own. Text cannot match: `<` is escaped in it."""
ROOT = "fill:var(--ink);stroke-linejoin:round;stroke-linecap:butt;font-family:inherit"
"""What holds in all of a figure: matplotlib leaves out the fill of what is black."""
COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
NUMBERS = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
GID = "artist-"


def svg(figure: Figure, prefix: str, title: str = "") -> str:
    """Return `<svg ...>...</svg>`; every id in it begins with `prefix`.

    It has no size of its own: `viewBox` and the class `figure` let a style sheet give it one. To a
    screen reader it is one image called `title`. What stands for a trial has `data-trial`.
    """
    with _numbered(figure) as gids:
        text = _written(figure, prefix)
    for pattern in NOT_PART:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))

    def tag(match: re.Match[str]) -> str:
        return _tag(match[0], prefix, used, gids)

    text = re.sub(r"<[^>]*>", tag, text)
    text = re.sub(r">\s+<", "><", text.strip())
    return _with_root(_flat(text), clean(title))


def _flat(text: str) -> str:
    """Take away groups that say nothing, and make one of a group that holds but another."""
    inside = r"((?:<(?!/?g\b)[^>]*>[^<]*)*)"
    before = ""
    while before != text:  # innermost first
        before, text = text, re.sub(rf"<g>{inside}</g>", r"\1", text)
    return re.sub(rf"<g( data-[^>]*)><g( [^>]*)>{inside}</g></g>", r"<g\1\2>\3</g>", text)


def _written(figure: Figure, prefix: str) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with (
        _laid_out(figure),
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}),
    ):
        figure.savefig(buffer, format="svg", metadata=nothing, facecolor="none")
    return buffer.getvalue()


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Place everything now: `savefig` draws a figure twice that has a layout engine."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    engine.execute(figure)
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def _artists(parent: Artist) -> Iterator[Artist]:
    """Yield what is in a figure, but for axes' ticks: asked for, they are made."""
    for child in parent.get_children():
        if not isinstance(child, Axis):
            yield child
            yield from _artists(child)


@contextmanager
def _numbered(figure: Figure) -> Iterator[dict[str, str]]:
    """Call the artists that have a name of ours `artist-0`, ...; yield what each stands for.

    Names of trials are text from outside: among the ids of a page they could be any.
    """
    artists = [one for one in _artists(figure) if one.get_gid() is not None]
    gids = {f"{GID}{number}": str(one.get_gid()) for number, one in enumerate(artists)}
    try:
        for name, one in zip(gids, artists, strict=True):
            one.set_gid(name)
        yield gids
    finally:
        for gid, one in zip(gids.values(), artists, strict=True):
            one.set_gid(gid)


def _tag(text: str, prefix: str, used: set[str], gids: dict[str, str]) -> str:
    """Return a tag as a page has it."""
    if text.startswith("</"):
        return text
    found = re.search(r'\bid="([^"]*)"', text)
    if found is not None:
        name = found[1]
        if name in gids:
            kind = "mark" if gids[name] in MARKS else "trial"
            words = f'data-{kind}="{html.escape(clean(gids[name]))}"'
        else:
            words = f'id="{prefix}-{name}"' if name in used else ""
        text = text[: found.start()] + words + text[found.end() :]
        text = text.replace(" >", ">")
        if name in gids:
            return text
    text = re.sub(r'xlink:href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    if text.startswith("<use"):  # the marker itself has its stroke
        text = re.sub(r"stroke(?:-[a-z]+)?: [^;\"]*;?\s*", "", text).replace(' style=""', "")
    text = re.sub(r'style="[^"]*"', _style, text)
    text = NUMBERS.sub(_rounded, text)
    text = re.sub(r'\bd="([^"]*)"', _path, text)
    return re.sub(r' transform="rotate\(-?0(?: [^)]*)?\)"', "", text)


def _style(match: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;\"]*;?\s*", "", match[0])
    # The short form names the font last.
    text = re.sub(r"font: (\d+|bold) ([\d.]+px) [^;\"]*", r"font-weight:\1;font-size:\2", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size:\1", text)
    text = COLOUR.sub(lambda match: THEMED.get(match[0].lower(), match[0]), text)
    return re.sub(r"([:;])\s+", r"\1", text).replace(';"', '"')


def _rounded(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _path(match: re.Match[str]) -> str:
    steps = re.sub(r"\s+", " ", match[1].strip())
    steps = re.sub(r" ?([A-Za-z]) ?", r"\1", steps)
    return f'd="{steps}"'


def _with_root(text: str, title: str) -> str:
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None, "matplotlib writes one"
    name = html.escape(title)
    label = f' aria-label="{name}"' if title else ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" class="figure" role="img"'
        f'{label} style="{ROOT}">' + (f"<title>{name}</title>" if title else "")
    )
    return head + text[text.index(">") + 1 :]
