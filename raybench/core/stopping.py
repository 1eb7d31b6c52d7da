"""When a run ends by itself: decided alike on every rank, from reduced numbers."""

import math

from raybench.core.score import time_to_target
from raybench.core.spec import Objective


class StopRule:
    """Follows one run's evaluations and names the reason to end, if there is one."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._accuracies: list[float] = []
        self._seconds: list[float] = []

    def update(self, *, accuracy: float, train_s: float, finished: bool) -> str | None:
        """Take one evaluation; `finished` says that all epochs are done."""
        objective = self._objective
        self._accuracies.append(accuracy)
        self._seconds.append(train_s)
        if objective.kind == "time_to_accuracy" and self.time_to_target_s is not None:
            return "target"
        if train_s >= objective.max_train_seconds:
            return "max_train_seconds"
        return "epochs" if finished else None

    @property
    def time_to_target_s(self) -> float | None:
        """Train seconds to the target so far; None if not reached or no target is given."""
        if self._objective.target is None:
            return None
        reached = time_to_target(
            self._accuracies,
            self._seconds,
            target=self._objective.target,
            hold=self._objective.hold,
        )
        late = reached is not None and reached > self._objective.max_train_seconds
        return None if late else reached

    @property
    def best_accuracy(self) -> float | None:
        """Best accuracy so far; None before the first evaluation.

        With `accuracy_at_budget`, what was reached within the budget: an evaluation that comes
        later has trained for longer than others may.
        """
        accuracies = self._accuracies
        if self._objective.kind == "accuracy_at_budget":
            limit = self._objective.max_train_seconds
            timed = zip(self._seconds, accuracies, strict=True)
            accuracies = [accuracy for seconds, accuracy in timed if seconds <= limit]
        return max(accuracies, default=None)


def is_finite(*values: float) -> bool:
    """Whether no value is NaN or infinite."""
    return all(math.isfinite(value) for value in values)
