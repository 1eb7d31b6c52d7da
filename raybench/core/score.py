"""The score of a run: one number for the search, from what its objective asks for."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from raybench.core.metric import ACCURACY, Metric
from raybench.core.objective import BUDGET, Objective

MISS_WEIGHT = 2.0
"""lambda: how far the worst miss stands above log(max_train_seconds)."""
MIN_SECONDS = 1e-3
"""Times below this are not told apart (log of 0 does not exist)."""
MOST_UNKNOWN = 20.0
"""The worst `shortfall` where chance is not known: that of a value of 240 million."""
BEST_OF_MANY = 3.0
"""Standard errors above the baseline that a target of ours lies, where a test split judges the
winner once more: the best of a search's evaluations of noise is 2.5 to 4 above."""
BEST_OF_ALL = 4.0
"""The same where there is no test split."""
ONE_SIDED = 1.645
"""Standard errors above the baseline that chance gets to in 5 of 100."""
GUESSES = {
    "accuracy": "always answering the most frequent class",
    "top5_accuracy": "always naming the five most frequent classes",
    "loss": "always answering how frequent classes are",
    "mean_absolute_error": "always answering the median",
}
GUESSES |= {"perplexity": GUESSES["loss"]} | dict.fromkeys(
    ("rmse", "r2"), "always answering the mean"
)
"""The baseline of a metric, for a sentence."""
PART_OF_GAP = 0.01
"""What one point is to metrics that are no shares: a hundredth of the gap to chance."""


@dataclass(frozen=True)
class Baseline:
    """What the best answer that does not look at the inputs reaches on a split's rows, and how far
    above it models get on as many rows where there is nothing to learn.

    The rows are a sample that all runs share: new seeds say nothing against its luck. A model of
    noise whose answers differ from the baseline's by d gains z standard errors, proportional to d,
    and loses what is proportional to its square: at best `z**2 * square`. Where d does not cost,
    as between classes that are as frequent, the gain is at most `z * error` (binomial).
    """

    value: float
    rows: int
    error: float | None = None
    """Of a share, its standard error by its rows."""
    square: float | None = None
    """None where it is not known, or does not bound the gain."""
    level: float | None = None
    """The value by the training labels, where classes may be as frequent: which of them is more so
    among these rows is luck too."""

    def beyond(self, metric: Metric, errors: float = ONE_SIDED) -> float | None:
        """Return the value that noise does not get beyond with so many standard errors of luck."""
        known = [] if self.error is None else [errors * self.error]
        known += [] if self.square is None else [errors**2 * self.square]
        if not known:
            return None
        value = (self.value if self.level is None else self.level) + metric.sign * min(known)
        return min(max(value, 0.0), 1.0) if metric.is_share else value

    def document(self) -> dict[str, Any]:
        """Return it for `study.yaml`."""
        return asdict(self)


def share_error(share: float, rows: int) -> float:
    """Return the standard error of a share that was measured on so many rows (binomial)."""
    return math.sqrt(max(share * (1.0 - share), 0.0) / rows)


def search_score(
    objective: Objective,
    *,
    time_to_target_s: float | None,
    best_value: float | None,
    chance: float | None,
) -> float:
    """Return the number the search minimises; comparable over all runs of a study.

    time_to_target: log T if the target was reached within `max_train_seconds`, else
    log T_max + 2 gap(A*, best) / gap(A*, chance), at most 2, so that every reached run beats every
    missed one and the searcher still sees a slope. best_at_budget: `shortfall`.
    `best_value` None (nothing evaluated, out of memory, NaN) scores worst. `chance` stands in where
    the objective has none; None is not known.
    """
    metric = objective.judged_by
    chance = chance if objective.chance is None else objective.chance
    if objective.kind == BUDGET:
        return shortfall(metric, best_value, chance)
    assert objective.target is not None
    ceiling = math.log(objective.max_train_seconds)
    if time_to_target_s is not None and time_to_target_s <= objective.max_train_seconds:
        return min(math.log(max(time_to_target_s, MIN_SECONDS)), ceiling)
    if best_value is None or math.isnan(best_value):
        return ceiling + MISS_WEIGHT
    width = _gap_to_chance(metric, objective.target, chance)
    missing = metric.gap(objective.target, best_value) / width
    if chance is None and not metric.is_share:
        missing = 1.0 - 1.0 / (1.0 + max(missing, 0.0))  # nobody knows where it is as bad as can be
    # The curve may touch the target without holding it: still a miss, so never below 0.
    return ceiling + MISS_WEIGHT * min(max(missing, 0.0), 1.0)


def _gap_to_chance(metric: Metric, target: float, chance: float | None) -> float:
    """Return what chance lacks to the target; as much as the target itself where it is not known:
    half of a miss is due there."""
    if chance is None:
        return abs(target) or 1.0
    return max(metric.gap(target, chance), 1e-9)


def shortfall(metric: Metric, value: float | None, chance: float | None) -> float:
    """Return what a value lacks, the less the better; None is as bad as a value can count.

    Of shares what is missing to 1, or where less is better all there is above 0. Of others the
    value itself, its sign turned where more is better, and no worse than twice as far from 0 as
    chance is: a loss that has burst says no more than that. Where chance is not known its asinh,
    about the logarithm of large values, and at most 20.
    """
    is_known = value is not None and not math.isnan(value)
    if metric.is_share:
        best = 1.0 if metric.direction == "max" else 0.0
        return abs(best - value) if value is not None and is_known else 1.0
    worst = MOST_UNKNOWN
    if chance is not None:
        worst = max(-metric.sign * chance, 0.0) + max(abs(chance), 1.0)
    if value is None or not is_known:
        return worst
    lack = -metric.sign * value
    return min(lack if chance is not None else math.asinh(lack), worst)


def worst_score(objective: Objective, *, chance: float | None = None) -> float:
    """Return the score of a run that failed (out of memory, NaN)."""
    return search_score(objective, time_to_target_s=None, best_value=None, chance=chance)


def chance_of(objective: Objective, num_classes: int | None) -> float | None:
    """Return the chance level of an objective; of accuracy 1 / classes where it does not say it.

    So earlier versions counted, and where a workload says itself what is right nothing is known
    that is better. None for other metrics.
    """
    if objective.chance is not None or objective.judged_by != ACCURACY or not num_classes:
        return objective.chance
    return 1.0 / num_classes


def small_difference(
    metric: Metric, value: float, chance: float | None, *, points: float = 0.01
) -> float:
    """Return a difference of a metric near `value` that says little: `points` of a share.

    Of others 1 % of the gap between chance and `value`; of `value` where chance is not known.
    """
    if metric.is_share:
        return points
    return PART_OF_GAP * abs(value if chance is None else value - chance)
