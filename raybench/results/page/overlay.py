"""What several studies reach at every budget of training seconds, in one figure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from raybench.core.text import shorten
from raybench.results.analyses import best_at_every_budget
from raybench.results.figures import parts
from raybench.results.figures.metric_axis import drawn, metric_axis
from raybench.results.load import StudyResults

Named = Sequence[tuple[str, StudyResults]]
LONGEST = 40
"""Characters of a study's name in a legend."""
STYLES = ("-", "--", "-.", ":")
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
    lines = [(name, envelope(one)) for name, one in studies]
    every = pd.concat([table for _, table in lines], ignore_index=True)
    figure, axes = parts.new_figure(parts.WIDTH, 3.6)
    first = replace(studies[0][1], curves=every)
    metric = first.metric
    axes.set(xlabel="seconds of training", ylabel=parts.plain(f"best {metric.axis_words}"))
    if every.empty:
        return parts.say(figure, axes, "no run has been evaluated")
    metric_axis(axes, first)
    end, keys, labels = float(every["train_s"].max()), [], []
    for number, (name, table) in enumerate(lines):
        if table.empty:
            continue
        kept = table.iloc[parts.spread(list(range(len(table))), STEPS)]
        values = drawn(metric, kept[metric.name])
        style: dict[str, Any] = {
            "color": parts.colour(number),
            "linestyle": STYLES[number % len(STYLES)],
            "lw": 2,
        }
        # To the longest study's end: there the best stays what it is.
        x, y = [*kept["train_s"], end], [*values, values.iloc[-1]]
        axes.plot(x, y, drawstyle="steps-post", **style)
        labels.append(parts.plain(shorten(name, LONGEST)))
        keys.append(parts.key(labels[-1], **style))
    axes.set_xlim(left=0)
    parts.legend_below(figure, keys, columns=parts.columns_for(labels))
    return figure


def overlay_table(studies: Named) -> pd.DataFrame:
    """Return what the figure draws: study, seconds, the metric, trial."""
    metric = studies[0][1].metric
    tables = [envelope(one).assign(study=name) for name, one in studies]
    found = pd.concat(tables, ignore_index=True)[["study", "train_s", metric.name, "trial"]]
    names = {"train_s": "seconds of training", metric.name: f"best {metric.words} so far"}
    return found.rename(columns=names)
