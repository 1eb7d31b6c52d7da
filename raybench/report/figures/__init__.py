"""Figures of searches and scaling studies, in the order of the page."""

from raybench.report.figures import outcomes, predictions, runs
from raybench.report.figures.parts import FigureKind
from raybench.report.figures.scaling_plots import SCALING_FIGURES
from raybench.results.analyses import importance_of
from raybench.results.ranking import repeated
from raybench.results.study import Study
from raybench.results.verdict import reached_target
from raybench.stats.record import Phase

FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every run of the search; further left is faster. The thin dark steps are the best value "
        "up to each number of training seconds, without failed runs.",
        runs.curves_figure,
        runs.curves_table,
        lambda results: bool((results.trials["phase"] == Phase.SEARCH).any()),
    ),
    "race": FigureKind(
        "Confirmation runs",
        "A mark is a run, a bar the 90 % interval of its configuration. If a configuration is "
        "'tied', its difference from the first may be chance.",
        runs.race_figure,
        runs.race_table,
        lambda results: bool(repeated(results)),
    ),
    "pareto": FigureKind(
        "Seconds against worker-seconds",
        "Lower is faster, further left is cheaper. Points above the steps are slower than another "
        "configuration that costs no more.",
        outcomes.pareto_figure,
        outcomes.pareto_table,
        lambda results: not reached_target(results).empty,
    ),
    "importance": FigureKind(
        "Hyperparameter importance",
        "Share of the result that each searched key explains, among the runs that were made. If "
        "the thin line reaches 0, the key may not matter.",
        outcomes.importance_figure,
        outcomes.importance_table,
        lambda results: len(importance_of(results)) > 0,
    ),
    "slices": FigureKind(
        "Outcome over each setting",
        "A point is a configuration. The shaded range contains those that are as good as the best: "
        "the wider it is, the less that setting needs to be tuned.",
        outcomes.slices_figure,
        outcomes.slices_table,
        lambda results: (
            len(outcomes.outcome(results).rows) > 2 and not outcomes.plateaus(results).empty
        ),
    ),
    "surface": FigureKind(
        "Expected seconds to the target",
        "What the model of all learning curves predicts for the best optimizer; a mark is a trial. "
        "Far from all trials, the prediction is a guess.",
        predictions.surface_figure,
        predictions.surface_table,
        lambda results: predictions.surface_of(results) is not None,
    ),
    "timeline": FigureKind(
        "The search over wall-clock time",
        "Above: the best so far. Below: a row is a worker group, a bar a run. Runs with hollow "
        "bars were stopped early.",
        runs.timeline_figure,
        runs.timeline_table,
        lambda results: len(runs.spans(results).runs) > 1,
    ),
    "ledger": FigureKind(
        "Seconds by phase",
        "Only the phase train counts toward the target; the rest is overhead.",
        runs.ledger_figure,
        runs.ledger_table,
        lambda results: bool(results.trials["wall_s"].notna().any()),
    ),
}


def kinds_of(results: Study) -> dict[str, FigureKind]:
    """Return the figures of a search or of a scaling study, keyed by name.

    Figures for which the study has no data are included (see `FigureKind.applies`).
    """
    return SCALING_FIGURES if results.is_scaling else FIGURES
