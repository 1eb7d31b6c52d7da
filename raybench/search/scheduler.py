"""Interface of a search: which trial runs next, and whether a running trial continues.

`search.Search` implements it for a study. Ray Tune drives it by one adapter (`live_trials.py`,
`ray_tune.py`), the replays of `benchmarks/search/` by a simulated clock.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import NamedTuple

from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome, RunRecord, StopReason


class Decision(Enum):
    """Decision about a running trial after an evaluation."""

    CONTINUE = None
    """The trial may still become the best."""
    STOP_SLOW = "scheduler"
    """The trial should reach the target later than the best, by more than the error of its
    extrapolated curve."""
    STOP_CAP = "cap"
    """The trial's next evaluation comes later than `search.cap_factor` times the best time."""

    @property
    def stop(self) -> StopReason | None:
        """Stop reason that the record of the trial states; None for CONTINUE."""
        return self.value


class Suggestion(NamedTuple):
    """A trial to run."""

    name: str
    spec: RunSpec


class Scheduler(ABC):
    """Proposes trials and judges them.

    Life cycle: the driver calls `suggest` whenever a trial could start. A suggested trial then
    gets any number of `on_result` calls, one per evaluation after which it could continue, and
    exactly one final call: `on_complete` (it reached the target, ended, or was stopped) or
    `on_error` (it failed). Trials overlap in any order.

    Thread safety: all methods are called from one thread. They do not block and train nothing.
    """

    @abstractmethod
    def suggest(self) -> Suggestion | None:
        """Return the next trial.

        Returns:
            Name and run spec; None if there is nothing left to try. A later call may return a
            trial again, since the end of a running trial can make room.
        """

    @abstractmethod
    def on_result(self, name: str, outcome: RunOutcome) -> Decision:
        """Process an evaluation of a running trial.

        Args:
            name: Name of the trial.
            outcome: The run so far; `outcome.evaluation` is its newest evaluation.

        Returns:
            Whether the trial continues. After a stop decision the driver ends the trial and calls
            `on_complete`.
        """

    @abstractmethod
    def on_complete(self, record: RunRecord) -> None:
        """Process the record of a trial that ended without a failure.

        Args:
            record: Its record. A trial with `record.stop == "interrupted"` is ignored and suggested
                again in the next session.
        """

    @abstractmethod
    def on_error(self, record: RunRecord) -> None:
        """Take the record of a trial that failed.

        Args:
            record: Its record; `record.failure` states whether the configuration is at fault
                (`oom`, `nan`, ...) or the machine (`MACHINE_FAULTS`).
        """
