"""The searched keys: how much the result hangs on each, and the outcome over its range (numbers as
they are or by their log, or names), with where the optimum is flat."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybench.report.figures import parts
from raybench.report.figures.batches import Outcome, outcome, outcome_axis, plateau
from raybench.results.analyses import importance_of
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.spec.text import clean, counted, shorten

MOST_BARS = 12
"""Keys that a figure has room for."""


def importance_figure(results: Study) -> Figure:
    """The share of each key in what all searched keys tell of the score, most first.

    The thin line is the range over fifths of the runs: where it reaches 0, the key may not matter.
    """
    table = importance_of(results).head(MOST_BARS)
    figure, axes = parts.new_figure(0.9 + 0.34 * max(len(table), 2))
    shares, places = 100 * table["importance"], np.arange(len(table))
    low, high = 100 * table["low"], 100 * table["high"]
    axes.barh(places, shares, height=0.55, color=parts.COLOURS[0])
    axes.hlines(places, low, high, color=parts.INK, linewidth=1.2)
    right = np.maximum(high, shares)
    for place, share in enumerate(shares):
        parts.write(axes, right[place], place, f" {share:.0f} %")
    axes.set_yticks(places, [parts.wrapped(str(key), 30) for key in table["key"]])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    end = 1.15 * max(right.max(), 1.0)
    ticks = [tick for tick in MaxNLocator(6).tick_values(0, end) if tick < 0.94 * end]
    axes.set(xlim=(0, end), xticks=ticks)
    axes.set_xlabel("share of what they tell [%]")
    runs = counted(int(table["runs"].iloc[0]), "run")
    words = f"by {runs}; the keys explain {100 * table['explained'].iloc[0]:.0f} % of unseen runs"
    figure.suptitle(words, x=0.01, ha="left", fontsize=parts.TEXT, color=parts.INK)
    return figure


def keys_by_importance(results: Study) -> list[str]:
    """Return the searched keys that have more than one value, those that matter most first."""
    rows = configurations(results)
    varied = [
        key for key in results.searched if key in rows and len(set(rows[key].astype(str))) > 1
    ]
    known = list(importance_of(results)["key"])
    return sorted(varied, key=lambda key: known.index(key) if key in known else len(known))


WIDE = 20.0
"""Largest over smallest value from which on an axis is a log."""
FEW = 6
"""Different numbers up to which each has a stripe of the axis, as names have."""
MOST_NAMES = 8
"""Names that an axis has room for; rarer ones stand in one place."""
LONGEST = 16
"""Characters of a name on an axis."""


def values_of(key: str, rows: pd.DataFrame) -> tuple["pd.Series[float]", list[str]]:
    """Return where the values of a searched key lie: the numbers themselves, and no names.

    Of names, and of few numbers, the second are the names on the axis, and the first their places:
    0, 1, ..., scattered a little so that runs do not hide each other.
    """
    column = rows[key]
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        texts = [clean(str(one)) for one in column]
        known = sorted(set(texts))
    else:
        numbers = column.astype("Float64").astype("float64")
        every = sorted(set(numbers[np.isfinite(numbers)]))
        if len(every) > FEW:
            return numbers, []
        known = [parts.number(one) for one in every]
        texts = [parts.number(one) if np.isfinite(one) else "none" for one in numbers]
    often = [name for name, _ in Counter(texts).most_common()]
    if is_many := len(often) > MOST_NAMES:
        often = often[: MOST_NAMES - 1]
    names = [name for name in dict.fromkeys((*known, *often)) if name in often]
    names += ["others"] * is_many
    codes = [names.index(one) if one in often else len(names) - 1 for one in texts]
    # Always the same scatter: a figure of the same study is the same figure.
    scatter = np.random.default_rng(0).uniform(-0.28, 0.28, len(codes))
    return pd.Series(codes + scatter, index=rows.index), names


def is_log(results: Study, key: str, values: "pd.Series[float]") -> bool:
    """Return whether a key was searched by its log, or where the file does not say, spans much."""
    space: Any = results.study["study"].get("space", {}).get(key)
    every_range = space if isinstance(space, list) else [space]
    ranges = [one for one in every_range if isinstance(one, dict) and "low" in one]
    is_wide = values.max() >= WIDE * values.min()
    if ranges:
        is_wide = any(one.get("log") or one.get("log2") for one in ranges)
    return bool(values.min() > 0 and is_wide)


MOST_KEYS = 8
MOST_POINTS = 500
"""Points in all panels together."""
PANEL = 1.9
"""Inches of a panel's height."""
STRIP = 0.13
"""Part of a panel's height for what missed the target."""
SHADE: dict[str, Any] = {"color": "#009E73", "alpha": 0.16, "linewidth": 0}
SHAPES = {"torch": "o", "tensorflow": "s"}


def slices_figure(results: Study) -> Figure:
    """The outcome over the values of each searched key, those that matter most first.

    A point is a configuration; a cross at the upper edge is one that missed the target. The shaded
    range is the plateau: values of configurations statistically tied with the best, or within
    a tenth of it.
    """
    found, keys = outcome(results), keys_by_importance(results)
    shown = keys[:MOST_KEYS]
    figure, grid = parts.panels(len(shown), PANEL, 0.3, columns=2, sharey=True)
    near = plateau(results, found)
    rows = _some(found, near, max(MOST_POINTS // len(shown), 60))
    for axes, key in zip(grid, shown, strict=False):
        _panel(axes, results, found, key, rows, near)
        parts.head(axes, parts.wrapped(key, 36), parts.TEXT)
    outcome_axis(grid[0], results, found)
    if found.is_seconds and len(found.missed):
        _strip(grid[0])
    parts.y_title(figure, found.words)
    legend = _keys(found, rows, near)
    if len(keys) > len(shown):
        legend.append(parts.note(f"the first {len(shown)} of {len(keys)} keys"))
    parts.legend_below(figure, legend)
    return figure


def _some(found: Outcome, near: set[str], most: int) -> pd.DataFrame:
    """Return what is drawn of very many: a third of it from the plateau, always the best."""
    if len(found.rows) <= most:
        return found.rows
    known, is_near = found.known, found.known["trial"].isin(near)
    kept = ((known[is_near], 3), (known[~is_near], 2), (found.missed, 6))
    drawn = [parts.some(one, most // share) for one, share in kept]
    return pd.concat([known.head(1), *drawn]).drop_duplicates("trial")


def plateaus(results: Study) -> pd.DataFrame:
    """Return a row for each key: its best value, and from what to what it is as good.

    Columns: key, best, from, to; of names `from` lists all that are as good, and `to` is empty.
    """
    found = outcome(results)
    rows = found.known[found.known["trial"].isin(plateau(results, found))]
    table = []
    for key in keys_by_importance(results) if len(rows) else []:
        best, ends = rows[key].iloc[0], (rows[key].min(), rows[key].max())
        if values_of(key, found.rows)[1]:
            best, ends = str(best), (", ".join(sorted(set(rows[key].astype(str)))), "")
        table.append((key, best, *ends))
    return pd.DataFrame(table, columns=["key", "best", "from", "to"])


def _panel(
    axes: Axes, results: Study, found: Outcome, key: str, rows: pd.DataFrame, near: set[str]
) -> None:
    places, names = values_of(key, found.rows)
    good = places[found.rows["trial"].isin(near)].dropna()
    if names:
        _names_axis(axes, names, good)
    else:
        _numbers_axis(axes, places.dropna(), good, is_log=is_log(results, key, places))
    for row in parts.tuples(rows[rows["outcome"].notna()]):
        style: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.5, "zorder": 3}
        style |= {"marker": SHAPES.get(row.framework, "^"), "markeredgecolor": parts.PAPER}
        colour = parts.colour_of(row.framework)
        parts.mark(axes, places[row.Index], row.outcome, str(row.trial), color=colour, **style)
    missed = rows[rows["outcome"].isna()]
    if found.is_seconds and len(missed):
        top = axes.get_xaxis_transform()
        style = {"color": parts.QUIET, "markersize": 5, "linestyle": "none", "zorder": 2}
        axes.plot(places[missed.index], np.full(len(missed), 0.94), "x", transform=top, **style)
        axes.plot([0, 1], [1 - STRIP] * 2, color=parts.QUIET, lw=0.7, transform=axes.transAxes)
    best: Any = found.known.iloc[0]
    style = {"markersize": 12, "markeredgecolor": parts.PAPER, "zorder": 6}
    axes.plot(places[best.name], best["outcome"], "*", color=parts.INK, **style)


def _names_axis(axes: Axes, names: list[str], good: "pd.Series[float]") -> None:
    labels = [parts.plain(shorten(name, LONGEST)) for name in names]
    axes.set_xlim(-0.55, len(names) - 0.45)
    axes.set_xticks(range(len(names)), labels)
    axes.grid(visible=False, axis="x")
    if max(map(len, labels)) * len(labels) > 34:  # they would touch
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    for place in sorted(set(good.round())):
        axes.axvspan(place - 0.5, place + 0.5, zorder=0, **SHADE)


def _numbers_axis(
    axes: Axes, values: "pd.Series[float]", good: "pd.Series[float]", *, is_log: bool
) -> None:
    low, high = values.min(), values.max()
    if is_log:
        axes.set_xscale("log")
    ends = axes.xaxis.get_transform()

    def wider(low: float, high: float, share: float) -> np.ndarray:
        """Return two values, further apart by a share of the axis either way."""
        room = share * np.diff(ends.transform([values.min(), values.max()]))[0]
        return ends.inverted().transform(ends.transform([low, high]) + np.array([-room, room]))

    axes.set_xlim(*wider(low, high, 0.05))
    if len(good):
        axes.axvspan(*wider(good.min(), good.max(), 0.015), zorder=0, **SHADE)
    if is_log:
        parts.plain_ticks(axes, "x", is_narrow=True)
    else:
        is_whole = bool((values == values.round()).all())
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=is_whole))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: parts.number(value)))


def _strip(axes: Axes) -> None:
    """Leave room above the seconds for what missed the target, and say so on the axis."""
    low, high = axes.get_ylim()
    top = low * (high / low) ** (1 / (1 - STRIP))
    axes.set_ylim(low, top)
    parts.plain_ticks(axes, "y")
    ticks = [float(tick) for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    labels = [*map(parts.number, ticks), "missed"]
    axes.set_yticks([*ticks, low * (top / low) ** 0.94], labels)
    axes.minorticks_off()


def _keys(found: Outcome, rows: pd.DataFrame, near: set[str]) -> list[Artist]:
    keys: list[Artist] = [
        parts.dot(parts.plain(name), parts.colour_of(name), marker=SHAPES.get(name, "^"))
        for name in sorted(set(rows["framework"].astype(str)))
    ]
    keys.append(parts.key("best", marker="*", markersize=11, linestyle="none"))
    if len(near) > 1:
        keys.append(Patch(label=f"as good: {counted(len(near), 'configuration')}", **SHADE))
    if found.is_seconds and len(found.missed):
        words = f"missed the target ({len(found.missed):,})"
        keys.append(parts.key(words, parts.QUIET, marker="x", linestyle="none"))
    drawn = int(rows["outcome"].notna().sum())
    if drawn < len(found.known):
        keys.append(parts.note(f"{drawn:,} of {len(found.known):,} drawn"))
    return keys
