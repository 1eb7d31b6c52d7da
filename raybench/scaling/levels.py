"""How large the parts of what the law leaves over are, by their marginal likelihood."""

import numpy as np
from scipy.optimize import minimize

from raybench.scaling import misfit
from raybench.scaling.cells import Floats
from raybench.scaling.misfit import USUAL, USUAL_SDS, Levels, Sites
from raybench.scaling.observed import Observed

MAX_ROUNDS = 15
DEGREES = 4.0
"""Of freedom of the cells' own deviations: a single odd cell weighs less, not the whole."""
USUAL_WEIGHT = 0.767
"""Mean of weight times squared distance where all is normal: weights are over it, so that levels
are not too small for weighing odd cells less."""
WIDEST = 3.0
"""Standard deviations of their priors within which levels are searched."""


def covariance_of(levels: Levels, sites: Sites, observed: Observed, weights: Floats) -> Floats:
    """Return the covariance of what the law leaves over at measured cells, noise included."""
    own = levels.own**2 + observed.noise / observed.repeats
    return misfit.covariance(levels, sites, sites) + np.diag(own / weights)


def probable_levels(
    left: Floats, spread: Floats, sites: Sites, observed: Observed, weights: Floats
) -> Levels:
    """Return the most probable levels, given residuals of mean zero.

    `spread` is the covariance that the law's own parameters bring (Rasmussen and Williams 2006,
    section 2.7: so levels are not too small for having fitted them).
    """
    names = list(vars(USUAL))
    means = np.log([getattr(USUAL, name) for name in names])
    sds = np.array([getattr(USUAL_SDS, name) for name in names])

    # The covariance is a sum of parts times squared levels, the slope of the loss likewise.
    terms = [*misfit.parts(sites, sites), np.diag(1 / weights)]
    fixed = spread + np.diag(observed.noise / observed.repeats / weights)

    def loss(units: Floats) -> tuple[float, Floats]:
        squares = np.exp(2 * (means + sds * units))
        total = fixed + sum(size * term for size, term in zip(squares, terms, strict=True))
        precision = np.linalg.inv(total)
        unlike = precision @ left
        volume = np.linalg.slogdet(total)[1]
        pulls = precision - np.outer(unlike, unlike)
        slope = squares * np.array([np.sum(pulls * term) for term in terms]) * sds + units
        return 0.5 * float(left @ unlike + volume + units @ units), slope

    bounds, limits = [(-WIDEST, WIDEST)] * len(names), {"maxiter": MAX_ROUNDS}
    start = np.zeros(len(names))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    return Levels(*map(float, np.exp(means + sds * found.x)))


def left_out(left: Floats, covariance: Floats) -> Floats:
    """Return how far each residual is from what the others say, in standard deviations.

    Rasmussen and Williams 2006, equations 5.10 to 5.12.
    """
    precision = np.linalg.inv(covariance)
    return np.asarray(precision @ left / np.sqrt(np.diag(precision)))


def robust_weights(apart: Floats) -> Floats:
    """Return how much each cell counts, given its distance from the others (`left_out`).

    Those of Student's distribution as a mixture of normal ones (Lange 1989), with none above the
    weight of a cell at one standard deviation.
    """
    weights = np.minimum(1.0, (DEGREES + 1) / (DEGREES + apart**2))
    return np.asarray(weights / USUAL_WEIGHT)
