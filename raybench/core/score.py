"""The score of a run: log of the seconds to the target, with a slope where it was missed."""

import math
from collections.abc import Sequence

from raybench.core.spec import Objective

MISS_WEIGHT = 2.0
"""lambda: how far the worst miss stands above log(max_train_seconds)."""
MIN_SECONDS = 1e-3
"""Times below this are not told apart (log of 0 does not exist)."""


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
