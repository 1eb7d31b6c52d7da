"""What the law leaves over: a Gaussian process on the logarithm of step times.

Four parts, all relative: jumps between batch sizes, which are in the compute of every number of
workers (kernels are chosen by shape); random walks over doublings of workers and of nodes, so that
the doubt grows with the distance of an extrapolation; and each cell's own. How large they are, the
marginal likelihood says.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from raybench.scaling.cells import Floats, Layout
from raybench.scaling.observed import Observed

REACH = 1.0
"""Doublings of the batch size over which jumps are alike to 1/e."""
WALK_OF_COMPUTE = 0.2
"""How much of the walks is there in a step without any exchange."""


@dataclass(frozen=True)
class Levels:
    """Standard deviations of the four parts, relative: 0.03 is 3 % of a step."""

    jump: float
    walk: float
    """For each doubling of the workers, by variance."""
    walk_nodes: float
    """For each doubling of the nodes, by variance."""
    own: float


USUAL = Levels(jump=0.03, walk=0.05, walk_nodes=0.06, own=0.04)
"""What is expected before anything was measured; medians of log-normal priors."""
USUAL_SDS = Levels(jump=0.5, walk=0.5, walk_nodes=0.5, own=0.6)
"""Standard deviations of the levels' logarithms."""


@dataclass(frozen=True)
class Sites:
    """Cells as the misfit sees them."""

    layout: Layout
    compute_share: Floats
    """Share of compute in each step, 0 to 1: jumps are in it, walks in the rest above all."""

    @property
    def walk_weight(self) -> Floats:
        """How much of the walks is in each step."""
        return WALK_OF_COMPUTE + (1 - WALK_OF_COMPUTE) * (1 - self.compute_share)


def parts(here: Sites, there: Sites) -> tuple[Floats, Floats, Floats]:
    """Return covariances of jumps, walk and walk over nodes, between cells here (rows) and there.

    They are for levels of 1; each cell's own part is left out.
    """
    apart = np.abs(np.log2(here.layout.batch[:, None] / there.layout.batch[None, :]))
    jumps = np.exp(-apart / REACH) * np.outer(here.compute_share, there.compute_share)
    weights = np.outer(here.walk_weight, there.walk_weight)
    walks = [
        weights * np.minimum(np.log2(ours)[:, None], np.log2(theirs)[None, :])
        for ours, theirs in (
            (here.layout.workers, there.layout.workers),
            (here.layout.nodes, there.layout.nodes),
        )
    ]
    return jumps, walks[0], walks[1]


def covariance(levels: Levels, here: Sites, there: Sites) -> Floats:
    """Return the covariances between cells here (rows) and there, each one's own part left out."""
    jumps, walks, walks_nodes = parts(here, there)
    squares = levels.jump**2, levels.walk**2, levels.walk_nodes**2
    return squares[0] * jumps + squares[1] * walks + squares[2] * walks_nodes


def variance(levels: Levels, here: Sites) -> Floats:
    """Return each cell's variance, its own part left out."""
    doublings = np.log2(here.layout.workers), np.log2(here.layout.nodes)
    walked = levels.walk**2 * doublings[0] + levels.walk_nodes**2 * doublings[1]
    return np.asarray((levels.jump * here.compute_share) ** 2 + here.walk_weight**2 * walked)


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
    return covariance(levels, sites, sites) + np.diag(own / weights)


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
    terms = [*parts(sites, sites), np.diag(1 / weights)]
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
