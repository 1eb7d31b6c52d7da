"""How long the runs of a phase that are left will take, from those that are done."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from raybench.core.placement import Placement
from raybench.core.record import RunRecord

ENOUGH_RUNS = 3
"""Finished runs of a phase before a time left is told, where nothing was expected before."""
EXPECTED_RUNS = 3
"""What was expected of a phase counts as much as so many of its runs."""
COLD_S = 0.5
"""A run that took longer to start its workers and load what they need had new ones."""
MOST_OF_RUN = 0.9
"""A run that lasts longer than usual is nearly done, as far as anybody knows."""
LEAST_RECENT, MOST_RECENT = 8, 256
"""The newest half of the runs is asked, within these: a search's runs become shorter, as groups
are warm and the bad ones are stopped early."""


class _Done(NamedTuple):
    at: float
    run_s: float
    """Without what it waited for workers."""
    start_s: float
    """Of `run_s`, until its workers had what they need."""
    group: Placement


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
    _recent: deque[_Done] = field(default_factory=lambda: deque(maxlen=2 * MOST_RECENT))
    _num_of_group: Counter[Placement] = field(default_factory=Counter)
    _num_cold: Counter[Placement] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._num_before = self.num_done

    @property
    def num_fresh(self) -> int:
        """Runs that were done since the phase began."""
        return self.num_done - self._num_before

    def finished(self, record: RunRecord, at: float) -> None:
        """Count a run."""
        self.num_done += 1
        ledger, group = record.ledger, record.spec.placement.group
        done = _Done(
            at, max(record.wall_s - ledger["queue"], 0.0), ledger["start"] + ledger["setup"], group
        )
        self._recent.append(done)
        self._num_of_group[group] += 1
        self._num_cold[group] += done.start_s > COLD_S

    def left_s(self, at: float, ages: Iterable[float] = ()) -> float | None:
        """Return the seconds until the phase ends; `ages` are those of the runs that train.

        None while it is not known.
        """
        if self.num_runs is None:
            return None
        if self.num_fresh < ENOUGH_RUNS and self.expect_s is None:
            return None
        count = min(max(self.num_fresh // 2, LEAST_RECENT), MOST_RECENT)
        recent = list(self._recent)[-count:]
        is_all = len(recent) == self.num_fresh
        since_s = self.began_s if is_all else self._recent[-len(recent) - 1].at
        spent_s, run_s = at - since_s, sum(done.run_s for done in recent)
        spent_s -= self._started_once_s(recent, spent_s, run_s)
        mean_s = run_s / len(recent) if recent else 0.0
        begun = sum(min(age / mean_s, MOST_OF_RUN) for age in ages) if mean_s else 0.0
        weight, expected_s = 0, 0.0
        if self.expect_s is not None:
            weight = EXPECTED_RUNS
            expected_s = self.expect_s / max(self.num_runs - self._num_before, 1)
        # Those that had begun when the recent ones did are as many as have begun now.
        units = len(recent) + (begun if is_all else 0.0)
        each_s = (weight * expected_s + spent_s) / max(weight + units, 1.0)
        return max(self.num_runs - self.num_done - begun, 0.0) * each_s

    def _started_once_s(self, runs: Iterable[_Done], spent_s: float, run_s: float) -> float:
        """Return the seconds of `spent_s` that went into worker groups that others find warm."""
        once_s = sum(
            done.start_s for done in runs if done.start_s > COLD_S and self._is_kept(done.group)
        )
        if spent_s <= 0 or not once_s:
            return 0.0
        at_once = max(run_s / spent_s, 1.0)
        return min(once_s / at_once, spent_s)

    def _is_kept(self, group: Placement) -> bool:
        """Whether most runs but the first of a kind of group find it warm."""
        return 2 * (self._num_cold[group] - 1) <= self._num_of_group[group] - 1
