"""What the models of a scaling study have said, as `raybench scale` leaves it in two files, and the
figures of it: models are fitted above this layer."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.report.figures import parts
from raybench.results.analyses import not_dominated
from raybench.results.study import Study
from raybench.scaling.plan import MONEY
from raybench.spec.errors import UserError
from raybench.spec.text import counted

MODEL_FILE, PLAN_FILE = "model.csv", "plan.csv"
MODEL_COLUMNS = (
    *("kind", "series", "num_workers", "batch_size_per_worker", "samples_per_s"),
    *("low", "high", "extrapolated"),
)
"""Of MODEL_FILE; `kind` is `measured` (a row a repeat; without the last three) or `predicted`."""
PLAN_COLUMNS = (
    *("series", "unit", "offer", "is_spot", "num_workers", "global_batch_size"),
    *("seconds", "low_s", "high_s", "cost", "low_cost", "high_cost", "measured_s", "measured_cost"),
)
WORDS = ("kind", "series", "extrapolated", "unit", "offer", "is_spot")
"""Columns of the two that are no numbers."""


def model_frame(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the content of MODEL_FILE."""
    both = [measured.assign(kind="measured"), predicted.assign(kind="predicted")]
    return pd.concat(both, ignore_index=True).reindex(columns=list(MODEL_COLUMNS))


def read_model(results: Study) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what was measured and what the model says of it, as `predicted_figure` takes them."""
    table = _read(results.folder / MODEL_FILE, MODEL_COLUMNS)
    is_measured = table["kind"] == "measured"
    predicted = table[~is_measured].reset_index(drop=True)
    is_beyond = predicted["extrapolated"].astype(str).str.lower() == "true"
    measured = table[is_measured].drop(columns=["low", "high", "extrapolated"])
    return measured.reset_index(drop=True), predicted.assign(extrapolated=is_beyond)


def read_plan(results: Study) -> pd.DataFrame:
    """Return the plan, as `plan_figure` takes it."""
    return _read(results.folder / PLAN_FILE, PLAN_COLUMNS)


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    numbers = [name for name in columns if name not in WORDS]
    try:
        table = pd.read_csv(path)
        table[numbers] = table[numbers].apply(pd.to_numeric)
        return table[[*columns, *(name for name in table.columns if name not in columns)]]
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: cannot be read ({reason}); delete it, and python -m raybench.report writes "
            "it anew."
        ) from None


def _tick(axes: Axes, values: pd.Series, ends: tuple[float, float], margin: float) -> None:
    """Name at most eight of the values below, and show all between the ends."""
    sizes = sorted({int(size) for size in values})
    sizes = sizes[:: max(-(-len(sizes) // 8), 1)]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    parts.log_axis(axes, "y", *ends, margin=margin)


MOST_PANELS, MOST_LINES = 6, 6
PANEL = 3.4
"""Inches of a panel's height."""


def plan_figure(plan: pd.DataFrame) -> Figure:
    """Seconds of a job against its bill: predicted, and measured where it ran.

    `plan`: PLAN_COLUMNS; measured_s is missing where nothing ran, infinite where most runs missed.
    A panel for each series, a colour for each offer, a marker for each number of workers; hollow is
    predicted (~). Steps join what no other beats in both; these have their 90 % intervals.
    """
    names = list(dict.fromkeys(plan["series"]))[:MOST_PANELS]
    figure, panels = parts.panels(max(len(names), 1), PANEL, 0.3)
    if not names:
        return parts.say(figure, panels[0], "no plan: too little was measured")
    plan = plan.assign(offer=[*map(offer_words, plan["offer"], plan["is_spot"])])
    offers = list(dict.fromkeys(plan["offer"]))
    for axes, name in zip(panels, names, strict=True):
        own = plan[plan["series"] == name]
        parts.head(axes, parts.wrapped(name, parts.ROOM))
        _priced(axes, own, {one: parts.colour(i) for i, one in enumerate(offers)})
        axes.set_ylabel("seconds of the job [s]")
    unit = plan["unit"].iloc[0]
    panels[-1].set_xlabel("bill" if unit == MONEY else "worker-seconds that are held [s]")
    keys: list[Artist] = [Patch(color=parts.colour(i), label=n) for i, n in enumerate(offers)]
    for count in sorted(set(plan["num_workers"])):
        words = counted(int(count), "worker")
        keys.append(parts.dot(words, marker=parts.marker_of(count), is_filled=False))
    keys.append(parts.key("no other is faster and cheaper", linewidth=1.2))
    keys.append(parts.key("90 % interval", linewidth=4, alpha=0.25))
    if np.isfinite(plan["measured_s"]).any():
        keys.append(parts.dot("measured (median); hollow: ~ predicted"))
    parts.legend_below(figure, keys, most=2)
    return figure


def offer_words(name: str, is_spot: bool) -> str:
    """Return what is hired: `p4d`, `p4d (spot)`."""
    return f"{name} (spot)" if is_spot else name


def _priced(axes: Axes, rows: pd.DataFrame, colours: dict[str, str]) -> None:
    near = rows["seconds"] <= parts.FAR * rows["seconds"].min()
    rows = rows[near | (rows["cost"] <= rows["cost"].min())]
    ran = rows[np.isfinite(rows["measured_s"])]
    front = rows[not_dominated(rows[["cost", "seconds"]].to_numpy(dtype=float))]
    front = front.sort_values("cost")
    for which, of_rows, of_front in (("x", "cost", "cost"), ("y", "seconds", "s")):
        every = [rows[of_rows], front[f"low_{of_front}"], front[f"high_{of_front}"]]
        every.append(ran["measured_cost" if which == "x" else "measured_s"])
        values = pd.concat(every)
        parts.log_axis(axes, which, values.min(), values.max())
    style: dict[str, Any] = {"drawstyle": "steps-post", "color": parts.INK, "linewidth": 1.2}
    axes.plot(front["cost"], front["seconds"], gid="front", zorder=2, **style)
    for row in parts.tuples(front):
        style = {"color": colours[row.offer], "linewidth": 4, "alpha": 0.25, "zorder": 1}
        axes.plot([row.low_cost, row.high_cost], [row.seconds] * 2, **style)
        axes.plot([row.cost] * 2, [row.low_s, row.high_s], **style)
    for table, x, y, own in (
        (rows, "cost", "seconds", {"markerfacecolor": parts.PAPER, "gid": "extrapolated"}),
        (ran, "measured_cost", "measured_s", {}),
    ):
        for (offer, _), group in table.groupby(["offer", "num_workers"], sort=False):
            style = {
                "color": colours[str(offer)],
                "marker": parts.marker_of(group["num_workers"].iloc[0]),
            }
            axes.plot(group[x], group[y], linestyle="none", markersize=6, **(style | own))


TITLE_WIDTH = 32
"""Characters of a panel's title."""
PREDICTED_PANEL = 2.6
"""Inches of a panel's height."""
MOST_SERIES = 8


def predicted_figure(measured: pd.DataFrame, predicted: pd.DataFrame) -> Figure:
    """Throughput measured and predicted over workers, a panel for each series.

    `measured`: series, num_workers, batch_size_per_worker, samples_per_s (a row a repeat).
    `predicted`: the same of the model's table, with low and high, and `extrapolated`, which is
    drawn dashed and named.
    """
    names = list(dict.fromkeys(predicted["series"]))[:MOST_SERIES]
    width = min(max(len(names), 1), 2)
    figure, panels = parts.panels(max(len(names), 1), PREDICTED_PANEL, 0.4, columns=2)
    if not names:
        return parts.say(figure, panels[0], "no series of several numbers of workers")
    batches = sorted(set(predicted["batch_size_per_worker"]))
    shown = parts.spread(batches, MOST_LINES)
    for axes, name in zip(panels, names, strict=False):
        axes.set(xscale="log", yscale="log")
        parts.head(axes, parts.wrapped(name, TITLE_WIDTH))
        own, seen = predicted[predicted["series"] == name], measured[measured["series"] == name]
        for number, batch in enumerate(shown):
            line = own[own["batch_size_per_worker"] == batch]
            if len(line):
                dots = seen[seen["batch_size_per_worker"] == batch]
                _predicted_line(axes, line, dots, number)
        _tick(axes, own["num_workers"], axes.get_ylim(), 1.0)
    for axes in panels[max(len(names) - width, 0) : len(names)]:
        axes.set_xlabel("workers")
    figure.supylabel("samples/s of all workers", fontsize=parts.TEXT, color=parts.INK)
    parts.legend_below(figure, _predicted_keys(shown, len(batches)), columns=2)
    return figure


def _predicted_keys(shown: list[int], every: int) -> list[Artist]:
    keys: list[Artist] = [
        parts.key(f"batch {batch:g} a worker", parts.colour(number), marker=parts.marker(number))
        for number, batch in enumerate(shown)
    ]
    keys.append(parts.dot("measured, a dot a repeat"))
    keys.append(Patch(color=parts.INK, alpha=0.15, label="the model, 90 % interval"))
    keys.append(parts.key("~ beyond what was measured", linestyle="--"))
    if every > len(shown):
        keys.append(parts.key(f"{len(shown)} of {every} batch sizes drawn", linestyle="none"))
    return keys


def _predicted_line(axes: Axes, line: pd.DataFrame, dots: pd.DataFrame, number: int) -> None:
    colour = parts.colour(number)
    line = line.sort_values("num_workers")
    known = line[~line["extrapolated"]]
    beyond = pd.concat([known.tail(1), line[line["extrapolated"]]])
    axes.plot(known["num_workers"], known["samples_per_s"], color=colour)
    if len(beyond) > len(known.tail(1)):
        axes.plot(
            beyond["num_workers"],
            beyond["samples_per_s"],
            color=colour,
            linestyle="--",
            gid="extrapolated",
        )
    axes.fill_between(line["num_workers"], line["low"], line["high"], color=colour, alpha=0.1, lw=0)
    style: dict[str, Any] = {"marker": parts.marker(number), "markersize": 4.5, "color": colour}
    axes.plot(dots["num_workers"], dots["samples_per_s"], linestyle="none", **style)
