"""The tables printed at the end of a study, each a DataFrame of its own."""

import pandas as pd
from rich.table import Table

from raybench.core.clock import PHASES
from raybench.results.load import StudyResults, describe

SECONDS = "{:.2f}"
BATCH_STATISTICS = (
    "The model has batch normalisation over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other splits are rough. "
    "--set search.factorise=false --fresh samples workers like the rest."
)
LONG_TEXTS = ("for example",)
"""Columns that may take several lines."""
FORMATS = {
    "best accuracy": "{:.1%}",
    "samples/s": "{:,.0f}",
    "samples /s": "{:,.0f}",
    "learning rate": "{:.3g}",
    "share": "{:.0%}",
    "test accuracy": "{:.1%}",
}


def ranked(trials: pd.DataFrame, *, phase: str = "search") -> pd.DataFrame:
    """Return the runs of a phase that did not fail, best score first."""
    chosen = trials[(trials["phase"] == phase) & (trials["state"] != "failed")]
    return chosen.sort_values("score", kind="stable")


def top(trials: pd.DataFrame, *, number: int = 10) -> pd.DataFrame:
    """Return the best runs of the search, in the words of the printed table."""
    return _readable(ranked(trials).head(number))


def best_per_framework(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the best run of each framework."""
    return _readable(ranked(trials).groupby("framework", sort=False).head(1))


def predictions(results: StudyResults, *, number: int = 6) -> pd.DataFrame:
    """Return the fastest splits that no run has measured, by the step-time model.

    Columns: trial (whose learning curve is carried over), configuration, "seconds ~" and
    "worker s ~" to the target; the `~` says predicted.
    """
    table = results.predictions.merge(
        results.trials[["trial", "optimizer", "learning_rate"]], on="trial"
    )
    run = {describe(spec) for spec in results.specs.values()}
    table["configuration"] = [
        describe({str(key): value for key, value in row.items()})
        for row in table.to_dict("records")
    ]
    table = table[~table["configuration"].isin(run)]
    table["seconds ~"] = table["time_to_target_s"].astype(float)
    table["worker s ~"] = table["seconds ~"] * table["num_workers"]
    best = table.sort_values("seconds ~", kind="stable").head(number)
    chosen = best[["trial", "configuration", "seconds ~", "worker s ~"]]
    return chosen.reset_index(drop=True)


def ledger_totals(trials: pd.DataFrame) -> pd.DataFrame:
    """Return where the seconds of all runs went: phase, seconds, share of the sum of walls."""
    seconds = {phase: float(trials[f"{phase}_s"].sum()) for phase in PHASES}
    wall = float(trials["wall_s"].sum())
    rows = [
        {"phase": phase, "seconds": value, "share": value / wall if wall else 0.0}
        for phase, value in seconds.items()
    ]
    total = sum(seconds.values())
    rows.append({"phase": "sum", "seconds": total, "share": total / wall if wall else 0.0})
    return pd.DataFrame(rows)


def slow_down(trials: pd.DataFrame) -> float | None:
    """Return how much slower the sentinel trained beside another trial, as a fraction.

    None where it was not run (no two trials ran at the same time) or did not finish.
    """
    speeds = trials.set_index("trial")["samples_per_s"]
    names = ("sentinel-alone", "sentinel-beside")
    if not all(name in speeds and speeds[name] > 0 for name in names):
        return None
    alone, beside = (float(speeds[name]) for name in names)
    return alone / beside - 1.0


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the failed runs by cause, with one message of each."""
    failed = trials[trials["state"] == "failed"]
    rows = [
        {"failure": cause, "runs": len(group), "for example": group["message"].iloc[0]}
        for cause, group in failed.groupby("failure")
    ]
    return pd.DataFrame(rows, columns=["failure", "runs", "for example"])


def narrow(frame: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs for 80 columns: one configuration column instead of five."""
    label = trials.set_index("trial")["config"].str.replace("tensorflow", "tf")
    kept = ("target after s", "worker s", "best accuracy", "samples /s", "end to end s")
    frame = frame.rename(columns={"samples/s": "samples /s"})
    head = pd.DataFrame({"trial": frame["trial"], "configuration": frame["trial"].map(label)})
    return pd.concat([head, frame["global batch"], frame[list(kept)]], axis=1)


def to_rich(frame: pd.DataFrame, title: str) -> Table:
    """Render a DataFrame for the terminal; numbers right, missing values as a dash."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    for name in frame.columns:
        is_text = not pd.api.types.is_numeric_dtype(frame[name])
        title_lines = "\n".join(str(name).rsplit(" ", 1))
        table.add_column(
            title_lines,
            justify="left" if is_text else "right",
            no_wrap=is_text and name not in LONG_TEXTS,
        )
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(str(n), v) for n, v in zip(frame.columns, row, strict=True)))
    return table


def _readable(runs: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "trial": runs["trial"],
            "framework": runs["framework"],
            "workers": runs["num_workers"],
            "batch per worker": runs["batch_size_per_worker"],
            "global batch": runs["global_batch_size"],
            "optimizer": runs["optimizer"],
            "learning rate": runs["learning_rate"],
            "target after s": runs["time_to_target_s"],
            "worker s": runs["num_workers"] * runs["time_to_target_s"],
            "best accuracy": runs["best_accuracy"],
            "samples/s": runs["samples_per_s"],
            "end to end s": runs["wall_s"],
        }
    ).reset_index(drop=True)


def _cell(name: str, value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if name in FORMATS:
        return FORMATS[name].format(value)
    return SECONDS.format(value) if isinstance(value, float) else str(value)
