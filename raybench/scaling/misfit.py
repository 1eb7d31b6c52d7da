"""What the law leaves over: a Gaussian process on the logarithm of step times.

Four parts, all relative: jumps between batch sizes, which are in the compute of every number of
workers (kernels are chosen by shape); random walks over doublings of workers and of nodes, so that
the doubt grows with the distance of an extrapolation; and each cell's own.
"""

from dataclasses import dataclass

import numpy as np

from raybench.scaling.cells import Floats, Layout

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
