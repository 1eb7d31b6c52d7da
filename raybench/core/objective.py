"""What a run is judged by: target and budget, its score, and when it ends by itself."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from raybench.core.documents import Document, Fraction, PositiveFloat, PositiveInt

MISS_WEIGHT = 2.0
"""lambda: how far the worst miss stands above log(max_train_seconds)."""
MIN_SECONDS = 1e-3
"""Times below this are not told apart (log of 0 does not exist)."""


def _refuse_ratio(kind: str) -> str:
    if kind == "accuracy_per_second":
        raise ValueError(
            "accuracy divided by seconds is refused, because 40 % in 10 s would beat 93 % in "
            "200 s; use time_to_accuracy with a target, or accuracy_at_budget"
        )
    if kind not in ("time_to_accuracy", "accuracy_at_budget"):
        raise ValueError("must be time_to_accuracy or accuracy_at_budget")
    return kind


class Objective(Document):
    """What a run is judged by, and when it may end."""

    kind: Annotated[str, AfterValidator(_refuse_ratio)] = "time_to_accuracy"
    """`time_to_accuracy` (train seconds to the target) or `accuracy_at_budget`."""
    target: Fraction | None = None
    """Validation accuracy to reach, as a fraction: 0.98, not 98."""
    hold: PositiveInt = 1
    """Evaluations in a row at or above the target; the time of the first one counts."""
    max_train_seconds: PositiveFloat = 60.0
    """Seconds on the training clock after which a run ends (at the next evaluation)."""

    @model_validator(mode="after")
    def _target_given(self) -> "Objective":
        if self.kind == "time_to_accuracy" and self.target is None:
            raise ValueError("time_to_accuracy needs a target, for example target: 0.95")
        return self


def time_to_target(
    accuracies: Sequence[float], train_seconds: Sequence[float], *, target: float, hold: int = 1
) -> float | None:
    """Train seconds at the first of `hold` evaluations in a row with accuracy >= target.

    None if that never happened. The sequences are one run's evaluations, in order.
    """
    row = 0
    for index, accuracy in enumerate(accuracies):
        row = row + 1 if accuracy >= target else 0
        if row == hold:
            return train_seconds[index - hold + 1]
    return None


def search_score(
    objective: Objective,
    *,
    time_to_target_s: float | None,
    best_accuracy: float | None,
    chance: float,
) -> float:
    """Return the number the search minimises; comparable over all runs of a study.

    time_to_accuracy: log T if the target was reached within `max_train_seconds`, else
    log T_max + 2 (A* - best) / (A* - chance), so that every reached run beats every missed
    one and the searcher still sees a slope. accuracy_at_budget: 1 - best accuracy.
    `best_accuracy` None (nothing evaluated, out of memory, NaN) scores worst.
    """
    if objective.kind == "accuracy_at_budget":
        return 1.0 if best_accuracy is None else 1.0 - best_accuracy
    assert objective.target is not None
    ceiling = math.log(objective.max_train_seconds)
    if time_to_target_s is not None and time_to_target_s <= objective.max_train_seconds:
        return min(math.log(max(time_to_target_s, MIN_SECONDS)), ceiling)
    if best_accuracy is None:
        return ceiling + MISS_WEIGHT
    missing = (objective.target - best_accuracy) / max(objective.target - chance, 1e-9)
    # The curve may touch the target without holding it: still a miss, so never below 0.
    return ceiling + MISS_WEIGHT * min(max(missing, 0.0), 1.0)


def worst_score(objective: Objective) -> float:
    """Return the score of a run that failed (out of memory, NaN)."""
    return search_score(objective, time_to_target_s=None, best_accuracy=None, chance=0.0)


class StopRule:
    """Follows one run's evaluations and names the reason to end, if there is one."""

    def __init__(
        self,
        objective: Objective,
        *,
        accuracies: Sequence[float] = (),
        train_seconds: Sequence[float] = (),
    ) -> None:
        """Begin a run, or continue one after the evaluations that are given, in order."""
        self._objective = objective
        self._accuracies = list(accuracies)
        self._seconds = list(train_seconds)

    def update(
        self, *, accuracy: float, train_s: float, finished: bool
    ) -> Literal["target", "max_train_seconds", "epochs"] | None:
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
