"""The figures there are, in the order of the page: what each shows, its numbers."""

from raybench.results.figures import tables
from raybench.results.figures.batches import batches_figure
from raybench.results.figures.curves import curves_figure
from raybench.results.figures.importance import importance_figure, keys_by_importance
from raybench.results.figures.kind import FigureKind as FigureKind
from raybench.results.figures.ledger import ledger_figure
from raybench.results.figures.pareto import pareto_figure
from raybench.results.figures.race import race_figure
from raybench.results.figures.repeats import repeats_figure
from raybench.results.figures.scaling_kinds import SCALING_FIGURES as SCALING_FIGURES
from raybench.results.figures.slices import slices_figure
from raybench.results.figures.timeline import timeline_figure
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked


def _has_curves(results: StudyResults) -> bool:
    return bool((results.trials["phase"] == "search").any())


def _has_times(results: StudyResults) -> bool:
    told = results.trials["finished_at"].notna() & results.trials["wall_s"].notna()
    return bool(told.sum() > 1)


def _has_costs(results: StudyResults) -> bool:
    runs = ranked(results.trials)
    known = runs[results.metric.best_column].notna()
    return bool((known & (runs["worker_seconds"] > 0)).any())


def _has_batches(results: StudyResults) -> bool:
    rows = results.configurations
    sizes = results.trials.set_index("trial")["global_batch_size"].reindex(rows["trial"])
    return len(set(sizes.dropna())) > 1 and bool(rows["num_workers"].notna().any())


def _has_importance(results: StudyResults) -> bool:
    return len(results.importance) > 0


def _has_keys(results: StudyResults) -> bool:
    return len(results.configurations) > 2 and len(keys_by_importance(results)) > 0


def _is_repeated(results: StudyResults) -> bool:
    return bool(results.repeated)


def _has_ledger(results: StudyResults) -> bool:
    return bool(results.trials["wall_s"].notna().any())


FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every run of the search; further left is sooner. The thin dark steps are the best that "
        "any run had reached by then: what a budget of so many seconds buys.",
        curves_figure,
        tables.curves_table,
        _has_curves,
    ),
    "race": FigureKind(
        "The contenders, trained again",
        "A mark is a run, a bar the 90 % interval of its configuration. Where it says 'not told "
        "apart', a lucky seed may be all that is between it and the first.",
        race_figure,
        tables.race_table,
        _is_repeated,
    ),
    "pareto": FigureKind(
        "Seconds against worker-seconds",
        "Down is faster, left is cheaper; what lies up and right of the steps is beaten in both.",
        pareto_figure,
        tables.pareto_table,
        _has_costs,
    ),
    "batches": FigureKind(
        "What the batch size does",
        "A line joins an optimizer's best at each batch size; where it turns up, larger batches "
        "cost time. Hollow and dashed (~) is predicted from other runs, never measured.",
        batches_figure,
        tables.batches_table,
        _has_batches,
    ),
    "importance": FigureKind(
        "What mattered",
        "How much of the result hangs on each searched key, among the runs that were made. A thin "
        "line that reaches 0 says that the key may not matter.",
        importance_figure,
        tables.importance_table,
        _has_importance,
    ),
    "slices": FigureKind(
        "Each setting by itself",
        "A point is a configuration. In the shaded range are those as good as the best: the wider "
        "it is, the less that setting needs to be tuned.",
        slices_figure,
        tables.slices_table,
        _has_keys,
    ),
    "timeline": FigureKind(
        "The search over its wall-clock",
        "Above the best so far, below what ran beside what: a row is a worker group, a bar a run; "
        "hollow bars were stopped early.",
        timeline_figure,
        tables.timeline_table,
        _has_times,
    ),
    "repeats": FigureKind(
        "Curves of the best, run again",
        "How alike the runs of one configuration are: they differ in nothing but the seed.",
        repeats_figure,
        tables.repeats_table,
        _is_repeated,
    ),
    "ledger": FigureKind(
        "Where the seconds went",
        "Only train counts for the target; everything else is what a study costs beside it.",
        ledger_figure,
        tables.ledger_table,
        _has_ledger,
    ),
}


def kinds_of(results: StudyResults) -> dict[str, FigureKind]:
    """Return the figures of this kind of study, by name; each says whether it applies."""
    return SCALING_FIGURES if results.is_scaling else FIGURES
