"""Figures of a study, each a function from its results to a matplotlib Figure."""

import io
import textwrap
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raybench.core.clock import OTHER, PHASES
from raybench.core.metric import Metric
from raybench.core.record import RunRecord
from raybench.results import plot_parts as parts
from raybench.results.files import StudyFiles
from raybench.results.load import StudyResults, describe
from raybench.results.metric_axis import drawn, empty_corner, metric_axis
from raybench.results.pareto_plot import pareto_figure as pareto_figure
from raybench.results.repeated import repeat

STYLE_OF: dict[str, Literal["-", ":"]] = {"race": ":", "confirm": "-"}
"""Lines of runs with new seeds; the search's are dashed."""
LINE_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


def write_plots(results: StudyResults, folder: Path) -> list[Path]:
    """Draw a study's figures into its folder and return their files."""
    files = StudyFiles(folder)
    written = []
    for name, draw in (
        ("curves.png", curves_figure),
        ("pareto.png", pareto_figure),
        ("ledger.png", ledger_figure),
    ):
        picture = io.BytesIO()
        draw(results).savefig(picture, format="png", dpi=100)
        files.write_bytes(name, picture.getvalue())
        written.append(folder / name)
    return written


def curves_figure(results: StudyResults, *, number: int = 3) -> Figure:
    """The metric against seconds of training: every search run, the best `number` highlighted.

    The best are the confirmed configurations, then the search's by score. A marker stands
    where the run reached the target, or at its best value if it did not.
    """
    metric = results.metric
    runs = {name: run for name, run in results.runs.items() if run.phase == "search"}
    figure, axes = parts.new_figure(7.6, 4.6)
    axes.set(xlabel="seconds of training", ylabel=parts.plain(metric.axis_words))
    if not runs:
        return parts.say(figure, axes, parts.NOTHING)
    metric_axis(axes, results)
    best = list(results.configurations["trial"].head(number))
    # Looked up one by one, the curves of 10,000 trials would take minutes.
    for trial, curve in results.curves.groupby("trial"):
        if trial not in runs or trial in best:
            continue
        dot = "." if len(curve) == 1 else None
        axes.plot(*_xy(metric, curve), color=parts.QUIET, linewidth=1, marker=dot, gid=trial)
    keys = []
    for rank, trial in enumerate(best):
        run = runs[trial]
        curve = _curve(results, trial)
        colour, style = parts.colour_of(run.spec.framework), LINE_STYLES[rank % len(LINE_STYLES)]
        x, y = _xy(metric, curve)
        axes.plot(x, y, color=colour, linewidth=2, linestyle=style, zorder=3, gid=trial)
        if len(curve):
            _mark(axes, metric, curve, run, colour)
        words = f"{_name(results, trial)}\n{', '.join(_seconds(results, trial))}"
        marker = parts.marker_of(run.spec.num_workers)
        keys.append(
            Line2D([], [], color=colour, linestyle=style, lw=2, marker=marker, mec="w", label=words)
        )
    axes.set_xlim(left=0)
    corner = empty_corner(metric)
    axes.legend(handles=keys, loc=corner, frameon=False, fontsize=9, handlelength=4)
    others = len(runs) - len(best)
    named = parts.plural(len(best), "configuration")
    axes.set_title(f"best {named}; {parts.plural(others, 'other search run')} in grey")
    return figure


def repeats_figure(results: StudyResults, *, number: int = 3) -> Figure:
    """Curves of the best `number` configurations: the search's run, the race's, those alone."""
    best, metric = list(results.configurations["trial"].head(number)), results.metric
    width = 3.0 * max(len(best), 1.6)
    figure = Figure(figsize=(width, 3.8), dpi=100, layout="constrained")
    panels = figure.subplots(1, max(len(best), 1), sharey=True, sharex=True, squeeze=False)[0]
    if not best:
        return parts.say(figure, panels[0], parts.NOTHING)
    for axes, trial in zip(panels, best, strict=True):
        parts.dress(axes)
        metric_axis(axes, results, is_labelled=axes is panels[-1])
        for name, run in results.runs.items():
            if name != trial and (run.role not in STYLE_OF or run.source != trial):
                continue
            curve = _curve(results, name)
            is_search = run.phase == "search"
            colour = parts.INK if is_search else parts.colour_of(run.spec.framework)
            style = STYLE_OF.get(run.role, "--")
            axes.plot(*_xy(metric, curve), color=colour, linestyle=style, linewidth=1.2, gid=name)
            if len(curve):
                _mark(axes, metric, curve, run, colour)
        words = "\n".join([_name(results, trial), *_seconds(results, trial)])
        axes.set_title(words, fontsize=9)
        axes.set_xlabel("seconds of training")
    panels[0].set_ylabel(parts.plain(metric.axis_words))
    panels[0].set_xlim(left=0)
    kinds = [Line2D([], [], color=parts.INK, linestyle="--", label="search (one run)")]
    roles = set(results.trials["role"]) if len(results.confirmed) else set()
    colour = parts.colour_of(results.specs[best[-1]].framework)
    for role, words in (("race", "race (new seeds)"), ("confirm", "confirm runs (new seeds)")):
        if role in roles:
            style = STYLE_OF[role]
            kinds.append(Line2D([], [], color=colour, linestyle=style, label=words))
    panels[-1].legend(handles=kinds, loc=empty_corner(metric), frameon=False, fontsize=8.5)
    return figure


def ledger_figure(results: StudyResults) -> Figure:
    """Where the seconds went: the ledger summed over the runs of each phase and framework."""
    groups = list(results.trials.groupby(["phase", "framework"], sort=False))
    figure, axes = parts.new_figure(7.6, 1.6 + 0.5 * max(len(groups), 1))
    axes.set_xlabel("seconds summed over runs (runs side by side count each)")
    if not groups:
        return parts.say(figure, axes, parts.NOTHING)
    names = [
        parts.plain(f"{phase}, {framework}") + f"\n{parts.plural(len(runs), 'run')}"
        for (phase, framework), runs in groups
    ]
    left = np.zeros(len(groups))
    for phase in (*PHASES, OTHER):
        seconds = np.array([float(runs[f"{phase}_s"].sum()) for _, runs in groups])
        label = f"{phase} {seconds.sum():.1f} s"
        bars = seconds.clip(min=0)  # what no phase accounts for may be a little less than nothing
        axes.barh(names, bars, left=left, color=parts.PHASE_COLOURS[phase], label=label)
        left += bars
    for row, (_, runs) in enumerate(groups):
        wall = float(runs["wall_s"].sum())
        share = float(runs["train_s"].sum()) / wall if wall else 0.0
        axes.text(left[row], row, f" {wall:.0f} s, {share:.0%} train", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.25 * left.max() or 1.0)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def _curve(results: StudyResults, trial: str) -> pd.DataFrame:
    return results.curves[results.curves["trial"] == trial]


def _xy(metric: Metric, curve: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return curve["train_s"], drawn(metric, curve[metric.name])


def _name(results: StudyResults, trial: str) -> str:
    spec = results.specs[trial]
    base = describe(spec)
    # Searched keys: lines that fit a panel.
    rest = textwrap.wrap(results.label(spec).removeprefix(base).strip(), 40)
    return parts.plain("\n".join([f"{trial}  {base}", *rest]))


def _seconds(results: StudyResults, trial: str) -> list[str]:
    """Say when the target was reached, and what that rests on."""
    run, metric = results.runs[trial], results.metric
    best = (
        "nothing evaluated" if run.best_value is None else f"best {_text(metric, run.best_value)}"
    )
    is_hit = results.is_timed and run.time_to_target_s is not None
    found = f"{repeat(results, trial).seconds:.2f} s" if is_hit else best
    proof = results.confirmed.set_index("trial")
    if trial not in proof.index:
        return [f"search {found} (one run)"]
    row: Any = proof.loc[trial]
    of = f"of {row['new_runs']}"
    if not results.is_timed:
        median = _text(metric, row[f"median_{metric.name}"])
        return [f"search {best}", f"confirmed {median} (median {of})"]
    if not row["new_hits"]:
        return [f"search {found}", f"confirmed missed (0 {of})"]
    is_whole = row["new_hits"] == row["new_runs"]
    what = f"median {of}" if is_whole else f"expected; {row['new_hits']} {of}"
    ends = f"90 %: {row['interval_low_s']:.2f} to {row['interval_high_s']:.2f} s"
    return [f"search {found}", f"confirmed {row['printed_s']:.2f} s ({what})", ends]


def _text(metric: Metric, value: float) -> str:
    return f"{value:.1%}" if metric.is_share else f"{value:.4g}"


def _mark(axes: Axes, metric: Metric, curve: pd.DataFrame, run: RunRecord, colour: str) -> None:
    """Put the marker on a curve: at the target, else at the best value."""
    if run.time_to_target_s is not None:
        later = curve[curve["train_s"] >= run.time_to_target_s - 1e-9]
        at = later.iloc[0] if len(later) else curve.iloc[-1]  # part of a curve may be lost
    else:
        worst_first = (
            curve[metric.name].mul(metric.sign).sort_values(kind="stable", na_position="first")
        )
        at = curve.loc[worst_first.index[-1]]
    x, y = float(at["train_s"]), float(at[metric.name]) * (100 if metric.is_share else 1)
    marker = parts.marker_of(run.spec.num_workers)
    axes.plot(x, y, marker=marker, markersize=8, color=colour, markeredgecolor="white", zorder=5)
