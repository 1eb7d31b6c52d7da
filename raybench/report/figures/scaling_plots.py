"""Figures of a scaling study: speed-up, efficiency, parts of a step, predictions, plan and learning
curves.

Predictions and plans are read from files of the study. They cannot be computed here, because
`report.scaling_report`, which computes them, imports this module.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.report.figures import parts
from raybench.report.figures.parts import FigureKind, drawn, metric_axis
from raybench.results.analyses import not_dominated
from raybench.results.study import Study
from raybench.scaling.cells import curves_of, scaling_cells, scaling_runs
from raybench.spec.scaling_study import MONEY

SHARE_STYLE = {
    "input wait": ("#CC79A7", "xx"),
    "as one worker alone": ("#E69F00", ""),
    "exchange of gradients": ("#0072B2", "///"),
    "more than one worker": ("#56B4E9", "\\\\\\"),
    "not distinguishable": ("#C4C4C4", ""),
}
"""Color and hatching of each part of a step."""
MOST_BARS = 24
"""Maximum number of cells (run specs) that `shares_figure` draws."""
BAR = 0.34
"""Height of a bar including its margin, in inches."""
LEAST_SHARE = 0.1
"""Percentage of a step that a part must reach in at least one bar to be drawn."""
MOST_CURVES = 12
"""Maximum number of curves in a panel."""
PANEL = 2.9
"""Height of a panel in inches."""
ASIDE = 0.02
"""Horizontal offset between neighboring curves, in doublings of the worker count, so that error
bars do not overlap."""
MEANING = {"weak": "same batch per worker", "strong": "same global batch"}
MORE = "{} more {}: see scaling.csv"
IDEAL: dict[str, Any] = {"color": parts.INK, "linestyle": ":", "linewidth": 1.2}
IDEAL |= {"label": "ideal", "gid": "ideal"}


def cell_label(row: Mapping[Any, Any]) -> str:
    """Return the name of a cell in figures, such as `SERIES, 4x64` (workers x batch size per
    worker)."""
    return f"{row['series']}, {row['num_workers']}x{row['batch_size_per_worker']}"


def share_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells (run specs) whose steps were timed, in the order of `shares_figure`."""
    timed = (cells["n"] > 0) & cells["exchange_gradients"] & cells["step_median_s"].notna()
    distinct = cells[timed.astype(bool)].drop_duplicates("cell")
    return distinct.sort_values(["series", "batch_size_per_worker", "num_workers"])


def shares_figure(results: Study) -> Figure:
    """Draw the parts of an optimizer step of each cell (run spec) as stacked bars."""
    cells = share_cells(scaling_cells(results))
    cells_drawn = cells.head(MOST_BARS).to_dict("records")
    rows = [step_shares(row) for row in cells_drawn]
    names = [parts.wrapped(cell_label(row), parts.ROOM) for row in cells_drawn]
    # The name of a cell is above its bar, since beside it, it would take half the width of a phone.
    ends = np.cumsum([parts.LINE * (1 + name.count("\n")) + BAR for name in names])
    places = ends - BAR / 2
    figure, axes = parts.new_figure(0.7 + max(ends[-1], 0.8))
    stack = []
    for part, style in SHARE_STYLE.items():
        widths = np.array([100 * row.get(part, 0.0) for row in rows])
        if widths.max() >= LEAST_SHARE:
            stack.append((part, widths, style))
    keys, _ = parts.stacked_bars(axes, places, stack, 0.62 * BAR)
    for place, name, row in zip(places, names, cells_drawn, strict=True):
        parts.write(axes, 0, place - 0.36 * BAR, name, va="bottom")
        parts.write(axes, 101, place, f"{1000 * row['step_median_s']:.3g} ms")
    axes.set(yticks=[], xlim=(0, 116), ylim=(places[-1] + 0.6 * BAR, 0))
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("share of an optimizer step [%]")
    parts.rows_only(axes)
    if num_left_out := len(cells) - len(cells_drawn):
        parts.head(axes, MORE.format(num_left_out, "cells"), parts.TEXT)
    parts.legend_below(figure, keys, columns=2)
    return figure


def step_shares(row: Mapping[Any, Any]) -> dict[str, float]:
    """Return the parts of an optimizer step of a cell (run spec) as shares that sum to 1.

    - input wait: the measured time of waiting for data.
    - as one worker alone: the step time of one worker with the same batch size, without input wait.
    - exchange of gradients: the time that a step takes less in a cell without gradient exchange.
    - more than one worker: the remaining time (contention, waiting for the slowest worker). It is
      called "not distinguishable" if no cell has one worker.

    Args:
        row: A row of `scaling_cells`.
    """
    wait = row["input_share"] if row["input_share"] == row["input_share"] else 0.0
    shares, remaining = {"input wait": wait}, 1 - wait
    alone, exchange = row["alone_share"], row["communication_share"]
    if alone == alone:
        shares["as one worker alone"] = min(alone, remaining)
        remaining -= shares["as one worker alone"]
    if exchange == exchange and row["num_workers"] > 1:
        shares["exchange of gradients"] = min(max(exchange, 0.0), remaining)
        remaining -= shares["exchange of gradients"]
    shares["more than one worker" if alone == alone else "not distinguishable"] = remaining
    return shares


def _curves_figure(column: str, label: str, results: Study) -> Figure:
    """Draw a column of `scaling_cells` over worker counts.

    There is one panel for weak scaling and one for strong scaling. Error bars span the repeats.
    """
    cells = scaling_cells(results)
    scalings = list(dict.fromkeys(cells["scaling"]))
    figure, panels = parts.panels(len(scalings), PANEL)
    for axes, scaling in zip(panels, scalings, strict=True):
        parts.head(axes, f"{scaling} scaling: {MEANING[scaling]}", parts.TEXT)
        curves = curves_of(cells[cells["scaling"] == scaling])
        if not curves:
            parts.show_message(figure, axes, "no cell with a single worker to compare with")
            continue
        workers = sorted(
            {int(count) for curve in curves.values() for count in curve["num_workers"]}
        )
        curves_drawn = list(curves.items())[:MOST_CURVES]
        for number, (name, curve) in enumerate(curves_drawn):
            shift = 2.0 ** (ASIDE * (number - (len(curves_drawn) - 1) / 2))
            middle = curve[column].astype(float)
            below = middle - curve[f"{column}_low"].astype(float)
            above = curve[f"{column}_high"].astype(float) - middle
            bars = np.array([length.fillna(0.0).clip(lower=0) for length in (below, above)])
            style = _style(number) | {"linewidth": 1.5, "markersize": 6, "elinewidth": 1}
            style |= {"label": parts.wrapped(_short_name(name, scaling, cells), parts.ROOM)}
            axes.errorbar(curve["num_workers"] * shift, middle, yerr=bars, capsize=3, **style)
        if column == "speedup":  # with two log axes, ideal scaling is a straight line
            low, high = axes.get_ylim()
            parts.log_axis(axes, "y", max(low, 0.05), max(high, *workers), margin=1.02)
            axes.plot([1, max(workers)], [1, max(workers)], **IDEAL)
        else:
            axes.set_ylim(bottom=0)
            axes.axhline(1, **IDEAL)
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.minorticks_off()
        axes.set_xlim(min(workers) / 1.2, max(workers) * 1.2)
        axes.set(xlabel="workers", ylabel=label)
        _add_legend(figure, axes, len(curves))
    return figure


speedup_figure = partial(_curves_figure, "speedup", "speed-up over one worker")
efficiency_figure = partial(_curves_figure, "efficiency", "efficiency")


def _add_legend(figure: Figure, axes: Axes, num_curves: int) -> None:
    """Add a legend below a panel, and increase the height of the figure by that of the legend."""
    handles, labels = axes.get_legend_handles_labels()
    if num_curves > MOST_CURVES:
        handles.append(parts.note(""))
        labels.append(MORE.format(num_curves - MOST_CURVES, "curves"))
    columns = parts.columns_for(labels, max_columns=2)
    place: dict[str, Any] = {"bbox_to_anchor": (-0.1, -0.2), "borderaxespad": 0}
    axes.legend(handles, labels, loc="upper left", ncols=columns, **place, **parts.LEGEND)
    lines = -(-len(labels) // columns) + 1 + sum(str(label).count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + parts.LINE * lines)


def _short_name(name: str, scaling: str, cells: pd.DataFrame) -> str:
    """Return the name of a curve without the parts that are in the title of the panel or common to
    all curves."""
    name = name.replace(f", {scaling},", ",")
    for column in ("topology", "workload"):
        values = set(cells[column])
        if len(values) == 1:
            name = name.replace(f", {values.pop()}", "")
    return name


MOST_LINES = 16
"""Maximum number of cells (run specs) in a legend."""


def accuracy_figure(results: Study) -> Figure:
    """Draw the validation metric of every run over epochs, and over training seconds."""
    metric, runs = results.metric, scaling_runs(results)
    cells = scaling_cells(results).drop_duplicates("cell")
    figure, panels = parts.panels(2, 2.8, sharey=True)
    curves = dict(iter(results.curves.groupby("trial")))
    for axes, column, label in zip(
        panels, ("epoch", "train_s"), ("epochs", "seconds of training [s]"), strict=True
    ):
        axes.set(xlabel=label, ylabel=parts.plain(metric.axis_words))
        for number, cell in enumerate(cells["cell"]):
            for trial in runs.loc[runs["cell"] == cell, "trial"]:
                if trial in curves:
                    curve = curves[trial]
                    y = drawn(metric, curve[metric.name])
                    axes.plot(curve[column], y, gid=trial, **_style(number))
        metric_axis(axes, results)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", integer=axes.get_xlim()[1] > 2)
    keys: list[Artist] = [
        parts.key(parts.wrapped(cell_label(row), parts.ROOM), **_style(number))
        for number, row in enumerate(cells.to_dict("records"))
    ]
    if len(keys) > MOST_LINES:
        keys[MOST_LINES:] = [parts.note(MORE.format(len(keys) - MOST_LINES, "cells"))]
    parts.legend_below(figure, keys, max_columns=2)
    return figure


def _style(number: int) -> dict[str, Any]:
    """Return the style of line `number` (from 0); when all colors are used, the dashes change."""
    dashes = parts.LINE_STYLES[number // len(parts.COLORS) % len(parts.LINE_STYLES)]
    style = {"color": parts.color(number), "marker": parts.marker(number), "linestyle": dashes}
    return style | {"linewidth": 1.2, "markersize": 4}


MODEL_FILE, PLAN_FILE = "model.csv", "plan.csv"
MODEL_COLUMNS = (
    *("kind", "series", "num_workers", "batch_size_per_worker", "samples_per_s"),
    *("low", "high", "extrapolated"),
)
"""Columns of MODEL_FILE. `kind` is `predicted` or `measured`. There is one measured row per repeat;
the last three columns are missing in it."""


def model_frame(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the content of MODEL_FILE; the arguments are those of `predicted_figure`."""
    tables = [measured.assign(kind="measured"), predicted.assign(kind="predicted")]
    return pd.concat(tables, ignore_index=True).reindex(columns=list(MODEL_COLUMNS))


def read_model(results: Study) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read MODEL_FILE; return (measured, predicted), the arguments of `predicted_figure`."""
    table = pd.read_csv(results.folder / MODEL_FILE)
    measured, predicted = (table[table["kind"] == kind] for kind in ("measured", "predicted"))
    return measured, predicted.astype({"extrapolated": bool})


def read_plan(results: Study) -> pd.DataFrame:
    """Read PLAN_FILE; return the plan, which is the argument of `plan_figure`."""
    return pd.read_csv(results.folder / PLAN_FILE)


MOST_PLANS, MOST_BATCHES = 6, 6
"""Maximum number of panels of a plan, and of lines in a panel of predictions."""


def plan_figure(plan: pd.DataFrame) -> Figure:
    """Draw predicted and measured seconds of a job (training to the target) over its cost.

    There is one panel per series, one color per offer (machine type), and one marker per worker
    count. Hollow markers are predictions (~). The stepped line is the Pareto front; its points have
    90 % intervals.

    Args:
        plan: Content of PLAN_FILE. measured_s is missing for an option that was not run, and
            infinite if most of its runs missed the target.
    """
    names = list(dict.fromkeys(plan["series"]))[:MOST_PLANS]
    figure, panels = parts.panels(max(len(names), 1), 3.4, 0.3)
    if not names:
        return parts.show_message(figure, panels[0], "no plan: too little was measured")
    offers = list(dict.fromkeys(plan["offer"]))
    for axes, name in zip(panels, names, strict=True):
        rows = plan[plan["series"] == name]
        parts.head(axes, parts.wrapped(name, parts.ROOM))
        _draw_plan(axes, rows, {offer: parts.color(i) for i, offer in enumerate(offers)})
        axes.set_ylabel("seconds of the job [s]")
    unit = plan["unit"].iloc[0]
    panels[-1].set_xlabel("bill" if unit == MONEY else "worker-seconds that are held [s]")
    keys: list[Artist] = [Patch(color=parts.color(i), label=n) for i, n in enumerate(offers)]
    keys += parts.workers(plan["num_workers"], is_filled=False)
    keys.append(parts.key("no other is faster and cheaper", linewidth=1.2))
    keys.append(parts.key("90 % interval", linewidth=4, alpha=0.25))
    if np.isfinite(plan["measured_s"]).any():
        keys.append(parts.dot("measured (median); hollow: ~ predicted"))
    parts.legend_below(figure, keys, max_columns=2)
    return figure


def _draw_plan(axes: Axes, rows: pd.DataFrame, colors: dict[str, str]) -> None:
    is_near = rows["seconds"] <= parts.FAR * rows["seconds"].min()
    rows = rows[is_near | (rows["cost"] <= rows["cost"].min())]
    ran = rows[np.isfinite(rows["measured_s"])]
    front = rows[not_dominated(rows[["cost", "seconds"]].to_numpy(dtype=float))]
    front = front.sort_values("cost")
    for which, column, suffix in (("x", "cost", "cost"), ("y", "seconds", "s")):
        columns = [rows[column], front[f"low_{suffix}"], front[f"high_{suffix}"]]
        columns.append(ran["measured_cost" if which == "x" else "measured_s"])
        values = pd.concat(columns)
        parts.log_axis(axes, which, values.min(), values.max())
    style: dict[str, Any] = {"drawstyle": "steps-post", "color": parts.INK, "linewidth": 1.2}
    axes.plot(front["cost"], front["seconds"], gid="front", zorder=2, **style)
    for row in parts.tuples(front):
        style = {"color": colors[row.offer], "linewidth": 4, "alpha": 0.25, "zorder": 1}
        axes.plot([row.low_cost, row.high_cost], [row.seconds] * 2, **style)
        axes.plot([row.cost] * 2, [row.low_s, row.high_s], **style)
    for table, x, y, extra in (
        (rows, "cost", "seconds", {"markerfacecolor": parts.PAPER, "gid": "extrapolated"}),
        (ran, "measured_cost", "measured_s", {}),
    ):
        for (offer, _), group in table.groupby(["offer", "num_workers"], sort=False):
            marker = parts.marker_of(group["num_workers"].iloc[0])
            style = {"color": colors[str(offer)], "marker": marker, "linestyle": "none", **extra}
            axes.plot(group[x], group[y], markersize=6, **style)


TITLE_WIDTH = 32
"""Maximum length of a line in the title of a panel, in characters."""
MOST_SERIES = 8


def predicted_figure(measured: pd.DataFrame, predicted: pd.DataFrame) -> Figure:
    """Draw measured and predicted throughput over worker counts, with one panel per series.

    Args:
        measured: One row per repeat, with the columns series, num_workers, batch_size_per_worker
            and samples_per_s.
        predicted: One row per prediction, with the same columns and with low and high (90 %
            interval of samples_per_s) and extrapolated (whether it lies beyond the measured range;
            such predictions are drawn dashed).
    """
    names = list(dict.fromkeys(predicted["series"]))[:MOST_SERIES]
    width = min(max(len(names), 1), 2)
    figure, panels = parts.panels(max(len(names), 1), 2.6, 0.4, columns=2)
    if not names:
        return parts.show_message(figure, panels[0], "no series with several worker counts")
    batches = sorted(set(predicted["batch_size_per_worker"]))
    batches_drawn = parts.spread(batches, MOST_BATCHES)
    for axes, name in zip(panels, names, strict=False):
        axes.set(xscale="log", yscale="log")
        parts.head(axes, parts.wrapped(name, TITLE_WIDTH))
        predictions = predicted[predicted["series"] == name]
        measurements = measured[measured["series"] == name]
        for number, batch in enumerate(batches_drawn):
            line = predictions[predictions["batch_size_per_worker"] == batch]
            if len(line):
                dots = measurements[measurements["batch_size_per_worker"] == batch]
                _predicted_line(axes, line, dots, number)
        sizes = sorted({int(size) for size in predictions["num_workers"]})
        sizes = sizes[:: max(-(-len(sizes) // 8), 1)]
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        parts.log_axis(axes, "y", *axes.get_ylim(), margin=1.0)
    for axes in panels[max(len(names) - width, 0) : len(names)]:
        axes.set_xlabel("workers")
    parts.y_title(figure, "samples/s of all workers")
    parts.legend_below(figure, _predicted_keys(batches_drawn, len(batches)), columns=2)
    return figure


def _predicted_keys(batches_drawn: list[int], num_batches: int) -> list[Artist]:
    keys: list[Artist] = [
        parts.key(f"batch {batch:g} per worker", parts.color(number), marker=parts.marker(number))
        for number, batch in enumerate(batches_drawn)
    ]
    keys.append(parts.dot("measured, one dot per repeat"))
    keys.append(Patch(color=parts.INK, alpha=0.15, label="the model, 90 % interval"))
    keys.append(parts.key("~ beyond what was measured", linestyle="--"))
    if num_batches > len(batches_drawn):
        keys.append(
            parts.key(f"{len(batches_drawn)} of {num_batches} batch sizes drawn", linestyle="none")
        )
    return keys


def _predicted_line(axes: Axes, line: pd.DataFrame, dots: pd.DataFrame, number: int) -> None:
    color = parts.color(number)
    line = line.sort_values("num_workers")
    interpolated = line[~line["extrapolated"]]
    extrapolated = pd.concat([interpolated.tail(1), line[line["extrapolated"]]])
    axes.plot(interpolated["num_workers"], interpolated["samples_per_s"], color=color)
    if len(extrapolated) > len(interpolated.tail(1)):
        style: dict[str, Any] = {"color": color, "linestyle": "--", "gid": "extrapolated"}
        axes.plot(extrapolated["num_workers"], extrapolated["samples_per_s"], **style)
    axes.fill_between(line["num_workers"], line["low"], line["high"], color=color, alpha=0.1, lw=0)
    style = {"marker": parts.marker(number), "markersize": 4.5, "color": color}
    axes.plot(dots["num_workers"], dots["samples_per_s"], linestyle="none", **style)


SPEED_WORDS = {
    "curve": "curve",
    "num_workers": "workers",
    "speedup": "speed-up",
    "efficiency": "efficiency",
    "low": "least of the repeats",
    "high": "most",
    "samples_per_s": "samples/s",
}
MODEL_WORDS = {
    "series": "series",
    "num_workers": "workers",
    "batch_size_per_worker": "batch per worker",
    "samples_per_s": "samples/s ~",
    "low": "from",
    "high": "to (90 %)",
    "extrapolated": "beyond what was measured",
}
PLAN_WORDS = {
    "series": "series",
    "offer": "on",
    "num_workers": "workers",
    "global_batch_size": "global batch",
    "seconds": "seconds of the job ~",
    "low_s": "from [s]",
    "high_s": "to [s] (90 %)",
    "cost": "bill ~",
    "low_cost": "bill from",
    "high_cost": "to (90 %)",
    "measured_s": "measured seconds",
}


def _speeds(results: Study, column: str) -> pd.DataFrame:
    table = pd.concat(list(curves_of(scaling_cells(results)).values()))
    ends = {f"{column}_low": "low", f"{column}_high": "high"}
    dropped = "efficiency" if column == "speedup" else "speedup"
    return parts.in_words(table.drop(columns=dropped).rename(columns=ends), SPEED_WORDS)


def _shares_table(results: Study) -> pd.DataFrame:
    rows = []
    for row in share_cells(scaling_cells(results)).head(parts.MOST_ROWS).to_dict("records"):
        shares = {f"{part} [%]": 100 * share for part, share in step_shares(row).items()}
        rows.append({"cell": cell_label(row), "step [ms]": 1000 * row["step_median_s"]} | shares)
    return pd.DataFrame(rows).fillna(0.0)


def _values_table(results: Study) -> pd.DataFrame:
    metric, runs = results.metric, scaling_runs(results)
    labels = {row["cell"]: cell_label(row) for row in scaling_cells(results).to_dict("records")}
    return pd.DataFrame(
        {
            "cell": runs["cell"].map(labels),
            "run": runs["trial"],
            "seconds of training": runs["train_s"],
            f"last {metric.axis_words}": drawn(metric, runs[metric.name].astype(float)),
            f"best {metric.axis_words}": drawn(metric, runs[metric.best_column].astype(float)),
        }
    ).head(parts.MOST_ROWS)


def _has_curves(results: Study) -> bool:
    return not scaling_cells(results).empty and bool(curves_of(scaling_cells(results)))


SCALING_FIGURES: dict[str, FigureKind] = {
    "speedup": FigureKind(
        "Speed-up over workers",
        "Samples per second relative to the best single worker. The dotted line is ideal scaling; "
        "error bars span the repeats.",
        speedup_figure,
        lambda results: _speeds(results, "speedup"),
        _has_curves,
    ),
    "efficiency": FigureKind(
        "Efficiency over workers",
        "Speed-up divided by the number of workers: the used share of the hardware.",
        efficiency_figure,
        lambda results: _speeds(results, "efficiency"),
        _has_curves,
    ),
    "step_shares": FigureKind(
        "Where a step's time goes",
        "The time of a step on one worker alone, and the time that more workers add. A long last "
        "part is contention, or waiting for the slowest worker.",
        shares_figure,
        _shares_table,
        lambda results: not share_cells(scaling_cells(results)).empty,
    ),
    "predicted": FigureKind(
        "Predicted against measured",
        "Dots are measured; lines are the model with its 90 % band, dashed where it extrapolates.",
        lambda results: predicted_figure(*read_model(results)),
        lambda results: parts.in_words(read_model(results)[1], MODEL_WORDS),
        lambda results: (results.folder / MODEL_FILE).is_file(),
    ),
    "plan": FigureKind(
        "Seconds to the target against the bill",
        "Lower is faster, further left is cheaper. Hollow marks are predicted (~), filled ones "
        "measured. Points above the steps are slower than another option that costs no more.",
        lambda results: plan_figure(read_plan(results)),
        lambda results: parts.in_words(read_plan(results).sort_values("seconds"), PLAN_WORDS),
        lambda results: (results.folder / PLAN_FILE).is_file(),
    ),
    "values": FigureKind(
        "Metric over epochs and seconds",
        "The metric of every run. Ideally, more workers need as many epochs as fewer workers, and "
        "less time.",
        accuracy_figure,
        _values_table,
        lambda results: (
            len(scaling_cells(results)) > 0
            and bool(results.curves[results.metric.name].notna().any())
        ),
    ),
}
"""Figures, keyed by name. The PNG file of `values` is named after the metric."""
