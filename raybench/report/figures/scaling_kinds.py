"""The figures of a scaling study, in the order of the page."""

import pandas as pd

from raybench.report.figures.parts import FigureKind, drawn
from raybench.report.figures.scaling_plots import (
    accuracy_figure,
    cell_label,
    cell_rows,
    efficiency_figure,
    share_cells,
    shares_figure,
    speedup_figure,
    step_shares,
)
from raybench.report.scaling_files import (
    MODEL_FILE,
    PLAN_FILE,
    has_file,
    plan_figure,
    predicted_figure,
    read_model,
    read_plan,
)
from raybench.results.study import Study
from raybench.scaling.cells import curves_of, scaling_cells, scaling_runs

MOST_ROWS = 50


def _has_curves(results: Study) -> bool:
    return not scaling_cells(results).empty and bool(curves_of(scaling_cells(results)))


def _has_steps(results: Study) -> bool:
    return not share_cells(scaling_cells(results)).empty


def _has_values(results: Study) -> bool:
    return bool(results.curves[results.metric.name].notna().any())


def _speedups(results: Study, column: str, words: str) -> pd.DataFrame:
    curves = list(curves_of(scaling_cells(results)).values())
    table = pd.concat(curves) if curves else scaling_cells(results).head(0)
    table = table.head(MOST_ROWS)
    return pd.DataFrame(
        {
            "curve": table["curve"],
            "workers": table["num_workers"],
            words: table[column],
            "least of the repeats": table[f"{column}_low"],
            "most": table[f"{column}_high"],
            "samples/s": table["samples_per_s"],
        }
    ).reset_index(drop=True)


def _shares_table(results: Study) -> pd.DataFrame:
    rows = []
    for row in cell_rows(share_cells(scaling_cells(results)).head(MOST_ROWS)):
        shares = {f"{part} [%]": 100 * share for part, share in step_shares(row).items()}
        rows.append({"cell": cell_label(row), "step [ms]": 1000 * row["step_median_s"]} | shares)
    return pd.DataFrame(rows).fillna(0.0)


def _values_table(results: Study) -> pd.DataFrame:
    metric, runs = results.metric, scaling_runs(results)
    labels = {row["cell"]: cell_label(row) for row in cell_rows(scaling_cells(results))}
    return pd.DataFrame(
        {
            "cell": runs["cell"].map(labels),
            "run": runs["trial"],
            "seconds of training": runs["train_s"],
            f"last {metric.axis_words}": drawn(metric, runs[metric.name].astype(float)),
            f"best {metric.axis_words}": drawn(metric, runs[metric.best_column].astype(float)),
        }
    ).head(MOST_ROWS)


def _model_table(results: Study) -> pd.DataFrame:
    _, table = read_model(results)
    beyond = table["extrapolated"].map({True: "yes", False: "no"})
    return pd.DataFrame(
        {
            "series": table["series"],
            "workers": table["num_workers"],
            "batch per worker": table["batch_size_per_worker"],
            "samples/s ~": table["samples_per_s"],
            "from": table["low"],
            "to (90 %)": table["high"],
            "beyond what was measured": beyond,
        }
    ).head(MOST_ROWS)


def _plan_table(results: Study) -> pd.DataFrame:
    table = read_plan(results).sort_values("seconds").head(MOST_ROWS)
    return pd.DataFrame(
        {
            "series": table["series"],
            "on": table["gpu_type"],
            "workers": table["num_workers"],
            "global batch": table["global_batch_size"],
            "seconds to the target ~": table["seconds"],
            "from [s]": table["low_s"],
            "to [s] (90 %)": table["high_s"],
            "worker-seconds ~": table["worker_seconds"],
            "measured seconds": table["measured_s"],
        }
    ).reset_index(drop=True)


SCALING_FIGURES: dict[str, FigureKind] = {
    "speedup": FigureKind(
        "Speed-up over workers",
        "How many times the samples per second of the best single worker; on the dotted line every "
        "worker adds all of its speed. Bars are the least and the most of the repeats.",
        speedup_figure,
        lambda results: _speedups(results, "speedup", "speed-up"),
        _has_curves,
    ),
    "efficiency": FigureKind(
        "Efficiency over workers",
        "Speed-up over the number of workers: what of the hardware is used, 1 is all of it.",
        efficiency_figure,
        lambda results: _speedups(results, "efficiency", "efficiency"),
        _has_curves,
    ),
    "step_shares": FigureKind(
        "Where a step's time goes",
        "What a step would take on one worker alone, and what more workers add; a long last part "
        "is contention, or waiting for the slowest.",
        shares_figure,
        _shares_table,
        _has_steps,
    ),
    "predicted": FigureKind(
        "Predicted against measured",
        "Dots are measured, the line is the model with its 90 % band; dashed is beyond what was "
        "measured.",
        lambda results: predicted_figure(*read_model(results)),
        _model_table,
        lambda results: has_file(results, MODEL_FILE),
    ),
    "plan": FigureKind(
        "Seconds to the target, planned",
        "Hollow and dashed (~) is predicted, filled was measured; the lowest point is the fastest "
        "layout and batch size.",
        lambda results: plan_figure(read_plan(results)),
        _plan_table,
        lambda results: has_file(results, PLAN_FILE),
    ),
    "values": FigureKind(
        "What the runs learnt",
        "The metric of every run, against epochs and against seconds: more workers shall be left "
        "of fewer in seconds, and as high in epochs.",
        accuracy_figure,
        _values_table,
        _has_values,
    ),
}
"""By name; as a picture in the folder `values` has the name of the metric."""
