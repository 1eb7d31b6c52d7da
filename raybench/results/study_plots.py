"""The figures of a study by their names: `study.plot.curves()`."""

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from raybench.core.errors import UserError
from raybench.core.text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raybench.results.figures.kinds import FigureKind
    from raybench.results.load import StudyResults


class NoFigureError(UserError, AttributeError):
    """There is no figure of that name."""


class StudyPlots:
    """The figures of one study: names of `figures.kinds_of`, each a method that returns a Figure.

    `dir(study.plot)` lists those that it has something for.
    """

    def __init__(self, results: "StudyResults") -> None:
        self._results = results

    def __dir__(self) -> list[str]:
        kinds = _kinds(self._results)
        return [name for name, kind in kinds.items() if kind.applies(self._results)]

    def __getattr__(self, name: str) -> "Callable[[], Figure]":
        if name.startswith("_"):
            raise AttributeError(name)  # what notebooks and copy ask of any object
        kinds = _kinds(self._results)
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(kinds)}."
            raise NoFigureError(f"study.plot: has no figure '{clean(name)}'; {hint}")
        return lambda: self._drawn(name, kinds[name])

    def __repr__(self) -> str:
        kinds = _kinds(self._results)
        return "\n".join(
            f".{name}(): {kinds[name].title}. {kinds[name].reading}" for name in dir(self)
        )

    def _drawn(self, name: str, kind: "FigureKind") -> "Figure":
        if not kind.applies(self._results):
            there = ", ".join(dir(self)) or "none yet"
            raise UserError(
                f"study.plot.{name}: {self._results.place} has nothing for it to show; those that "
                f"it has something for: {there}."
            )
        return kind.draw(self._results)


def _kinds(results: "StudyResults") -> "dict[str, FigureKind]":
    # Late: matplotlib takes a second, and they read what `load` makes.
    from raybench.results.figures.kinds import kinds_of

    return kinds_of(results)
