"""The figures there are, in the order of the page, and the numbers of each as a table: columns in
words, with their units."""

import pandas as pd

from raybench.report.figures.batches import (
    Outcome,
    batch_rows,
    batches_figure,
    outcome,
    predicted_rows,
)
from raybench.report.figures.curves import curves_figure, race_figure, race_rows, repeats_figure
from raybench.report.figures.pareto import pareto_figure
from raybench.report.figures.parts import FigureKind as FigureKind
from raybench.report.figures.parts import drawn
from raybench.report.figures.scaling_kinds import SCALING_FIGURES as SCALING_FIGURES
from raybench.report.figures.slices import (
    importance_figure,
    keys_by_importance,
    plateaus,
    slices_figure,
)
from raybench.report.figures.timeline import ledger_figure, phases, spans, timeline_figure
from raybench.report.tables import ledger_totals
from raybench.results.analyses import best_at_every_budget, importance_of, pareto_front
from raybench.results.ranking import configurations, confirmed, ranked, repeated
from raybench.results.study import Study
from raybench.results.verdict import reached_target

MOST_ROWS = 50
"""Rows of a table; the best come first, and `trials.csv` has all."""


def curves_table(results: Study) -> pd.DataFrame:
    """Return the best at every budget of seconds, of the search's runs."""
    metric, trials = results.metric, results.trials
    search = set(trials["trial"][trials["phase"] == "search"])
    curves = results.curves[results.curves["trial"].isin(search)]
    best = best_at_every_budget(curves, metric)
    labels = trials.set_index("trial")["config"]
    table = pd.DataFrame(
        {
            "seconds of training": best["train_s"],
            f"best {metric.axis_words}": drawn(metric, best[metric.name]),
            "trial": best["trial"],
            "configuration": best["trial"].map(labels),
        }
    )
    return table.tail(MOST_ROWS).reset_index(drop=True)


def race_table(results: Study) -> pd.DataFrame:
    """Return every run of the configurations that were trained again."""
    rows = race_rows(results)
    what = "seconds to the target" if results.is_timed else f"best {results.metric.axis_words}"
    labels = results.trials.set_index("trial")["config"]
    return pd.DataFrame(
        {
            "trial": rows["trial"],
            "configuration": rows["trial"].map(labels),
            "run": rows["run"],
            "what for": rows["role"].replace({"trial": "search", "placement_check": "search"}),
            what: rows["value"],
            "reached the target" if results.is_timed else "finished": _yes(rows["is_hit"]),
        }
    )


def pareto_table(results: Study) -> pd.DataFrame:
    """Return seconds and worker-seconds of the configurations that reached the target."""
    points = reached_target(results)
    if points.empty:
        return _metric_costs(results)
    front = set(pareto_front(points)["trial"])
    table = pd.DataFrame(
        {
            "trial": points["trial"],
            "configuration": points["config"],
            "workers": points["num_workers"],
            "expected seconds": points["time_to_target_s"],
            "from [s]": points["low_s"],
            "to [s] (90 %)": points["high_s"],
            "worker-seconds": points["worker_seconds_to_target"],
            "runs": points["runs"],
            "on the Pareto front": _yes(points["trial"].isin(front)),
        }
    )
    return table.head(MOST_ROWS)


def _metric_costs(results: Study) -> pd.DataFrame:
    rows, metric = ranked(results.trials), results.metric
    table = pd.DataFrame(
        {
            "trial": rows["trial"],
            "configuration": rows["config"],
            "workers": rows["num_workers"],
            f"best {metric.axis_words}": drawn(metric, rows[metric.best_column]),
            "worker-seconds of training": rows["worker_seconds"],
        }
    )
    return table.head(MOST_ROWS).reset_index(drop=True)


def batches_table(results: Study) -> pd.DataFrame:
    """Return the outcome at every batch size, measured and predicted."""
    measured, words = batch_rows(results), _words(outcome(results))
    both = pd.concat(
        [measured.assign(known="measured"), predicted_rows(results).assign(known="~ predicted")],
        ignore_index=True,
    )
    both = both[both["outcome"].notna()].head(MOST_ROWS)
    return pd.DataFrame(
        {
            "trial": both["trial"],
            "framework": both["framework"],
            "workers": both["num_workers"],
            "optimizer": both["optimizer"],
            "global batch": both["batch"],
            words: both["outcome"],
            "known by": both["known"],
        }
    )


def importance_table(results: Study) -> pd.DataFrame:
    """Return what each key tells of the result."""
    table = importance_of(results)
    return pd.DataFrame(
        {
            "key": table["key"],
            "share [%]": 100 * table["importance"],
            "from [%]": 100 * table["low"],
            "to [%]": 100 * table["high"],
        }
    )


def slices_table(results: Study) -> pd.DataFrame:
    """Return each key's best value and its plateau."""
    names = {"best": "best value", "from": "as good from", "to": "as good up to"}
    return plateaus(results).rename(columns=names)


def timeline_table(results: Study) -> pd.DataFrame:
    """Return when each phase ran, how many runs it had, and how many of them ran at once."""
    runs = spans(results).runs
    found = phases(runs)
    return pd.DataFrame(
        {
            "phase": found["role"].replace({"trial": "search"}),
            "runs": found["runs"],
            "from second": found["begin"],
            "to second": found["end"],
            "most at once": [_most_at_once(runs[runs["role"] == role]) for role in found["role"]],
        }
    )


def _most_at_once(runs: pd.DataFrame) -> int:
    """Return the most lanes in use at a time."""
    begins = runs[["begin"]].assign(change=1).rename(columns={"begin": "at"})
    ends = runs[["end"]].assign(change=-1).rename(columns={"end": "at"})
    every = pd.concat([begins, ends]).sort_values(["at", "change"])
    return int(min(every["change"].cumsum().max(), runs["lane"].nunique()))


def repeats_table(results: Study) -> pd.DataFrame:
    """Return what the confirmed configurations are printed with."""
    table, metric = confirmed(results), results.metric
    found = {
        "trial": table["trial"],
        "configuration": table["config"],
        "new runs": table["new_runs"],
    }
    if results.is_timed:
        found |= {
            "reached the target": table["new_hits"],
            "seconds": table["printed_s"],
            "fastest [s]": table["low_s"],
            "slowest [s]": table["high_s"],
        }
    else:
        for end, words in (("median", "median"), ("low", "least"), ("high", "most")):
            found[f"{words} {metric.axis_words}"] = drawn(metric, table[f"{end}_{metric.name}"])
    return pd.DataFrame(found)


def ledger_table(results: Study) -> pd.DataFrame:
    """Return the seconds of each phase and their share."""
    table = ledger_totals(results.trials)
    share = 100 * table["share"]
    return pd.DataFrame({"phase": table["phase"], "seconds": table["seconds"], "share [%]": share})


def _words(found: Outcome) -> str:
    return found.words.replace(" [s]", "") if found.is_seconds else found.words.replace("\\$", "$")


def _yes(values: "pd.Series[bool]") -> "pd.Series[str]":
    return values.map({True: "yes", False: "no"})


def _has_curves(results: Study) -> bool:
    return bool((results.trials["phase"] == "search").any())


def _has_times(results: Study) -> bool:
    told = results.trials["finished_at"].notna() & results.trials["wall_s"].notna()
    return bool(told.sum() > 1)


def _has_costs(results: Study) -> bool:
    runs = ranked(results.trials)
    known = runs[results.metric.best_column].notna()
    return bool((known & (runs["worker_seconds"] > 0)).any())


def _has_batches(results: Study) -> bool:
    rows = configurations(results)
    sizes = results.trials.set_index("trial")["global_batch_size"].reindex(rows["trial"])
    return len(set(sizes.dropna())) > 1 and bool(rows["num_workers"].notna().any())


def _has_importance(results: Study) -> bool:
    return len(importance_of(results)) > 0


def _has_keys(results: Study) -> bool:
    return len(configurations(results)) > 2 and len(keys_by_importance(results)) > 0


def _is_repeated(results: Study) -> bool:
    return bool(repeated(results))


def _has_ledger(results: Study) -> bool:
    return bool(results.trials["wall_s"].notna().any())


FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every run of the search; further left is sooner. The thin dark steps are the best that "
        "any run had reached by then: what a budget of so many seconds buys.",
        curves_figure,
        curves_table,
        _has_curves,
    ),
    "race": FigureKind(
        "The contenders, trained again",
        "A mark is a run, a bar the 90 % interval of its configuration. Where it says 'tied', a "
        "lucky seed may be all that is between it and the first.",
        race_figure,
        race_table,
        _is_repeated,
    ),
    "pareto": FigureKind(
        "Seconds against worker-seconds",
        "Down is faster, left is cheaper; what lies up and right of the steps is beaten in both.",
        pareto_figure,
        pareto_table,
        _has_costs,
    ),
    "batches": FigureKind(
        "What the batch size does",
        "A line joins an optimizer's best at each batch size; where it turns up, larger batches "
        "cost time. Hollow and dashed (~) is predicted from other runs, never measured.",
        batches_figure,
        batches_table,
        _has_batches,
    ),
    "importance": FigureKind(
        "What mattered",
        "How much of the result hangs on each searched key, among the runs that were made. A thin "
        "line that reaches 0 says that the key may not matter.",
        importance_figure,
        importance_table,
        _has_importance,
    ),
    "slices": FigureKind(
        "Each setting by itself",
        "A point is a configuration. In the shaded range are those as good as the best: the wider "
        "it is, the less that setting needs to be tuned.",
        slices_figure,
        slices_table,
        _has_keys,
    ),
    "timeline": FigureKind(
        "The search over its wall-clock",
        "Above the best so far, below what ran beside what: a row is a worker group, a bar a run; "
        "hollow bars were stopped early.",
        timeline_figure,
        timeline_table,
        _has_times,
    ),
    "repeats": FigureKind(
        "Curves of the best, run again",
        "How alike the runs of one configuration are: they differ in nothing but the seed.",
        repeats_figure,
        repeats_table,
        _is_repeated,
    ),
    "ledger": FigureKind(
        "Where the seconds went",
        "Only train counts for the target; everything else is what a study costs beside it.",
        ledger_figure,
        ledger_table,
        _has_ledger,
    ),
}


def kinds_of(results: Study) -> dict[str, FigureKind]:
    """Return the figures of this kind of study, by name; each says whether it applies."""
    return SCALING_FIGURES if results.is_scaling else FIGURES
