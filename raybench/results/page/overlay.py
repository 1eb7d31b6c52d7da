"""What several studies reach at every budget of training seconds, in one figure."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from raybench.core.text import shorten
from raybench.results import plot_parts as parts
from raybench.results.analyses.budgets import best_at_every_budget
from raybench.results.load import StudyResults

Named = Sequence[tuple[str, StudyResults]]
LONGEST = 40
"""Characters of a study's name in a legend."""
STEPS = 300
"""Steps of a line that are drawn."""


def envelope(results: StudyResults) -> pd.DataFrame:
    """Return the best of the search's runs at every budget; see `best_at_every_budget`."""
    trials = results.trials
    names = set(trials["trial"][(trials["phase"] == "search") & (trials["state"] != "failed")])
    curves = results.curves
    return best_at_every_budget(curves[curves["trial"].isin(names)], results.metric)


def overlay_figure(studies: Named) -> Figure:
    """One line a study; all are judged by the metric of the first."""
    metric = studies[0][1].metric
    factor = 100 if metric.is_share else 1
    figure, axes = parts.new_figure(7.6, 4.6)
    axes.set(xlabel="seconds of training", ylabel=parts.plain(f"best {metric.axis_words} so far"))
    lines = [(name, one, envelope(one)) for name, one in studies]
    ends = [table["train_s"].max() for _, _, table in lines if len(table)]
    if not ends:
        return parts.say(figure, axes, "no run has been evaluated")
    for number, (name, one, table) in enumerate(lines):
        if table.empty:
            continue
        table = table.iloc[:: max(len(table) // STEPS, 1)]
        # To the longest study's end, where the best stays what it is.
        seconds = [*table["train_s"], max(max(ends), float(table["train_s"].iloc[-1]))]
        values = [*(factor * table[metric.name]), factor * table[metric.name].iloc[-1]]
        axes.step(
            seconds,
            values,
            where="post",
            color=parts.colour(number),
            linestyle=("-", "--", "-.", ":")[number % 4],
            linewidth=2,
            label=parts.plain(shorten(name, LONGEST)),
        )
        if one.is_timed and one.target is not None:
            axes.axhline(factor * one.target, color=parts.INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def overlay_table(studies: Named) -> pd.DataFrame:
    """Return what the figure draws: study, seconds, the metric, trial."""
    metric = studies[0][1].metric
    tables = [envelope(one).assign(study=name) for name, one in studies]
    found = pd.concat(tables, ignore_index=True)[["study", "train_s", metric.name, "trial"]]
    names = {"train_s": "seconds of training", metric.name: f"best {metric.words} so far"}
    return found.rename(columns=names)
