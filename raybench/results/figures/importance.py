"""What mattered: how much the result hangs on each searched key."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raybench.results.figures import parts
from raybench.results.load import StudyResults

MOST_KEYS = 12
"""Keys that a figure has room for."""
UNKNOWN = "too few runs to say what mattered"


def importance_figure(results: StudyResults) -> Figure:
    """The share of each key in what all searched keys tell of the score, most first.

    The thin line is the range over fifths of the runs: where it reaches 0, the key may not matter.
    """
    table = results.importance.head(MOST_KEYS)
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


def keys_by_importance(results: StudyResults) -> list[str]:
    """Return the searched keys that have more than one value, those that matter most first."""
    rows = results.configurations
    varied = [
        key for key in results.searched if key in rows and rows[key].astype(str).nunique() > 1
    ]
    known = list(results.importance["key"])
    return sorted(varied, key=lambda key: known.index(key) if key in known else len(known))
