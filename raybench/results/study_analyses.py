"""The analyses of `results.analyses`, asked of a study: `study.around_target()`."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.results.analyses.budgets import best_at_every_budget
from raybench.results.analyses.importance import importance
from raybench.results.analyses.ledger import ledger_totals
from raybench.results.analyses.targets import around_target, time_to_target

SEARCH = ("trial", "finalist")
"""Roles of a search's own runs."""


class Analysed:
    """What every study answers, raybench's own and another tool's."""

    if TYPE_CHECKING:
        # Read-only here: a study may compute them.
        @property
        def trials(self) -> pd.DataFrame:
            """One row per run."""

        @property
        def curves(self) -> pd.DataFrame:
            """One row per evaluation."""

        @property
        def metric(self) -> Metric:
            """What the study is judged by."""

        @property
        def target(self) -> float | None:
            """Value of the metric that was asked for."""

        @property
        def searched(self) -> tuple[str, ...]:
            """The keys that were searched."""

        @property
        def value_at_start(self) -> float | None:
            """What the metric is before a run has begun."""

        @property
        def hold(self) -> int:
            """Evaluations in a row at the target."""

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return what the search reached at every budget of training seconds.

        Columns: train_s, the metric's name, trial; see `analyses.budgets`.
        """
        return best_at_every_budget(self._search_curves(), self.metric)

    @cached_property
    def importance(self) -> pd.DataFrame:
        """Which searched keys the results hang on, most first; see `analyses.importance`."""
        keys = [key for key in self.searched if key in self.trials]
        return importance(self.trials, keys, self.metric)

    def ledger(self) -> pd.DataFrame:
        """Return where the seconds of all runs went; see `analyses.ledger`."""
        return ledger_totals(self.trials)

    def time_to(self, target: float | None = None) -> pd.DataFrame:
        """Return when each run of the search reached a target; none: the study's own.

        Columns: trial, seconds, is_interpolated; see `analyses.targets`.
        """
        return time_to_target(
            self._search_curves(), self.metric, self._asked(target), **self._crossing()
        )

    def around_target(self, target: float | None = None) -> pd.DataFrame:
        """Return who is first at the target, and at one a point easier and one a point harder.

        Columns: target, trial, seconds, reached, trials; see `analyses.targets`.
        """
        return around_target(
            self._search_curves(), self.metric, self._asked(target), **self._crossing()
        )

    def _search_curves(self) -> pd.DataFrame:
        roles = self.trials["role"]
        search = self.trials["trial"][roles.isin(SEARCH) & (self.trials["state"] != "failed")]
        return self.curves[self.curves["trial"].isin(search)]

    def _asked(self, target: float | None) -> float:
        found = self.target if target is None else target
        if found is None:
            raise UserError("The study asked for no target; name one: study.time_to(0.95).")
        return found

    def _crossing(self) -> dict[str, Any]:
        return {"hold": self.hold, "chance": self.value_at_start}
