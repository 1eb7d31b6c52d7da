"""Is B better than A? A sequential test of pairs, valid at any stopping time.

Each pair trains A and B with the same seed and gives one difference d: the logarithm of the ratio
of their seconds, or the difference of their values, positive if B is better. If B is better by m,
d - m is symmetric around zero (exactly so if A and B are the same: they are exchangeable). The sign
of each d - m is then a fair coin whatever its size, and the capital of a bet on one side,

    K = mean over bets f of  prod_i  exp(f u_i) / cosh(f u_i),    u_i = psi((d_i - m) / s_i),

is a martingale that starts at 1 and ever exceeds 1/e in at most a share e of all comparisons
(Ville's inequality). psi clips at +-`CLIP_SCALES`, so that a run that missed its target (d
infinite) has a bounded effect; the scale s_i is from the pairs before. The confidence sequence is
all m that the capital of neither side excludes. See Ramdas, Grünwald, Vovk and Shafer,
"Game-theoretic statistics and safe anytime-valid inference" (2023), and Efron, "Student's t-test
under symmetry conditions" (1969).
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

PairOutcome = Literal["better", "worse", "same", "undecided"]
ERRORS = 0.05
"""Error rate on each side; the interval is a 90 % interval."""
CLIP_SCALES = 3.0
"""Clipping of differences, in scales."""
BETS = np.geomspace(0.05, 2.0, 12)
"""Bets f; small ones detect many small differences, large ones a few clear ones."""
BISECTIONS = 60
"""Bisections for an end of the interval."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison by its pairs so far."""

    outcome: PairOutcome
    pairs: int
    effect: float | None
    """Median of the differences, in their unit; None if it is not finite."""
    low: float
    high: float
    """Ends of the confidence sequence; infinite if nothing bounds it yet."""


def compare(
    differences: Sequence[float], *, smallest: float = 0.0, errors: float = ERRORS
) -> Comparison:
    """Return the comparison after some pairs.

    Args:
        differences: One per pair, positive if B is better; infinite if one of the two missed its
            target, NaN if both did.
        smallest: Differences below it do not matter.
        errors: Error rate on each side.
    """
    known = [one for one in differences if not math.isnan(one)]
    pairs, effect = len(differences), float(np.median(known)) if known else math.nan
    return Comparison(
        outcome=outcome_of(known, smallest=smallest, errors=errors),
        pairs=pairs,
        effect=effect if math.isfinite(effect) else None,
        low=_lower_end(known, errors),
        high=-_lower_end([-one for one in known], errors),
    )


def outcome_of(
    differences: Sequence[float], *, smallest: float = 0.0, errors: float = ERRORS
) -> PairOutcome:
    """Return only the outcome, of differences without NaN."""
    enough, turned = math.log(1.0 / errors), [-one for one in differences]
    if (
        smallest > 0.0
        and min(capital(differences, -smallest), capital(turned, -smallest)) >= enough
    ):
        return "same"
    if capital(differences, 0.0) >= enough:
        return "better"
    return "worse" if capital(turned, 0.0) >= enough else "undecided"


def pairs_needed(
    differences: Sequence[float],
    *,
    smallest: float = 0.0,
    errors: float = ERRORS,
    share: float = 0.8,
    draws: int = 40,
) -> int | None:
    """Return the number of further pairs that decide with probability `share`.

    Simulated by resampling the pairs so far; None beyond 8 times their number.
    """
    known = [one for one in differences if not math.isnan(one)]
    if len(known) < 3:
        return None
    rng, more = np.random.default_rng(0), 1
    while more <= 8 * len(known):
        further = [known + rng.choice(known, more).tolist() for _ in range(draws)]
        found = [outcome_of(one, smallest=smallest, errors=errors) for one in further]
        if sum(one != "undecided" for one in found) >= share * draws:
            return math.ceil(more * len(differences) / len(known))
        more = math.ceil(1.3 * more)
    return None


def capital(differences: Sequence[float], shift: float) -> float:
    """Return the log capital of the bet that B is better by more than `shift`."""
    if not len(differences):
        return 0.0
    moved = np.asarray(differences, dtype=float) - shift
    scales = _scales(np.abs(moved))
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(
            scales > 0.0, np.clip(moved / scales, -CLIP_SCALES, CLIP_SCALES), np.sign(moved)
        )
    # log(exp(x) / cosh(x)) = log 2 - log(1 + exp(-2 x))
    each = math.log(2.0) - np.logaddexp(0.0, -2.0 * np.outer(BETS, units))
    return float(np.logaddexp.reduce(each.sum(axis=1)) - math.log(len(BETS)))


def _scales(sizes: np.ndarray) -> np.ndarray:
    """Return the median size of the differences before each; 0 for the first."""
    earlier, found = list[float](), list[float]()
    for size in sizes.tolist():
        middle = len(earlier) // 2
        both = earlier[middle] + earlier[middle - (len(earlier) % 2 == 0)] if earlier else 0.0
        found.append(both / 2.0)
        if math.isfinite(size):
            insort(earlier, size)
    return np.array(found)


def _lower_end(differences: Sequence[float], errors: float) -> float:
    """Return the largest shift that is excluded with all smaller ones; -inf if none is."""
    finite = [one for one in differences if math.isfinite(one)]
    enough = math.log(1.0 / errors)
    if not finite:
        return 0.0 if capital(differences, 0.0) >= enough else -math.inf
    width = max(max(finite) - min(finite), max(abs(one) for one in finite), 1e-9)
    left, right = min(finite) - 2.0 * width, max(finite)
    if capital(differences, left) < enough:
        return -math.inf
    for _ in range(BISECTIONS):
        middle = (left + right) / 2.0
        if capital(differences, middle) >= enough:
            left = middle
        else:
            right = middle
    return left
