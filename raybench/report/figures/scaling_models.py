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
from raybench.results.study import Study
from raybench.spec.errors import UserError
from raybench.spec.text import counted

MODEL_FILE, PLAN_FILE = "model.csv", "plan.csv"
MODEL_COLUMNS = (
    *("kind", "series", "num_workers", "batch_size_per_worker", "samples_per_s"),
    *("low", "high", "extrapolated"),
)
"""Of MODEL_FILE; `kind` is `measured` (a row a repeat; without the last three) or `predicted`."""
PLAN_COLUMNS = (
    *("series", "gpu_type", "num_workers", "num_nodes", "global_batch_size"),
    *("seconds", "low_s", "high_s", "worker_seconds", "measured_s"),
)
NUMBERS = (
    *("num_workers", "num_nodes", "batch_size_per_worker", "global_batch_size"),
    *("samples_per_s", "low", "high", "seconds", "low_s", "high_s", "worker_seconds"),
    "measured_s",
)


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


def has_file(results: Study, name: str) -> bool:
    """Return whether the folder holds such a file."""
    return (results.folder / name).is_file()


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    numbers = [name for name in columns if name in NUMBERS]
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


def _begin(axes: Axes, title: str) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_title(title, fontsize=parts.SMALL, color=parts.INK, loc="left")


def _tick(axes: Axes, values: pd.Series, ends: tuple[float, float], margin: float) -> None:
    """Name at most eight of the values below, and show all between the ends."""
    sizes = sorted({int(size) for size in values})
    sizes = sizes[:: max(-(-len(sizes) // 8), 1)]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    parts.log_axis(axes, "y", *ends, margin=margin)


MOST_PANELS, MOST_LINES = 6, 6
PANEL = 3.0
"""Inches of a panel's height."""


def plan_figure(plan: pd.DataFrame) -> Figure:
    """Seconds to the target over the global batch size: predicted, and measured where it ran.

    `plan`: series, gpu_type, num_workers, num_nodes, global_batch_size, seconds, low_s, high_s,
    measured_s (missing where nothing ran, infinite where most runs missed). A panel for each series
    and kind of worker, a line for each number of workers; hollow and dashed is predicted (~).
    """
    kinds = list(dict.fromkeys(zip(plan["series"], plan["gpu_type"], strict=True)))[:MOST_PANELS]
    figure, panels = parts.panels(max(len(kinds), 1), PANEL, 0.3)
    if not kinds:
        return parts.say(figure, panels[0], "no plan: too little was measured")
    layouts = sorted(set(zip(plan["num_workers"], plan["num_nodes"], strict=True)))
    for axes, (series, gpu_type) in zip(panels, kinds, strict=True):
        own = plan[(plan["series"] == series) & (plan["gpu_type"] == gpu_type)]
        _begin(axes, parts.wrapped(f"{series}, {gpu_type}", parts.ROOM))
        for number, layout in enumerate(layouts[:MOST_LINES]):
            here = (own["num_workers"] == layout[0]) & (own["num_nodes"] == layout[1])
            _line(axes, own[here].sort_values("global_batch_size"), number)
        every = own[["low_s", "high_s", "measured_s"]].to_numpy(dtype=float).ravel()
        every = every[np.isfinite(every)]
        _tick(axes, own["global_batch_size"], (every.min(), every.max()), 1.1)
        axes.set_ylabel("seconds to the target [s]")
    panels[-1].set_xlabel("global batch size [samples a step]")
    keys = _keys(layouts, has_measured=bool(np.isfinite(plan["measured_s"]).any()))
    labels = [str(one.get_label()) for one in keys]
    parts.legend_below(figure, keys, columns=parts.columns_for(labels))
    return figure


def _line(axes: Axes, line: pd.DataFrame, number: int) -> None:
    colour, marker = parts.colour(number), parts.marker(number)
    axes.plot(
        line["global_batch_size"],
        line["seconds"],
        color=colour,
        linestyle="--",
        linewidth=1.2,
        marker=marker,
        markerfacecolor=parts.PAPER,
        gid="extrapolated",
    )
    axes.fill_between(
        line["global_batch_size"], line["low_s"], line["high_s"], color=colour, alpha=0.1, lw=0
    )
    ran = line[np.isfinite(line["measured_s"])]
    style: dict[str, Any] = {"linestyle": "none", "markersize": 7, "zorder": 4}
    style["markeredgecolor"] = parts.PAPER
    axes.plot(ran["global_batch_size"], ran["measured_s"], color=colour, marker=marker, **style)


def _keys(layouts: list[tuple[int, int]], *, has_measured: bool) -> list[Artist]:
    keys: list[Artist] = []
    for number, (workers, nodes) in enumerate(layouts[:MOST_LINES]):
        words = counted(int(workers), "worker")
        words += f" on {counted(int(nodes), 'host')}" if nodes > 1 else ""
        style = {"linestyle": "--", "marker": parts.marker(number)}
        keys.append(parts.key(words, parts.colour(number), **style))
    if len(layouts) > MOST_LINES:
        keys.append(parts.key(f"{len(layouts) - MOST_LINES} more layouts", linestyle="none"))
    style = {"linestyle": "--", "marker": "o", "markerfacecolor": parts.PAPER}
    keys.append(parts.key("~ predicted", **style))
    keys.append(Patch(color=parts.INK, alpha=0.12, label="90 % interval"))
    if has_measured:
        keys.append(parts.dot("measured (median)"))
    return keys


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
        _begin(axes, parts.wrapped(name, TITLE_WIDTH))
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
