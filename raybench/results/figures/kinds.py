"""The figures there are, in the order of the page: what each shows, its numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from raybench.results.load import StudyResults
from raybench.results.pareto import configurations
from raybench.results.plots import curves_figure, ledger_figure, pareto_figure
from raybench.results.tables import ledger_totals


@dataclass(frozen=True)
class FigureKind:
    """One of them."""

    title: str
    """Heading above it."""
    reading: str
    """How to read it, in one or two sentences."""
    draw: Callable[[StudyResults], Figure]
    table: Callable[[StudyResults], pd.DataFrame]
    """The numbers that it draws, for who cannot see it; columns in words, with their units."""
    applies: Callable[[StudyResults], bool]
    """Whether the study has what it draws."""


def _has_runs(results: StudyResults) -> bool:
    return not results.trials.empty


FIGURES: dict[str, FigureKind] = {
    "curves": FigureKind(
        "Learning curves",
        "Every search run, the best highlighted; further left is sooner.",
        curves_figure,
        lambda results: results.curves,
        _has_runs,
    ),
    "pareto": FigureKind(
        "Seconds against worker-seconds",
        "Down is faster, left is cheaper; what lies up and right of the steps is beaten in both.",
        pareto_figure,
        configurations,
        lambda results: results.is_timed and _has_runs(results),
    ),
    "ledger": FigureKind(
        "Where the seconds went",
        "Only train counts for the target.",
        ledger_figure,
        lambda results: ledger_totals(results.trials),
        _has_runs,
    ),
}
