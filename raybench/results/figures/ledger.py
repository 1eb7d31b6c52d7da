"""Where the seconds of a study's runs went."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.core.clock import OTHER, PHASES
from raybench.results.figures import parts
from raybench.results.load import StudyResults

PHASE_STYLE = {
    "queue": ("#DDDDDD", ""),
    "start": ("#999999", ""),
    "lost": ("#D55E00", "xx"),
    "setup": ("#56B4E9", ""),
    "compile": ("#0072B2", "///"),
    "train": ("#E69F00", ""),
    "eval": ("#009E73", ""),
    "checkpoint": ("#CC79A7", "\\\\\\"),
    "report": ("#000000", ""),
    "other": ("#F0E442", "--"),
}
"""Colour and hatching of each phase: neighbours are told apart in grey, too."""
ORDER = ("reference", "search", "confirm", "scaling")
"""In which a study comes to its phases."""
MOST_GROUPS = 12
"""Bars that a figure has room for."""


def ledger_figure(results: StudyResults) -> Figure:
    """Where the seconds went: the ledger summed over the runs of each phase and framework."""
    groups = list(results.trials.groupby(["phase", "framework"], sort=False, dropna=False))
    groups = sorted(groups, key=lambda one: ORDER.index(one[0][0]))[:MOST_GROUPS]
    figure, axes = parts.new_figure(parts.WIDTH, 1.0 + 0.5 * max(len(groups), 1))
    axes.set_xlabel("seconds summed over runs [s]")
    if not groups:
        return parts.say(figure, axes, parts.NOTHING)
    names = [
        parts.plain(f"{phase}, {framework}") + f"\n{parts.plural(len(runs), 'run')}"
        for (phase, framework), runs in groups
    ]
    left, keys = np.zeros(len(groups)), []
    for phase in (*PHASES, OTHER):
        seconds = np.array([float(runs[f"{phase}_s"].sum()) for _, runs in groups])
        colour, hatch = PHASE_STYLE[phase]
        style: dict[str, Any] = {"facecolor": colour, "hatch": hatch}
        style |= {"edgecolor": parts.PAPER, "linewidth": 0}
        bars = seconds.clip(min=0)  # what no phase accounts for may be a little less than nothing
        axes.barh(names, bars, left=left, height=0.62, **style)
        keys.append(Patch(label=f"{phase} {seconds.sum():,.1f} s", **style))
        left += bars
    for row, (_, runs) in enumerate(groups):
        wall = float(runs["wall_s"].sum())
        share = float(runs["train_s"].sum()) / wall if wall else 0.0
        words = f" {wall:,.0f} s, {100 * share:.0f} % train"
        axes.text(left[row], row, words, va="center", fontsize=parts.SMALL, color=parts.INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.65 * left.max() or 1.0)
    axes.locator_params(axis="x", nbins=6)
    labels = [str(one.get_label()) for one in keys]
    parts.legend_below(figure, keys, columns=parts.columns_for(labels))
    return figure
