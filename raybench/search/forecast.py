"""What follows the runs of a study so far, for whoever looks at it: how many runs, how long."""

from collections.abc import Callable

from raybench.core.record import RunRecord
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec
from raybench.search.confirm_budget import ConfirmBudget


class StudyForecast:
    """Follows the runs of a search; see `results.live.replay.Forecast`."""

    def __init__(self, study: StudySpec, at_once: Callable[[RunSpec], int]) -> None:
        """`at_once`: how many runs of a spec there is room for at the same time."""
        self._study = study
        self._budget = ConfirmBudget(study, at_once=at_once)

    def add(self, record: RunRecord) -> None:
        """Take a run that has ended."""
        if record.phase == "search":
            self._budget.add(record)

    def after_s(self, phase: str) -> float:
        """Return the seconds of what follows a phase."""
        if phase in ("search", "finalist"):
            return self._budget.confirming_s()
        return self._budget.fresh_s(self._study.confirm.fresh) if phase == "race" else 0.0

    def expect_s(self, phase: str) -> float | None:
        """Return the seconds of a phase that begins now; None where they are not known."""
        if phase == "race":
            return self._budget.race_s(self._study.confirm.race)
        return self._budget.fresh_s(self._study.confirm.fresh) if phase == "confirm" else None

    def num_runs(self, phase: str) -> int | None:
        """Return the runs of a phase, at most; None where they are not known."""
        if phase == "race":
            return self._budget.race_runs(self._study.confirm.race)
        if phase == "confirm":
            return self._study.confirm.fresh * len(self._budget.winners())
        return None
