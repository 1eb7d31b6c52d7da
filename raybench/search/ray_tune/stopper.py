"""Ray Tune asks whether the whole search is over."""

from typing import Any

from ray.tune import Stopper

from raybench.search.deadline import Deadline


class TuneStopper(Stopper):  # type: ignore[misc, unused-ignore]
    """Stops trials once the study's deadline says so."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether this trial must stop now."""
        return self._deadline.over

    def stop_all(self) -> bool:
        """Whether Tune must drop all trials as they are: nothing follows them.

        At the end of a time budget other phases follow, so every trial ends by itself, at its next
        evaluation, and gives its workers back.
        """
        return self._deadline.interrupted
