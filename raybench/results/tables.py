"""The tables printed at the end of a study, each a DataFrame of its own."""

import pandas as pd

from raybench.core.metric import ACCURACY, Metric
from raybench.results.analyses import ledger_totals as ledger_totals
from raybench.results.failures import failures as failures
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked as ranked
from raybench.results.trials import searched_columns

BATCH_STATISTICS = (
    "The model has batch normalisation over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other splits are rough. "
    "--set search.factorise=false --fresh samples workers like the rest."
)


def top(trials: pd.DataFrame, *, number: int = 10, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return the best runs of the search, in the words of the printed table.

    `metric` is the study's: `StudyResults.metric`.
    """
    begun = trials[trials[metric.best_column].notna() | (trials["state"] == "failed")]
    return _readable(ranked(begun).head(number), metric)


def best_per_framework(trials: pd.DataFrame, *, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return the best run of each framework."""
    return _readable(ranked(trials).groupby("framework", sort=False).head(1), metric)


def predictions(results: StudyResults, *, number: int = 6) -> pd.DataFrame:
    """Return the fastest splits that no run has measured, by the step-time model.

    Columns: trial (whose learning curve is carried over), configuration, "seconds ~" and
    "worker s ~" to the target; the `~` says predicted.
    """
    run = {results.label(spec) for spec in results.specs.values()}
    rows = []
    for row in results.predictions.to_dict("records"):
        if row["trial"] not in results.specs:
            continue  # its run was lost
        seconds = float(row["time_to_target_s"])
        split = {key: row[key] for key in ("framework", "num_workers", "batch_size_per_worker")}
        label = results.label(results.specs[row["trial"]].model_copy(update=split))
        if label not in run:
            rows.append((row["trial"], label, seconds, seconds * row["num_workers"]))
    table = pd.DataFrame(rows, columns=["trial", "configuration", "seconds ~", "worker s ~"])
    best = table.sort_values("seconds ~", kind="stable").head(number)
    return best.reset_index(drop=True)


def slow_down(trials: pd.DataFrame) -> float | None:
    """Return how much slower the sentinel trained beside another trial, as a fraction.

    None where it was not run (no two trials ran at the same time) or did not finish.
    """
    runs = trials[(trials["role"] == "sentinel") & (trials["samples_per_s"] > 0)]
    alone = runs["samples_per_s"][runs["concurrent"] == 0]
    beside = runs["samples_per_s"][runs["concurrent"] > 0]
    if alone.empty or beside.empty:
        return None
    return float(alone.iloc[-1] / beside.iloc[-1]) - 1.0


def _readable(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    head = {
        "trial": runs["trial"],
        "framework": runs["framework"],
        "workers": runs["num_workers"],
        "batch per worker": runs["batch_size_per_worker"],
        "global batch": runs["global_batch_size"],
        "optimizer": runs["optimizer"],
        "learning rate": runs["learning_rate"],
    }
    more = {title: runs[key] for title, key in _telling_layout(runs).items()}
    more |= {key: runs[key] for key in searched_columns(runs)}
    measured = {
        "target after s": runs["crossed_s"],
        "worker s to target": runs["num_workers"] * runs["crossed_s"],
        f"best {metric.words}": runs[metric.best_column],
        "samples/s": runs["samples_per_s"],
        "train s": runs["train_s"],
        "end to end s": runs["wall_s"],
    }
    return pd.DataFrame(head | more | measured).reset_index(drop=True)


def _telling_layout(runs: pd.DataFrame) -> dict[str, str]:
    """Return the columns of what runs were on that tell them apart, by their titles.

    A run that failed may have had no workers, and of an earlier version's nobody knows the hosts:
    both say nothing. What a run waited for says why it is on other hosts than others.
    """
    trained = runs[runs["state"] != "failed"]
    found = {}
    if len(set(trained["num_nodes"].dropna())) > 1:
        found["hosts"] = "num_nodes"
    if len(set(trained["accelerators"].fillna(""))) > 1:
        found["GPUs"] = "accelerators"
    if "hosts" in found and trained["waited_for"].notna().any():
        found["waited for"] = "waited_for"
    return found
