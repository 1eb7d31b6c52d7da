"""Building blocks of all figures: sizes, colors, markers, axes, legends, text, the selection of a
limited number of points, and the SVG of a figure for a page.

The SVG of matplotlib has six decimals per number, a global style sheet, and the same ids in every
figure. `svg` changes it so that several figures can be on one page, with selectable text, the
colors of the page's theme, and trials that can be clicked.
"""

import html
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from raybench.results.study import Study
from raybench.spec.metric import Metric
from raybench.spec.text import clean, counted

WIDTH = 5.4
"""Width of a figure in inches; it is readable on a phone and not too large on a computer screen."""
TEXT, SMALL = 10.5, 10.0
"""Font sizes in points; smaller text would not be readable on a phone."""
LINE = 0.185
"""Height of a line of a legend in inches."""
ROOM = 67
"""Maximum length of a legend label that fits into the width of a figure, in characters."""
BESIDE = 11
"""Width that each further column of a legend needs for its markers, in characters."""

# Okabe and Ito's colors: color-blind readers distinguish them.
FRAMEWORK_COLORS = {"torch": "#D55E00", "tensorflow": "#0072B2"}
OTHER_COLOR = "#009E73"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colors of lines, in an order in which adjacent colors differ most."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WORKER_MARKERS = {1: "o", 2: "s", 4: "^", 8: "D", 16: "P", 32: "X"}
LINE_STYLES = ("-", "--", ":", "-.")
QUIET, INK, GRID, PAPER = "#C4C4C4", "#333333", "#EEEEEE", "#FFFFFF"
"""Colors that are replaced by those of the page's theme; see `svg`."""
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": INK}
MARKS = frozenset({"target", "front", "ideal", "extrapolated", "envelope", "first"})
"""Values of `gid` of a matplotlib artist that are not names of trials."""
FAR = 30.0
"""Maximum end of a time axis, as a multiple of the seconds of the best configuration."""
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be drawn for a study."""

    title: str
    """Heading of the figure."""
    reading: str
    """How to read the figure, in one or two sentences."""
    draw: Callable[[Study], Figure]
    """Function that draws the figure; the study must have data for it (`applies`)."""
    table: Callable[[Study], pd.DataFrame]
    """Function that returns the numbers in the figure as a table; column names are words with
    units."""
    applies: Callable[[Study], bool]
    """Function that returns whether the study has data for the figure."""


def new_figure(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one panel of `height` inches."""
    figure, (axes,) = panels(1, height)
    return figure, axes


def panels(
    number: int, height: float, extra_height: float = 0.0, *, columns: int = 1, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, and the axes of the panels. pyplot is not used.

    Args:
        number: Number of panels.
        height: Height of a row of panels in inches.
        extra_height: Height that is added to the figure in inches.
        columns: Number of panels side by side.
        shared: Keyword arguments of `Figure.subplots`.
    """
    lines = -(-number // columns)
    size = (WIDTH, height * lines + extra_height)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    all_axes = list(figure.subplots(lines, min(number, columns), squeeze=False, **shared).ravel())
    for axes in all_axes[:number]:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", labelsize=TEXT, color=INK, labelcolor=INK)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(fontsize=TEXT, color=INK)
    for axes in all_axes[number:]:
        axes.set_axis_off()
    return figure, all_axes


def y_title(figure: Figure, label: str) -> None:
    """Add a single label for the y axes of all panels."""
    figure.supylabel(label, fontsize=TEXT, color=INK)


def rows_only(axes: Axes) -> None:
    """Hide the y grid and the left spine, for axes whose y positions are rows instead of
    numbers."""
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")


def head(axes: Axes, text: str, size: float = SMALL) -> None:
    """Add a left-aligned title; text from the user must be escaped with `plain` or `wrapped`."""
    axes.set_title(text, fontsize=size, color=INK, loc="left")


def write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Add text at a point in data coordinates."""
    arguments: dict[str, Any] = {"fontsize": SMALL, "color": INK, "va": "center"} | style
    axes.text(x, y, text, **arguments)


def show_message(figure: Figure, axes: Axes, text: str) -> Figure:
    """Show text in place of data; return the figure."""
    axes.set_axis_off()
    write(axes, 0.5, 0.5, text, transform=axes.transAxes, ha="center", fontsize=TEXT)
    return figure


def legend_below(
    figure: Figure, handles: Sequence[Artist], *, columns: int | None = None, max_columns: int = 3
) -> None:
    """Add a legend below the figure, and increase the height of the figure by that of the legend.

    Args:
        figure: The figure.
        handles: Legend entries.
        columns: Number of columns; None for as many as fit.
        max_columns: Maximum number of columns if `columns` is None.
    """
    columns = columns or columns_for(
        [str(handle.get_label()) for handle in handles], max_columns=max_columns
    )
    legend = figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.2,
        **LEGEND,
    )
    lines = [1 + text.get_text().count("\n") for text in legend.get_texts()]
    rows = -(-len(lines) // columns)
    higher = max(sum(lines[start : start + rows]) for start in range(0, len(lines), rows))
    figure.set_figheight(figure.get_figheight() + LINE * (higher + 1))


def columns_for(labels: Sequence[str], *, max_columns: int) -> int:
    """Return how many columns a legend with the given labels may have, at most `max_columns`."""
    longest = [max(map(len, label.split("\n"))) for label in labels]
    for columns in range(min(max_columns, len(labels)), 1, -1):
        rows = -(-len(labels) // columns)
        widths = [max(longest[start : start + rows]) for start in range(0, len(labels), rows)]
        if sum(widths) + BESIDE * (columns - 1) <= ROOM:
            return columns
    return 1


def color_of(framework: object) -> str:
    """Return the color of a framework."""
    return FRAMEWORK_COLORS.get(str(framework), OTHER_COLOR)


def color(number: int) -> str:
    """Return the color of line `number`, counted from 0."""
    return COLORS[number % len(COLORS)]


def marker(number: int) -> str:
    """Return the marker of line `number`, counted from 0."""
    return MARKERS[number % len(MARKERS)]


def marker_of(num_workers: float) -> str:
    """Return the marker of a worker count, which may be NaN."""
    return "h" if num_workers != num_workers else WORKER_MARKERS.get(int(num_workers), "h")


def key(label: str, color: str = INK, **style: Any) -> Line2D:
    """Return a legend entry with a line; pass `linestyle="none"` to show only a marker."""
    return Line2D([], [], **({"color": color, "label": label} | style))


def dot(label: str, color: str = INK, *, marker: str = "o", is_filled: bool = True) -> Line2D:
    """Return a legend entry with a marker, which is hollow unless `is_filled`."""
    face = color if is_filled else PAPER
    return key(label, color, linestyle="none", marker=marker, markerfacecolor=face, markersize=7)


def note(label: str) -> Line2D:
    """Return a legend entry that consists of text only."""
    return key(label, linestyle="none")


def frameworks(names: "pd.Series[Any]") -> list[Artist]:
    """Return one legend entry per framework."""
    distinct = sorted(set(names.astype(str)))
    return [Patch(color=color_of(name), label=plain(name)) for name in distinct]


def workers(counts: "pd.Series[Any]", *, is_filled: bool = True) -> list[Artist]:
    """Return one legend entry per worker count."""
    entries = [(counted(int(count), "worker"), marker_of(count)) for count in sorted(set(counts))]
    return [dot(label, marker=marker, is_filled=is_filled) for label, marker in entries]


def stacked_bars(
    axes: Axes,
    places: Sequence[Any] | np.ndarray,
    stack: Iterable[tuple[str, np.ndarray, tuple[str, str]]],
    height: float,
) -> tuple[list[Artist], np.ndarray]:
    """Draw horizontal stacked bars.

    Args:
        axes: Axes on which to draw.
        places: Position or name of each bar.
        stack: Label, width in each bar, and (color, hatching) of each part of the stack.
        height: Height of a bar in data units.

    Returns:
        - One legend entry per part of the stack.
        - The right end of each bar in data units.
    """
    left, keys = np.zeros(len(places)), list[Artist]()
    for label, widths, (color, hatch) in stack:
        style: dict[str, Any] = {"facecolor": color, "hatch": hatch}
        style |= {"edgecolor": PAPER, "linewidth": 0}
        axes.barh(places, widths, left=left, height=height, **style)
        keys.append(Patch(label=label, **style))
        left += widths
    return keys, left


def mark(axes: Axes, x: float, y: float, trial: str, **style: Any) -> None:
    """Draw the marker of a trial, in half the time that `axes.plot` takes."""
    axes.add_line(Line2D([x], [y], linestyle="none", gid=trial, **style))


def log_axis(axes: Axes, which: str, low: float, high: float, *, margin: float = 1.3) -> None:
    """Make an axis (`x` or `y`) logarithmic, with ticks at 1, 2, 5, 10, ...

    It extends from `low` to `high`, with a factor of `margin` on either side.
    """
    min_factor = 2.2  # on either side of the middle, since a shorter axis would have too few ticks
    middle = (low * high) ** 0.5
    ends = (min(low / margin, middle / min_factor), max(high * margin, middle * min_factor))
    axes.set(**{f"{which}scale": "log", f"{which}lim": ends})
    plain_ticks(axes, which)


def plain_ticks(axes: Axes, which: str, *, is_narrow: bool = False) -> None:
    """Label a log axis with 1, 2, 5, 10 instead of powers of ten; its limits must be set."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    steps: tuple[float, ...] = (1.0, 2.0, 5.0)
    if high < 15 * low:
        steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    elif high > 2000 * low:
        steps = (1.0,)
    if is_narrow:
        steps = (1.0, 3.0) if high < 90 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=4 if is_narrow else None))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def number(value: float) -> str:
    """Return the label of a tick, such as `0.0003`, `20`, `20000` or `1e6`."""
    if value and (abs(value) < 1e-4 or abs(value) >= 1e5):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.5g}"


def tuples(table: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a table as named tuples."""
    return table.itertuples()


def spread(items: Sequence[ItemT], limit: int) -> list[ItemT]:
    """Select at most `limit` items that are evenly spaced, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[place] for place in np.linspace(0, len(items) - 1, limit).round().astype(int)]


def some(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Select at most `limit` rows of a table that are evenly spaced; see `spread`."""
    return table.iloc[spread(range(len(table)), limit)]


MOST_ROWS = 50
"""Maximum number of rows in the table of a figure; `trials.csv` contains all runs."""
TRIAL_WORDS = {"trial": "trial", "config": "configuration"}
"""Columns of tables with one row per trial, and their display names."""


def in_words(table: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return the first MOST_ROWS rows of a table for display.

    Args:
        table: The table.
        titles: Titles of the columns to show, keyed by column name; other columns are dropped.
    """
    selected = table[[key for key in titles if key in table]].head(MOST_ROWS)
    for column in selected.select_dtypes("bool"):
        selected[column] = selected[column].map({True: "yes", False: "no"})
    return selected.rename(columns=dict(titles)).reset_index(drop=True)


def of_all(num_drawn: int, num_all: int) -> str:
    """Return text such as `, 300 drawn` if only `num_drawn` of `num_all` are drawn, otherwise
    ""."""
    return f", {num_drawn} drawn" if num_drawn < num_all else ""


def plain(text: str) -> str:
    """Return text from the user, escaped so that matplotlib does not interpret it as a formula."""
    return "\n".join(map(clean, text.split("\n"))).replace("$", r"\$")


def wrapped(text: str, width: int) -> str:
    """Return text from the user, escaped and wrapped at `width` characters."""
    return plain("\n".join(textwrap.wrap(clean(text), width, break_on_hyphens=False)))


SHARE_TICKS = (0, 30, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9, 100)
DATA_SHARE = 0.7
"""Fraction of the height of a panel that is left for data beside titles and labels."""
MARGIN = 0.05
"""Free space above and below the values, as a fraction of their range."""
FAR_BELOW = 0.25
"""Length of the axis of an unbounded metric beyond the baseline value, as a fraction of the range
between the baseline value and the best value. Without a limit, diverged runs would determine the
scale of the figure."""


def drawn(metric: Metric, values: "pd.Series[float]") -> "pd.Series[float]":
    """Convert metric values for a figure: proportions become percentages."""
    return 100 * values if metric.is_share else values


def metric_axis(
    axes: Axes,
    results: Study,
    values: "pd.Series[float] | None" = None,
    *,
    is_labeled: bool = True,
) -> None:
    """Set the scale of a y axis so that good metric values are distinguishable, and draw the
    target.

    For a proportion, the scale is logarithmic in 1 - value, so that 98 % and 99 % are far apart.
    For a positive metric that is minimized, the scale is logarithmic. For all others, it is linear.

    Args:
        axes: Axes on which to draw.
        results: The study.
        values: Values that are drawn; None for the values of all learning curves.
        is_labeled: Whether to label the target.
    """
    metric, target = results.metric, results.target
    values = results.curves[metric.name] if values is None else values
    finite = [*values[np.isfinite(values)], *([] if target is None else [target])]
    if metric.is_share:
        _error_scale(axes, max(finite, default=0.9))
    elif finite:
        _value_scale(axes, results, min(finite), max(finite))
    if target is not None:
        _draw_target(axes, results, target, is_labeled=is_labeled)


def _error_scale(axes: Axes, top: float) -> None:
    floor = 0.001  # so that an error of 0 can be drawn
    axes.set_yscale(
        "function",
        functions=(
            lambda y: -np.log10(np.maximum(1 + floor - y / 100, floor)),
            lambda z: 100 * (1 + floor - 10.0**-z),
        ),
    )
    axes.set_ylim(0, 100 * min(1, 1 - 0.6 * (1 - top)))
    axes.set_yticks(_spaced_ticks(axes, [y for y in SHARE_TICKS if y <= axes.get_ylim()[1]]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _spaced_ticks(axes: Axes, ticks: list[float]) -> list[float]:
    """Select ticks whose labels do not overlap, starting from the largest."""
    points = DATA_SHARE * 72 * axes.bbox.height / axes.figure.dpi
    low, high = axes.transScale.transform([(0, end) for end in axes.get_ylim()])[:, 1]
    chosen: list[float] = []
    for tick in reversed(ticks):
        position = axes.transScale.transform((0, tick))[1]
        previous = axes.transScale.transform((0, chosen[-1]))[1] if chosen else np.inf
        if (previous - position) / (high - low) * points >= 1.3 * TEXT:
            chosen.append(tick)
    return chosen[::-1]


def _value_scale(axes: Axes, results: Study, low: float, high: float) -> None:
    start, is_min = results.objective.baseline_value, results.metric.direction == "min"
    if is_min and low > 0:
        log_axis(axes, "y", low, high if start is None else min(high, 2 * start), margin=1.05)
        return
    if start is not None:
        reach = FAR_BELOW * abs(start - (low if is_min else high))
        low, high = (low, min(high, start + reach)) if is_min else (max(low, start - reach), high)
    room = MARGIN * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)


def _draw_target(axes: Axes, results: Study, target: float, *, is_labeled: bool) -> None:
    is_share = results.metric.is_share
    target = 100 * target if is_share else target
    axes.axhline(target, color=INK, linewidth=1, linestyle=(0, (4, 3)), gid="target")
    if is_labeled:
        hold = results.objective.hold
        hold_note = f"\n{hold} in a row" if hold > 1 else ""
        # The label must not extend beyond the panel.
        place = axes.transAxes.inverted().transform(axes.transData.transform((0, target)))[1]
        side = "top" if place > 0.85 else "bottom" if place < 0.15 else "center"
        label = f"target\n{target:g}{' %' if is_share else ''}{hold_note}"
        write(axes, 1.01, target, label, transform=axes.get_yaxis_transform(), va=side)


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


def svg(figure: Figure, prefix: str, title: str) -> str:
    """Return a figure as an `<svg>` element.

    The element has a `viewBox` and the class `figure`, but no size; a style sheet sets it.
    Elements that belong to a trial have the attribute `data-trial`.

    Args:
        figure: The figure. The `gid` of an artist is the name of a trial, or one of MARKS.
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
    return f'{head} aria-label="{name}"><title>{name}</title>{body}</svg>'


def _artists(parent: Artist) -> Iterator[Artist]:
    """Yield all artists of a figure, except those of its axis objects.

    Access to the artists of an axis would create them.
    """
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

    The tag gets the colors of the page's theme, short numbers, ids that begin with `prefix`, and an
    attribute for the trial to which it belongs. `gids` contains the name of the trial, or one of
    MARKS, keyed by id in the SVG.
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
