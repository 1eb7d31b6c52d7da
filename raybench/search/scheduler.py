"""Interface of a search: which trial runs next, and whether a running trial continues.

`search.Search` implements the interface. In a study, Ray Tune calls it through adapters
(`live_trials.py`, `ray_tune.py`); replays in `benchmarks/search/` use a simulated clock.
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
    """The trial is predicted to reach the target later than the best, by more than the error of
    its extrapolated learning curve."""
    STOP_CAP = "cap"
    """The trial's next evaluation comes later than `search.cap_factor` times the best time."""

    @property
    def stop(self) -> StopReason | None:
        """Stop reason for the trial's record; None for CONTINUE."""
        return self.value


class Suggestion(NamedTuple):
    """A trial to run."""

    name: str
    spec: RunSpec


class Scheduler(ABC):
    """Proposes trials and judges them.

    Life cycle: the driver calls `suggest` whenever a trial could start. For a suggested trial, it
    then calls `on_result` after each evaluation that does not end the trial. Finally, it calls
    `on_complete` (the trial reached the target, ended, or was stopped) or `on_error` (it failed)
    once. Calls for different trials may interleave.

    Thread safety: all methods are called from one thread. They do not block and train nothing.
    """

    @abstractmethod
    def suggest(self) -> Suggestion | None:
        """Return the next trial.

        Returns:
            Name and run spec; None if there is nothing to try now. A later call may return a trial,
            once a running trial has ended.
        """

    @abstractmethod
    def on_result(self, name: str, outcome: RunOutcome) -> Decision:
        """Process an evaluation of a running trial.

        Args:
            name: Name of the trial.
            outcome: State of the run; `outcome.evaluation` is the newest evaluation.

        Returns:
            Whether the trial continues. After a stop decision the driver ends the trial and calls
            `on_complete`.
        """

    @abstractmethod
    def on_complete(self, record: RunRecord) -> None:
        """Process the record of a trial that ended without a failure.

        Args:
            record: Record of the trial. With `record.stop == "interrupted"` it is ignored, and the
                trial is suggested again in the next session.
        """

    @abstractmethod
    def on_error(self, record: RunRecord) -> None:
        """Process the record of a trial that failed.

        Args:
            record: Record of the trial; `record.failure` states whether the configuration is at
                fault (`oom`, `nan`, ...) or the machine (`MACHINE_FAULTS`).
        """
