"""The searched keys: how much the result hangs on each, and the outcome over its range (numbers as
they are or by their log, or names), with where the optimum is flat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from raybench.report.figures import parts
from raybench.report.figures.batches import Outcome, outcome, outcome_axis, plateau
from raybench.results.analyses import importance_of
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.spec.text import clean

MOST_BARS = 12
"""Keys that a figure has room for."""
UNKNOWN = "too few runs to say what mattered"


def importance_figure(results: Study) -> Figure:
    """The share of each key in what all searched keys tell of the score, most first.

    The thin line is the range over fifths of the runs: where it reaches 0, the key may not matter.
    """
    table = importance_of(results).head(MOST_BARS)
    figure, axes = parts.new_figure(parts.WIDTH, 0.9 + 0.34 * max(len(table), 2))
    if table.empty:
        return parts.say(figure, axes, UNKNOWN)
    shares, places = 100 * table["importance"], np.arange(len(table))
    names = [parts.wrapped(str(key), 30) for key in table["key"]]
    axes.barh(places, shares, height=0.55, color=parts.COLOURS[0])
    ends = 100 * table[["low", "high"]].to_numpy()
    axes.hlines(places, ends[:, 0], ends[:, 1], color=parts.INK, linewidth=1.2)
    right = np.maximum(ends[:, 1], shares)
    for place, share in enumerate(shares):
        words = f" {share:.0f} %"
        axes.text(right[place], place, words, va="center", fontsize=parts.SMALL, color=parts.INK)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    end = 1.15 * max(right.max(), 1.0)
    ticks = [tick for tick in MaxNLocator(6).tick_values(0, end) if tick < 0.94 * end]
    axes.set(xlim=(0, end), xticks=ticks)
    axes.set_xlabel("share of what they tell [%]")
    explained, runs = float(table["explained"].iloc[0]), int(table["runs"].iloc[0])
    words = (
        f"by {parts.plural(runs, 'run')}; the keys explain {100 * explained:.0f} % of unseen runs"
    )
    style = {"fontsize": parts.TEXT, "color": parts.INK}
    figure.suptitle(words, x=0.01, ha="left", **style)
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


@dataclass(frozen=True)
class Values:
    """Where each value of a key lies on an axis from 0 to 1."""

    places: np.ndarray
    """Of every row; names are scattered a little, so that runs do not hide each other."""
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    is_named: bool
    """Whether they are names: then a value is a stripe as wide as `stripe`."""
    stripe: float = 0.0


def values_of(results: Study, key: str, rows: pd.DataFrame) -> Values:
    """Return the places of the values that `rows` have of a searched key."""
    column = rows[key]
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        texts = [clean(str(one)) for one in column]
        return _names(pd.Series(texts, dtype=object), sorted(set(texts)))
    numbers = column.astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    every = np.unique(numbers[np.isfinite(numbers)])
    if len(every) > FEW:
        return _numbers(numbers, is_log=_is_log(results, key, every))
    # Side by side, runs with the same of few numbers do not hide each other.
    texts = [parts.number(float(one)) if np.isfinite(one) else "none" for one in numbers]
    return _names(pd.Series(texts, dtype=object), [parts.number(float(one)) for one in every])


def _is_log(results: Study, key: str, every: np.ndarray) -> bool:
    """Return whether a key was searched by its log, or where the file does not say, spans much."""
    space: Any = results.study["study"].get("space", {}).get(key)
    every_range = space if isinstance(space, list) else [space]
    ranges = [one for one in every_range if isinstance(one, dict) and "low" in one]
    is_wide = every.max() >= WIDE * every.min()
    if ranges:
        is_wide = any(one.get("log") or one.get("log2") for one in ranges)
    return bool(every.min() > 0 and is_wide)


def _numbers(numbers: np.ndarray, *, is_log: bool) -> Values:
    known = numbers[np.isfinite(numbers)]
    low, high = float(known.min()), float(known.max())
    if is_log:
        ticks = _log_ticks(low, high)
        places = np.log(numbers / low) / np.log(high / low)
        at = np.log(ticks / low) / np.log(high / low)
    else:
        whole = bool((known == known.round()).all())
        every = np.asarray(MaxNLocator(4, integer=whole).tick_values(low, high))
        ticks = every[(every >= low) & (every <= high)]
        places, at = (numbers - low) / (high - low), (ticks - low) / (high - low)
    return Values(places, tuple(at), tuple(map(parts.number, ticks)), is_named=False)


def _log_ticks(low: float, high: float) -> np.ndarray:
    """Return round numbers between two ends: powers of two of batches and the like, else of ten."""
    ends = np.log2([low, high])
    if low >= 1 and np.allclose(ends, ends.round()):
        powers = np.arange(ends[0], ends[1] + 0.5)
        return np.asarray(2.0 ** powers[:: max(-(-len(powers) // 5), 1)])
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = powers if high / low > 90 else np.sort(np.outer(powers, (1, 2, 5)).ravel())
    ticks = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
    if len(ticks) < 2:  # a narrow range, without a round number in it
        return np.array([float(f"{end:.2g}") for end in np.geomspace(low, high, 3)])
    return np.asarray(ticks[:: max(-(-len(ticks) // 5), 1)])


def _names(texts: "pd.Series[str]", known: Sequence[str]) -> Values:
    """`known`: the different ones, in the order of the axis."""
    counts = texts.value_counts()
    is_many = len(counts) > MOST_NAMES
    often = set(counts.index[: MOST_NAMES - is_many])
    names = [name for name in dict.fromkeys((*known, *counts.index)) if name in often]
    names += ["others"] if is_many else []
    order = {name: place for place, name in enumerate(names)}
    codes = np.array([order.get(text, len(names) - 1) for text in texts], dtype=float)
    # Always the same scatter: a figure of the same study is the same figure.
    scatter = np.random.default_rng(0).uniform(-0.28, 0.28, len(codes))
    places, ticks = (codes + 0.5 + scatter) / len(names), np.arange(len(names)) + 0.5
    short = [one if len(one) <= LONGEST else one[: LONGEST - 1] + "…" for one in names]
    labels = tuple(map(parts.plain, short))
    return Values(places, tuple(ticks / len(names)), labels, True, 1 / len(names))


MOST_KEYS = 8
MOST_POINTS = 500
"""Points in all panels together."""
PANEL = 1.9
"""Inches of a panel's height."""
STRIP = 0.13
"""Part of a panel's height for what missed the target."""
SHADE = "#009E73"
SHAPES = {"torch": "o", "tensorflow": "s"}


def slices_figure(results: Study) -> Figure:
    """The outcome over the values of each searched key, those that matter most first.

    A point is a configuration; a cross at the upper edge is one that missed the target. The shaded
    range is the plateau: values of configurations statistically tied with the best, or within
    a tenth of it.
    """
    found, keys = outcome(results), keys_by_importance(results)
    shown = keys[:MOST_KEYS]
    if found.known.empty or not shown:
        figure, axes = parts.new_figure(parts.WIDTH, 2.6)
        return parts.say(figure, axes, parts.NOTHING if found.rows.empty else "nothing to compare")
    figure, grid = parts.panels(len(shown), PANEL, 0.3)
    near, most = plateau(results, found), max(MOST_POINTS // len(shown), 60)
    missed, rows = found.missed, _some(found, near, most)
    for axes, key in zip(grid, shown, strict=False):
        _panel(axes, found, values_of(results, key, found.rows), rows, near)
        axes.set_title(parts.wrapped(key, 36), fontsize=parts.TEXT, loc="left")
    outcome_axis(grid[0], results, found)
    if found.is_seconds and len(missed):
        _strip(grid[0])
    figure.supylabel(found.words, fontsize=parts.TEXT, color=parts.INK)
    keys_drawn = _keys(found, rows, near)
    if len(keys) > len(shown):
        keys_drawn.append(
            parts.key(f"the first {len(shown)} of {len(keys)} keys", linestyle="none")
        )
    parts.legend_below(figure, keys_drawn)
    return figure


def _some(found: Outcome, near: set[str], most: int) -> pd.DataFrame:
    """Return what is drawn of very many: a third of it from the plateau, always the best."""
    if len(found.rows) <= most:
        return found.rows
    known, missed = found.known, found.missed
    is_near = known["trial"].isin(near)
    kept = [
        one.iloc[parts.spread(range(len(one)), most // share)]
        for one, share in ((known[is_near], 3), (known[~is_near], 2), (missed, 6))
    ]
    return pd.concat([known.head(1), *kept]).drop_duplicates("trial")


def plateaus(results: Study) -> pd.DataFrame:
    """Return a row for each key: its best value, and from what to what it is as good.

    Columns: key, best, from, to; of names `from` lists all that are as good, and `to` is empty.
    """
    found = outcome(results)
    near = plateau(results, found)
    rows = found.known[found.known["trial"].isin(near)]
    table = []
    for key in keys_by_importance(results) if len(rows) else []:
        best = rows[key].iloc[0]
        if values_of(results, key, found.rows).is_named:
            names = ", ".join(sorted(set(rows[key].astype(str))))
            table.append({"key": key, "best": str(best), "from": names, "to": ""})
        else:
            ends = {"from": rows[key].min(), "to": rows[key].max()}
            table.append({"key": key, "best": best} | ends)
    return pd.DataFrame(table, columns=["key", "best", "from", "to"])


def _panel(axes: Axes, found: Outcome, values: Values, rows: pd.DataFrame, near: set[str]) -> None:
    places = pd.Series(values.places, index=found.rows.index)
    _shade(axes, values, places[found.rows["trial"].isin(near)])
    for framework, own in rows[rows["outcome"].notna()].groupby("framework", dropna=False):
        shape = SHAPES.get(str(framework), "^")
        for row, x in zip(parts.tuples(own), places[own.index], strict=True):
            style: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.5, "zorder": 3}
            style["markeredgecolor"] = parts.PAPER
            colour = parts.colour_of(framework)
            parts.mark(axes, x, row.outcome, str(row.trial), marker=shape, color=colour, **style)
    missed = rows[rows["outcome"].isna()]
    if found.is_seconds and len(missed):
        top = axes.get_xaxis_transform()
        style = {"color": parts.QUIET, "markersize": 5, "linestyle": "none", "zorder": 2}
        axes.plot(places[missed.index], np.full(len(missed), 0.94), "x", transform=top, **style)
        axes.plot([0, 1], [1 - STRIP] * 2, color=parts.QUIET, lw=0.7, transform=axes.transAxes)
    best: Any = found.known.iloc[0]
    style = {"markersize": 12, "markeredgecolor": parts.PAPER, "zorder": 6}
    axes.plot(places[best.name], best["outcome"], "*", color=parts.INK, **style)
    axes.set_xlim((-0.02, 1.02) if values.is_named else (-0.05, 1.05))
    axes.set_xticks(values.ticks, values.labels)
    if values.is_named:
        axes.grid(visible=False, axis="x")
        if max(map(len, values.labels)) * len(values.labels) > 34:  # they would touch
            for label in axes.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")


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


def _shade(axes: Axes, values: Values, places: "pd.Series[float]") -> None:
    known = places.dropna()
    if known.empty:
        return
    style: dict[str, Any] = {"color": SHADE, "alpha": 0.16, "linewidth": 0, "zorder": 0}
    if values.is_named:
        for stripe in sorted(set((known / values.stripe).astype(int))):
            axes.axvspan(stripe * values.stripe, (stripe + 1) * values.stripe, **style)
    else:
        axes.axvspan(known.min() - 0.015, known.max() + 0.015, **style)


def _keys(found: Outcome, rows: pd.DataFrame, near: set[str]) -> list[Artist]:
    names = sorted(set(rows["framework"].astype(str)))
    keys: list[Artist] = [
        parts.dot(parts.plain(name), parts.colour_of(name), marker=SHAPES.get(name, "^"))
        for name in names
    ]
    keys.append(parts.key("best", marker="*", markersize=11, linestyle="none"))
    if len(near) > 1:
        words = f"as good: {parts.plural(len(near), 'configuration')}"
        keys.append(Patch(color=SHADE, alpha=0.16, label=words))
    if found.is_seconds and len(found.missed):
        words = f"missed the target ({len(found.missed):,})"
        keys.append(parts.key(words, parts.QUIET, marker="x", linestyle="none"))
    drawn = int(rows["outcome"].notna().sum())
    if drawn < len(found.known):
        keys.append(parts.key(f"{drawn:,} of {len(found.known):,} drawn", linestyle="none"))
    return keys
