"""What the figures share: colours, markers, axes, labels that do not overlap."""

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from raybench.core.text import clean

# Okabe and Ito's colours: told apart by colour-blind readers.
FRAMEWORK_COLOURS = {"torch": "#D55E00", "tensorflow": "#0072B2"}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""In an order in which neighbours are told apart."""
PHASE_COLOURS = {
    "queue": "#DDDDDD",
    "start": "#999999",
    "lost": "#D55E00",
    "setup": "#56B4E9",
    "compile": "#0072B2",
    "train": "#E69F00",
    "eval": "#009E73",
    "checkpoint": "#CC79A7",
    "report": "#000000",
    "other": "#F0E442",
}
WORKER_MARKERS = {1: "o", 2: "s", 4: "^", 8: "D", 16: "P", 32: "X"}
QUIET, INK = "#C4C4C4", "#333333"
NOTHING = "no run has finished"


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of one axes, in inches at 100 dpi; pyplot never hears of it."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    axes = figure.subplots()
    dress(axes)
    return figure, axes


def dress(axes: Axes) -> None:
    """Take away the frame, add a quiet grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def say(figure: Figure, axes: Axes, text: str) -> Figure:
    """Write `text` where the data would be, and return the figure."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
    return figure


def colour_of(framework: str) -> str:
    """Return the framework's colour."""
    return FRAMEWORK_COLOURS.get(framework, "#009E73")


def colour(number: int) -> str:
    """Return the colour of the first, second, ... line."""
    return COLOURS[number % len(COLOURS)]


def line_of(number: int) -> str:
    """Return the line style of the first, second, ... line: another one for each round of
    `COLOURS`."""
    return ("-", "--", ":", "-.")[number // len(COLOURS) % 4]


def marker_of(num_workers: int) -> str:
    """Return the marker of a worker count."""
    return WORKER_MARKERS.get(int(num_workers), "h")


def point(axes: Axes, row: pd.Series, x: float, y: float, *, is_filled: bool) -> None:
    """Draw one configuration: filled where it is confirmed, hollow where it ran once."""
    colour = colour_of(row["framework"])
    axes.plot(
        x,
        y,
        marker=marker_of(row["num_workers"]),
        markersize=8 if is_filled else 6.5,
        markerfacecolor=colour if is_filled else "white",
        markeredgecolor="white" if is_filled else colour,
        markeredgewidth=1 if is_filled else 1.6,
        linestyle="none",
        zorder=4 if is_filled else 3,
        gid=str(row["trial"]),
    )


def point_legend(
    figure: Figure,
    rows: pd.DataFrame,
    *,
    kinds: Sequence[tuple[str, bool]],
    more: Sequence[Artist] = (),
) -> None:
    """Explain colours, markers and fillings; `kinds` are (words, is_filled)."""
    handles: list[Artist] = [
        Patch(color=colour_of(name), label=plain(name)) for name in sorted(set(rows["framework"]))
    ]
    for count in sorted(set(rows["num_workers"])):
        label = plural(count, "worker")
        handles.append(
            Line2D([], [], marker=marker_of(count), linestyle="none", color=INK, label=label)
        )
    for words, is_filled in kinds:
        face = INK if is_filled else "white"
        handles.append(
            Line2D([], [], marker="o", linestyle="none", color=INK, mfc=face, label=words)
        )
    handles += [Line2D([], [], color=INK, linewidth=1.4, label="Pareto front"), *more]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)


def plain_ticks(axes: Axes, which: str) -> None:
    """Label a log axis, its limits set, 1, 2, 5, 10 instead of powers of ten."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    is_short = high < 15 * low
    axis.set_major_locator(
        LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if is_short else (1.0, 2.0, 5.0))
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def window(low: float, high: float, *, margin: float = 1.3) -> tuple[float, float]:
    """Return the limits of a log axis around `low` to `high`, never so near that ticks run out."""
    least = 2.2  # either side of the middle: a factor of about five in all
    middle = (low * high) ** 0.5
    return min(low / margin, middle / least), max(high * margin, middle * least)


def plain(text: str) -> str:
    """Return text from outside so that matplotlib reads no formula in it."""
    return "\n".join(map(clean, text.split("\n"))).replace("$", r"\$")


def wrapped(text: str, width: int) -> str:
    """Return text from outside in lines of `width` characters, broken at spaces where it can be."""
    return plain("\n".join(textwrap.wrap(clean(text), width)))


def plural(number: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
