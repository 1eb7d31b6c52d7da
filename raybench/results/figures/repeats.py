"""Curves of the best configurations: the search's run beside those with new seeds."""

from typing import Literal

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from raybench.results.figures import parts
from raybench.results.figures.curves import curve_of, curve_xy, mark, name_of, seconds_of
from raybench.results.figures.metric_axis import metric_axis
from raybench.results.load import StudyResults

STYLE_OF: dict[str, Literal["-", ":"]] = {"race": ":", "confirm": "-"}
"""Lines of runs with new seeds; the search's are dashed."""
WORDS = {"race": "race (new seeds, beside others)", "confirm": "confirm runs (new seeds, alone)"}
PANEL = 2.3
"""Inches of a panel's height; they stand one below the other."""


def repeats_figure(results: StudyResults, *, number: int = 3) -> Figure:
    """Curves of the best `number` configurations: the search's run, the race's, those alone."""
    best, metric = list(results.configurations["trial"].head(number)), results.metric
    size = (parts.WIDTH, PANEL * max(len(best), 1) + 0.4)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(max(len(best), 1), 1, sharey=True, sharex=True, squeeze=False)[:, 0]
    if not best:
        return parts.say(figure, panels[0], parts.NOTHING)
    trials = results.trials.set_index("trial")
    for axes, trial in zip(panels, best, strict=True):
        parts.dress(axes)
        metric_axis(axes, results)
        again = trials["role"].isin(list(STYLE_OF)) & (trials["source"] == trial)
        for name in [trial, *trials.index[again]]:
            run, curve = trials.loc[name], curve_of(results, str(name))
            is_own = name == trial
            colour = parts.INK if is_own else parts.colour_of(run["framework"])
            style = "--" if is_own else STYLE_OF[run["role"]]
            x, y = curve_xy(metric, curve)
            axes.plot(x, y, color=colour, linestyle=style, linewidth=1.3, gid=str(name))
            if len(curve):
                mark(axes, metric, curve, run, colour)
        said = ", ".join(seconds_of(results, trial))
        words = "\n".join([name_of(results, trial), parts.wrapped(said, parts.ROOM)])
        axes.set_title(words, fontsize=parts.SMALL, color=parts.INK, loc="left")
    panels[-1].set_xlabel("seconds of training [s]")
    panels[len(panels) // 2].set_ylabel(parts.plain(metric.axis_words))
    panels[0].set_xlim(left=0)
    keys: list[Artist] = [parts.key("search (one run)", linestyle="--")]
    roles = set(results.trials["role"]) if len(results.confirmed) else set()
    colour = parts.colour_of(trials.loc[best[-1], "framework"])
    keys += [
        parts.key(words, colour, linestyle=STYLE_OF[role])
        for role, words in WORDS.items()
        if role in roles
    ]
    parts.legend_below(figure, keys, columns=1)
    return figure
