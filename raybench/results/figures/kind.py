"""What a figure is to those that show it."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from raybench.results.load import StudyResults


@dataclass(frozen=True)
class FigureKind:
    """One figure: a heading, how to read it, how to draw it, its numbers."""

    title: str
    """Heading above it."""
    reading: str
    """How to read it, in one or two sentences."""
    draw: Callable[[StudyResults], Figure]
    table: Callable[[StudyResults], pd.DataFrame]
    """The numbers that it draws, for who cannot see it; columns in words, with their units."""
    applies: Callable[[StudyResults], bool]
    """Whether the study has what it draws."""
