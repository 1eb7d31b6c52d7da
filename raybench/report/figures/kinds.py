"""The figures there are, in the order of the page, and the numbers of each as a table: columns in
words, with their units."""

import pandas as pd

from raybench.report.figures.batches import (
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
NAMES = {"config": "configuration", "num_workers": "workers"}
"""Columns that have another name in words."""


def _named(table: pd.DataFrame, *keys: str, **names: str) -> pd.DataFrame:
    """Return the columns `keys` of the first rows, by their names in words."""
    found = table[list(keys)].rename(columns=NAMES | names).head(MOST_ROWS)
    for column in found.select_dtypes("bool"):
        found[column] = found[column].map({True: "yes", False: "no"})
    return found.reset_index(drop=True)


def curves_table(results: Study) -> pd.DataFrame:
    """Return the best at every budget of seconds, of the search's runs."""
    metric, trials = results.metric, results.trials
    search = set(trials["trial"][trials["phase"] == "search"])
    best = best_at_every_budget(results.curves[results.curves["trial"].isin(search)], metric)
    best[metric.name] = drawn(metric, best[metric.name])
    names = {"train_s": "seconds of training", metric.name: f"best {metric.axis_words}"}
    table = _with_configs(results, best).rename(columns=names).tail(MOST_ROWS)
    return _named(table, *names.values(), "trial", "config")


def _with_configs(results: Study, table: pd.DataFrame) -> pd.DataFrame:
    labels = results.trials.set_index("trial")["config"]
    return table.assign(config=table["trial"].map(labels))


def race_table(results: Study) -> pd.DataFrame:
    """Return every run of the configurations that were trained again."""
    rows = _with_configs(results, race_rows(results)).reset_index(drop=True)
    rows["role"] = rows["role"].replace({"trial": "search", "placement_check": "search"})
    names = {"role": "what for", "value": f"best {results.metric.axis_words}", "is_hit": "finished"}
    if results.is_timed:
        names |= {"value": "seconds to the target", "is_hit": "reached the target"}
    rows["is_hit"] = rows["is_hit"].map({True: "yes", False: "no"})
    return rows[["trial", "config", "run", *names]].rename(columns=NAMES | names)


def pareto_table(results: Study) -> pd.DataFrame:
    """Return seconds and worker-seconds of the configurations that reached the target, else values
    of the metric."""
    points, metric = reached_target(results), results.metric
    if points.empty:
        rows = ranked(results.trials)
        rows = rows.assign(best=drawn(metric, rows[metric.best_column]))
        names = {"best": f"best {metric.axis_words}"}
        names |= {"worker_seconds": "worker-seconds of training"}
    else:
        front = set(pareto_front(points)["trial"])
        rows = points.assign(is_front=points["trial"].isin(front))
        names = {"time_to_target_s": "expected seconds", "low_s": "from [s]"}
        names |= {"high_s": "to [s] (90 %)", "worker_seconds_to_target": "worker-seconds"}
        names |= {"runs": "runs", "is_front": "on the Pareto front"}
    return _named(rows, "trial", "config", "num_workers", *names, **names)


def batches_table(results: Study) -> pd.DataFrame:
    """Return the outcome at every batch size, measured and predicted."""
    found = outcome(results)
    words = found.words.replace(" [s]", "") if found.is_seconds else found.words.replace("\\$", "$")
    tables = {"measured": batch_rows(results), "~ predicted": predicted_rows(results)}
    both = pd.concat(
        [table.assign(known=known) for known, table in tables.items()], ignore_index=True
    )
    names = {"batch": "global batch", "outcome": words, "known": "known by"}
    keys = ("trial", "framework", "num_workers", "optimizer", *names)
    return _named(both[both["outcome"].notna()], *keys, **names)


def importance_table(results: Study) -> pd.DataFrame:
    """Return how much of the result each key explains."""
    table = importance_of(results)
    names = {"importance": "share [%]", "low": "from [%]", "high": "to [%]"}
    return _named(table.assign(**{key: 100 * table[key] for key in names}), "key", *names, **names)


def slices_table(results: Study) -> pd.DataFrame:
    """Return each key's best value and its plateau."""
    names = {"best": "best value", "from": "as good from", "to": "as good up to"}
    return plateaus(results).rename(columns=names)


def timeline_table(results: Study) -> pd.DataFrame:
    """Return when each phase ran, how many runs it had, and how many of them ran at once."""
    runs = spans(results).runs
    found = phases(runs)
    most = [_most_at_once(runs[runs["role"] == role]) for role in found["role"]]
    found = found.assign(role=found["role"].replace({"trial": "search"}), most=most)
    names = {"role": "phase", "runs": "runs", "begin": "from second", "end": "to second"}
    return _named(found, *names, "most", **names, most="most at once")


def _most_at_once(runs: pd.DataFrame) -> int:
    """Return the most lanes in use at a time."""
    moments = pd.concat([runs["begin"], runs["end"]])
    changes = pd.DataFrame({"at": moments, "change": [1] * len(runs) + [-1] * len(runs)})
    in_use = changes.sort_values(["at", "change"])["change"].cumsum()
    return int(min(in_use.max(), runs["lane"].nunique()))


def repeats_table(results: Study) -> pd.DataFrame:
    """Return what the confirmed configurations are printed with."""
    table, metric = confirmed(results), results.metric
    names = {"new_runs": "new runs"}
    if results.is_timed:
        names |= {"new_hits": "reached the target", "printed_s": "seconds"}
        names |= {"low_s": "fastest [s]", "high_s": "slowest [s]"}
    else:
        for end, words in (("median", "median"), ("low", "least"), ("high", "most")):
            column = f"{end}_{metric.name}"
            table = table.assign(**{column: drawn(metric, table[column])})
            names[column] = f"{words} {metric.axis_words}"
    return _named(table, "trial", "config", *names, **names)


def ledger_table(results: Study) -> pd.DataFrame:
    """Return the seconds of each phase and their share."""
    table = ledger_totals(results.trials)
    return _named(
        table.assign(share=100 * table["share"]), "phase", "seconds", "share", share="share [%]"
    )


def _has_times(results: Study) -> bool:
    known = results.trials["finished_at"].notna() & results.trials["wall_s"].notna()
    return bool(known.sum() > 1)


def _has_costs(results: Study) -> bool:
    runs = ranked(results.trials)
    known = runs[results.metric.best_column].notna()
    return bool((known & (runs["worker_seconds"] > 0)).any())


def _has_batches(results: Study) -> bool:
    rows = batch_rows(results)
    return len(set(rows["batch"])) > 1


FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every run of the search; further left is sooner. The thin dark steps are the best that "
        "any run had reached by then: what a budget of so many seconds buys.",
        curves_figure,
        curves_table,
        lambda results: bool((results.trials["phase"] == "search").any()),
    ),
    "race": FigureKind(
        "The candidates, trained again",
        "A mark is a run, a bar the 90 % interval of its configuration. Where it says 'tied', a "
        "lucky seed may be all that is between it and the first.",
        race_figure,
        race_table,
        lambda results: bool(repeated(results)),
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
        lambda results: len(importance_of(results)) > 0,
    ),
    "slices": FigureKind(
        "Each setting by itself",
        "A point is a configuration. In the shaded range are those as good as the best: the wider "
        "it is, the less that setting needs to be tuned.",
        slices_figure,
        slices_table,
        lambda results: len(configurations(results)) > 2 and bool(keys_by_importance(results)),
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
        lambda results: bool(repeated(results)),
    ),
    "ledger": FigureKind(
        "Where the seconds went",
        "Only train counts for the target; everything else is what a study costs beside it.",
        ledger_figure,
        ledger_table,
        lambda results: bool(results.trials["wall_s"].notna().any()),
    ),
}


def kinds_of(results: Study) -> dict[str, FigureKind]:
    """Return the figures of this kind of study, by name; each says whether it applies."""
    return SCALING_FIGURES if results.is_scaling else FIGURES
