"""How long the runs of a phase that are left will take, from those that are done."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from raybench.core.record import RunRecord

ENOUGH_RUNS = 3
"""Finished runs of a phase before a time left is told, where nothing was expected before."""
EXPECTED_RUNS = 3
"""What was expected of a phase counts as much as so many of its runs."""
COLD_S = 0.5
"""A run that took longer to start its workers and load what they need had new ones."""
MOST_OF_RUN = 0.9
"""A run that lasts longer than usual is nearly done, as far as anybody knows."""


@dataclass
class Pace:
    """The runs of one phase, and when they were done; times are seconds of the state's clock."""

    began_s: float
    num_runs: int | None
    """Runs of the phase; None where nobody knows."""
    num_done: int = 0
    expect_s: float | None = None
    """Seconds that all of its runs that were left in the beginning take, as was known before."""
    _num_before: int = field(init=False)
    _run_s: float = 0.0
    """Seconds of all runs, without those for which they waited for workers."""
    _num_cold: int = 0
    _cold_s: float = 0.0

    def __post_init__(self) -> None:
        self._num_before = self.num_done

    @property
    def num_fresh(self) -> int:
        """Runs that were done since the phase began."""
        return self.num_done - self._num_before

    def finished(self, record: RunRecord) -> None:
        """Count a run."""
        self.num_done += 1
        ledger = record.ledger
        self._run_s += max(record.wall_s - ledger["queue"], 0.0)
        cold_s = ledger["start"] + ledger["setup"]
        if cold_s > COLD_S:
            self._num_cold += 1
            self._cold_s += cold_s

    def left_s(self, at: float, ages: Iterable[float] = ()) -> float | None:
        """Return the seconds until the phase ends; `ages` are those of the runs that train.

        None while it is not known.
        """
        if self.num_runs is None:
            return None
        num_fresh, spent_s = self.num_fresh, at - self.began_s
        if num_fresh < ENOUGH_RUNS and self.expect_s is None:
            return None
        mean_s = self._run_s / num_fresh if num_fresh else 0.0
        begun = sum(min(age / mean_s, MOST_OF_RUN) for age in ages) if mean_s else 0.0
        spent_s -= self._started_once_s(spent_s)
        left = max(self.num_runs - self.num_done, 0)
        weight, expected_s = 0, 0.0
        if self.expect_s is not None:
            weight = EXPECTED_RUNS
            expected_s = self.expect_s / max(self.num_runs - self._num_before, 1)
        run_s = (weight * expected_s + spent_s) / max(weight + num_fresh + begun, 1.0)
        return max(left - begun, 0.0) * run_s

    def _started_once_s(self, spent_s: float) -> float:
        """Return the seconds that went into worker groups that later runs found warm.

        0 where most runs have started their own: then those to come will, too.
        """
        if 2 * self._num_cold > self.num_fresh or spent_s <= 0:
            return 0.0
        at_once = max(self._run_s / spent_s, 1.0)
        return min(self._cold_s / at_once, spent_s)
