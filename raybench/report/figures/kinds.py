"""The list of figures in the order of the page, with the numbers of each as a table."""

import pandas as pd

from raybench.report.figures import curves, outcomes, surface, timeline
from raybench.report.figures.parts import MOST_ROWS, drawn, in_words
from raybench.report.figures.parts import FigureKind as FigureKind
from raybench.report.figures.scaling_plots import SCALING_FIGURES as SCALING_FIGURES
from raybench.results.analyses import (
    best_at_every_budget,
    importance_of,
    ledger_totals,
    pareto_front,
)
from raybench.results.ranking import repeated
from raybench.results.study import Study
from raybench.results.verdict import reached_target

TRIAL = {"trial": "trial", "config": "configuration"}


def _with_configs(results: Study, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(config=table["trial"].map(results.trials.set_index("trial")["config"]))


def curves_table(results: Study) -> pd.DataFrame:
    """Return the best value of the search runs at every budget of seconds."""
    metric, trials = results.metric, results.trials
    search = set(trials["trial"][trials["phase"] == "search"])
    best = best_at_every_budget(results.curves[results.curves["trial"].isin(search)], metric)
    best[metric.name] = drawn(metric, best[metric.name])
    words = {"train_s": "seconds of training", metric.name: f"best {metric.axis_words}"}
    return in_words(_with_configs(results, best).tail(MOST_ROWS), words | TRIAL)


def race_table(results: Study) -> pd.DataFrame:
    """Return the runs of the configurations that were trained again."""
    rows = _with_configs(results, curves.race_rows(results))
    rows["role"] = rows["role"].replace({"trial": "search", "placement_check": "search"})
    words = {"value": f"best {results.metric.axis_words}", "is_hit": "finished"}
    if results.is_timed:
        words = {"value": "seconds to the target", "is_hit": "reached the target"}
    return in_words(rows, TRIAL | {"run": "run", "role": "what for"} | words)


def pareto_table(results: Study) -> pd.DataFrame:
    """Return time and cost of the configurations that reached the target."""
    rows = reached_target(results)
    words = TRIAL | {"num_workers": "workers"}
    rows = rows.assign(is_front=rows["trial"].isin(pareto_front(rows)["trial"]))
    words |= {"time_to_target_s": "expected seconds", "low_s": "from [s]"}
    words |= {"high_s": "to [s] (90 %)", "worker_seconds_to_target": "worker-seconds"}
    return in_words(rows, words | {"runs": "runs", "is_front": "on the Pareto front"})


def importance_table(results: Study) -> pd.DataFrame:
    """Return the importance of each key."""
    table = importance_of(results)
    words = {"importance": "share [%]", "low": "from [%]", "high": "to [%]"}
    return in_words(
        table.assign(**{key: 100 * table[key] for key in words}), {"key": "key"} | words
    )


def slices_table(results: Study) -> pd.DataFrame:
    """Return the best value of each key, and the values that are as good."""
    names = {"best": "best value", "from": "as good from", "to": "as good up to"}
    return outcomes.plateaus(results).rename(columns=names)


def timeline_table(results: Study) -> pd.DataFrame:
    """Return the time span and the number of runs of each phase."""
    found = timeline.phases(timeline.spans(results).runs)
    found = found.assign(role=found["role"].replace({"trial": "search"}))
    words = {"role": "phase", "runs": "runs", "begin": "from second", "end": "to second"}
    return in_words(found, words)


def ledger_table(results: Study) -> pd.DataFrame:
    """Return seconds and share of each phase of the runs."""
    table = ledger_totals(results.trials)
    words = {"phase": "phase", "seconds": "seconds", "share": "share [%]"}
    return in_words(table.assign(share=100 * table["share"]), words)


FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every run of the search; further left is sooner. The thin dark steps are the best that "
        "any run had reached by then: what a budget of so many seconds buys.",
        curves.curves_figure,
        curves_table,
        lambda results: bool((results.trials["phase"] == "search").any()),
    ),
    "race": FigureKind(
        "The candidates, trained again",
        "A mark is a run, a bar the 90 % interval of its configuration. Where it says 'tied', a "
        "lucky seed may be all that is between it and the first.",
        curves.race_figure,
        race_table,
        lambda results: bool(repeated(results)),
    ),
    "pareto": FigureKind(
        "Seconds against worker-seconds",
        "Down is faster, left is cheaper; what lies up and right of the steps is beaten in both.",
        outcomes.pareto_figure,
        pareto_table,
        lambda results: not reached_target(results).empty,
    ),
    "importance": FigureKind(
        "What mattered",
        "How much of the result hangs on each searched key, among the runs that were made. A thin "
        "line that reaches 0 says that the key may not matter.",
        outcomes.importance_figure,
        importance_table,
        lambda results: len(importance_of(results)) > 0,
    ),
    "slices": FigureKind(
        "Each setting by itself",
        "A point is a configuration. In the shaded range are those as good as the best: the wider "
        "it is, the less that setting needs to be tuned.",
        outcomes.slices_figure,
        slices_table,
        lambda results: len(outcomes.outcome(results).rows) > 2 and not slices_table(results).empty,
    ),
    "surface": FigureKind(
        "What the search expected",
        "The seconds to the target that the model of all learning curves expects of the best "
        "optimizer; a mark is a trial. Where no trial ran, it is a guess.",
        surface.surface_figure,
        surface.surface_table,
        lambda results: surface.surface_of(results) is not None,
    ),
    "timeline": FigureKind(
        "The search over its wall-clock",
        "Above the best so far, below what ran beside what: a row is a worker group, a bar a run; "
        "hollow bars were stopped early.",
        timeline.timeline_figure,
        timeline_table,
        lambda results: len(timeline.spans(results).runs) > 1,
    ),
    "ledger": FigureKind(
        "Where the seconds went",
        "Only train counts for the target; everything else is what a study costs beside it.",
        timeline.ledger_figure,
        ledger_table,
        lambda results: bool(results.trials["wall_s"].notna().any()),
    ),
}


def kinds_of(results: Study) -> dict[str, FigureKind]:
    """Return the figures of a search or a scaling study by name, whether they apply or not."""
    return SCALING_FIGURES if results.is_scaling else FIGURES
