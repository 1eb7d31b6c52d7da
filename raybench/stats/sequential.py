"""Is B better than A? A comparison of pairs that may be looked at after every pair.

Each pair trains A and B with the same seed, so one difference d is left of it: the logarithm of the
ratio of their seconds, or the difference of their values, positive where B is better. If B is
better by m, then d - m lies as often and as far above zero as below it (exactly so where A and B
are the same: they can be exchanged). The sign of each d - m is then a fair coin whatever its size,
and nobody wins at a fair coin: the capital of who bets on one side,

    K = mean over bets f of  prod_i  exp(f u_i) / cosh(f u_i),    u_i = psi((d_i - m) / s_i),

is a martingale that starts at 1 and exceeds 1/e in at most e of all comparisons, at whatever pair
one stops to look (Ville's inequality). psi cuts off at +-`FAR`, so that a run that missed its
target (d infinite) counts as far and no more; the scale s_i is of the pairs before. All m that
neither side's capital excludes are the confidence sequence. See Ramdas, Grünwald, Vovk and Shafer,
"Game-theoretic statistics and safe anytime-valid inference" (2023), for such tests, and Efron,
"Student's t-test under symmetry conditions" (1969), for symmetry alone as the assumption.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Outcome = Literal["better", "worse", "same", "undecided"]
ERRORS = 0.05
"""Share of comparisons that may name the wrong side, on each side: the interval is of 90 %."""
FAR = 3.0
"""Scales beyond which a difference is no farther."""
BETS = np.geomspace(0.05, 2.0, 12)
"""Factors f; small ones win by many small differences, large ones by a few clear ones."""
STEPS = 60
"""Halvings in the search for an end of the interval."""


@dataclass(frozen=True)
class Comparison:
    """Result of the pairs so far."""

    outcome: Outcome
    pairs: int
    effect: float | None
    """Median of the differences, in their unit; None where too few have one."""
    low: float
    high: float
    """Ends of the confidence sequence; infinite where nothing bounds it yet."""


def compare(
    differences: Sequence[float], *, smallest: float = 0.0, errors: float = ERRORS
) -> Comparison:
    """Return what is known after these pairs; `differences` are positive where B is better.

    They may be infinite (one of the two missed its target) or NaN (both did: nothing is learnt).
    Differences below `smallest` do not matter. `errors` is of each side by itself.
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
) -> Outcome:
    """Return the outcome alone, of differences that are no NaN."""
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
    """Return how many more pairs decide in `share` of cases, if later ones are like those so far.

    Counted by drawing further pairs from these; None beyond 8 times as many as there are.
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
    """Return the logarithm of the capital of who bets that B is better by more than `shift`."""
    if not len(differences):
        return 0.0
    moved = np.asarray(differences, dtype=float) - shift
    scales = _scales(np.abs(moved))
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(scales > 0.0, np.clip(moved / scales, -FAR, FAR), np.sign(moved))
    # log(exp(x) / cosh(x)) = log 2 - log(1 + exp(-2 x))
    each = math.log(2.0) - np.logaddexp(0.0, -2.0 * np.outer(BETS, units))
    return float(np.logaddexp.reduce(each.sum(axis=1)) - math.log(len(BETS)))


def _scales(sizes: np.ndarray) -> np.ndarray:
    """Return for each difference the median size of those before it; 0 where there is none yet."""
    earlier, found = list[float](), list[float]()
    for size in sizes.tolist():
        middle = len(earlier) // 2
        both = earlier[middle] + earlier[middle - (len(earlier) % 2 == 0)] if earlier else 0.0
        found.append(both / 2.0)
        if math.isfinite(size):
            insort(earlier, size)
    return np.array(found)


def _lower_end(differences: Sequence[float], errors: float) -> float:
    """Return the largest shift that the bets have excluded with all below it; -inf where none."""
    finite = [one for one in differences if math.isfinite(one)]
    enough = math.log(1.0 / errors)
    if not finite:
        return 0.0 if capital(differences, 0.0) >= enough else -math.inf
    width = max(max(finite) - min(finite), max(abs(one) for one in finite), 1e-9)
    left, right = min(finite) - 2.0 * width, max(finite)
    if capital(differences, left) < enough:
        return -math.inf
    for _ in range(STEPS):
        middle = (left + right) / 2.0
        if capital(differences, middle) >= enough:
            left = middle
        else:
            right = middle
    return left
