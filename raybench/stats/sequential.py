"""Sequential paired test of whether B is better than A, valid at any stopping time.

Each pair of runs trains A and B with the same seed. It yields a difference d, which is positive if
B is better: the log ratio of their seconds, or the difference of their metric values. The null
hypothesis for a true difference m is that d - m is symmetric around zero. (This is exact if A and B
are identical, since they are then exchangeable.) Under this hypothesis, the sign of d - m is a fair
coin flip, given its size. The wealth of a bettor who always bets on the same sign,

    K = mean over bets f of  prod_i  exp(f u_i) / cosh(f u_i),    u_i = psi((d_i - m) / s_i),

is a martingale that starts at 1, so the probability that it ever exceeds 1/alpha is at most alpha
(Ville's inequality). psi clips at +-`CLIP_SCALES`, which bounds the effect of a run that missed its
target, for which d is infinite. The scale s_i is the median absolute difference of the earlier
pairs. The confidence sequence is the set of all m that neither of the two one-sided bets rejects.
See Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe
anytime-valid inference" (2023), and Efron, "Student's t-test under symmetry conditions" (1969).
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

PairOutcome = Literal["better", "worse", "same", "undecided"]
ALPHA = 0.05
"""One-sided error rate of the test; the two-sided interval covers 90 %."""
CLIP_SCALES = 3.0
"""Clipping threshold of differences, in units of the scale s."""
BETS = np.geomspace(0.05, 2.0, 12)
"""Bet sizes f. Small bets detect a small difference after many pairs, large bets detect a large
difference after a few pairs."""
BISECTIONS = 60
"""Number of bisection steps for each end of the confidence interval."""


@dataclass(frozen=True)
class Comparison:
    """Result of the sequential test after the pairs of runs so far."""

    outcome: PairOutcome
    pairs: int
    effect: float | None
    """Median of the differences, in log seconds or in the unit of the metric; None if not
    finite."""
    low: float
    high: float
    """Bounds of the confidence sequence, in the unit of `effect`; infinite if not bounded yet."""


def compare(
    differences: Sequence[float], *, smallest: float = 0.0, errors: float = ALPHA
) -> Comparison:
    """Return the test result after the pairs of runs so far.

    Args:
        differences: Difference of each pair, positive if B is better; infinite if one of the two
            runs missed its target, NaN if both did.
        smallest: Equivalence margin. The outcome is `same` if the difference is shown to be
            smaller; 0 excludes this outcome.
        errors: One-sided error rate.
    """
    valid = [difference for difference in differences if not math.isnan(difference)]
    pairs, effect = len(differences), float(np.median(valid)) if valid else math.nan
    return Comparison(
        outcome=outcome_of(valid, smallest=smallest, errors=errors),
        pairs=pairs,
        effect=effect if math.isfinite(effect) else None,
        low=_lower_end(valid, errors),
        high=-_lower_end([-difference for difference in valid], errors),
    )


def outcome_of(
    differences: Sequence[float], *, smallest: float = 0.0, errors: float = ALPHA
) -> PairOutcome:
    """Return the outcome of the sequential test, without effect and interval.

    For the arguments see `compare`; here, `differences` must not contain NaN.
    """
    threshold, negated = math.log(1.0 / errors), [-difference for difference in differences]
    if (
        smallest > 0.0
        and min(log_wealth(differences, -smallest), log_wealth(negated, -smallest)) >= threshold
    ):
        return "same"
    if log_wealth(differences, 0.0) >= threshold:
        return "better"
    return "worse" if log_wealth(negated, 0.0) >= threshold else "undecided"


def pairs_needed(
    differences: Sequence[float],
    *,
    smallest: float = 0.0,
    errors: float = ALPHA,
) -> int | None:
    """Return how many more pairs of runs are needed for a decision with a probability of 80 %.

    The number is estimated by a bootstrap with 40 draws from the pairs so far. It is None if there
    are fewer than 3 pairs, or if it exceeds 8 times the number of pairs so far. Pairs in which both
    runs missed the target do not count. For the arguments see `compare`.
    """
    valid = [difference for difference in differences if not math.isnan(difference)]
    if len(valid) < 3:
        return None
    rng, num_more, draws = np.random.default_rng(0), 1, 40
    while num_more <= 8 * len(valid):
        further = [valid + rng.choice(valid, num_more).tolist() for _ in range(draws)]
        outcomes = [outcome_of(pairs, smallest=smallest, errors=errors) for pairs in further]
        if sum(outcome != "undecided" for outcome in outcomes) >= 0.8 * draws:
            return math.ceil(num_more * len(differences) / len(valid))
        num_more = math.ceil(1.3 * num_more)
    return None


def log_wealth(differences: Sequence[float], shift: float) -> float:
    """Return the log wealth after betting on every pair that B is better by more than `shift`; see
    the formula of K in the module's docstring."""
    if not len(differences):
        return 0.0
    shifted = np.asarray(differences, dtype=float) - shift
    scales = _scales(np.abs(shifted))
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(
            scales > 0.0, np.clip(shifted / scales, -CLIP_SCALES, CLIP_SCALES), np.sign(shifted)
        )
    # log(exp(x) / cosh(x)) = log 2 - log(1 + exp(-2 x))
    logs = math.log(2.0) - np.logaddexp(0.0, -2.0 * np.outer(BETS, units))
    return float(np.logaddexp.reduce(logs.sum(axis=1)) - math.log(len(BETS)))


def _scales(sizes: np.ndarray) -> np.ndarray:
    """Return the scale of each difference: the median of all earlier finite absolute differences.

    The scale is 0 if there are none.
    """
    earlier, scales = list[float](), list[float]()
    for size in sizes.tolist():
        middle = len(earlier) // 2
        middle_sum = earlier[middle] + earlier[middle - (len(earlier) % 2 == 0)] if earlier else 0.0
        scales.append(middle_sum / 2.0)
        if math.isfinite(size):
            insort(earlier, size)
    return np.array(scales)


def _lower_end(differences: Sequence[float], errors: float) -> float:
    """Return the lower end of the confidence interval of the difference.

    It is the largest difference m for which m and all smaller differences are rejected; -inf if
    none is rejected.
    """
    finite = [difference for difference in differences if math.isfinite(difference)]
    threshold = math.log(1.0 / errors)
    if not finite:
        return 0.0 if log_wealth(differences, 0.0) >= threshold else -math.inf
    width = max(max(finite) - min(finite), max(abs(difference) for difference in finite), 1e-9)
    low, high = min(finite) - 2.0 * width, max(finite)
    if log_wealth(differences, low) < threshold:
        return -math.inf
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        if log_wealth(differences, middle) >= threshold:
            low = middle
        else:
            high = middle
    return low
