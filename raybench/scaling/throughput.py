"""Law that predicts the step time from worker count, node count, batch size and passes.

There are k workers on n nodes, m on each. In a step, each worker computes s passes (forward and
backward) of b samples. The compute time C of a pass is constant until the device is fully used,
then linear in b (with q = 1, it is an affine function of b). It is proportional to k^kappa because
of stragglers:

    C = k^kappa (f^q + (c b)^q)^(1/q)

The time S of the gradient exchange follows that of a ring all-reduce (Patarasuk and Yuan 2009): in
a ring of e participants, 2 (e - 1) / e of the bytes pass the slowest link. With psi below 1, the
time depends less on e. Other effects (latency, tree algorithms, congestion) are modeled by powers
of the worker and node counts. Between nodes, the ring has from n participants (if gradients are
first summed within each node) to k (a flat ring):

    S = 0                                                       for one worker
    S = A (2 (k - 1) / k)^psi (k / 2)^rho                       within a node
    S = A R (2 (e - 1) / e)^psi (n / 2)^rho_n m^rho_m           between nodes, e = n m^h

with h and psi from 0 to 1. The exchange overlaps with the last pass, by the p-norm of Pollux (Qiao
2021, arXiv 2008.12260, eq. 11): with gamma = 1 there is no overlap, with 10 it is nearly complete.
Feeding samples to the workers of a node, which share the path, takes F s b m and mostly overlaps
with the step. So the step time is

    T = (((s - 1) C + (C^gamma + S^gamma)^(1/gamma))^4 + (F s b m)^4)^(1/4)

The residuals of the law, in log step time, are a Gaussian process with four parts:

- jumps between batch sizes, since libraries choose kernels by shape; they affect compute in the
  same way at all worker counts,
- a random walk over doublings of the worker count, so that the uncertainty grows with the distance
  of an extrapolation,
- a random walk over doublings of the node count,
- an independent deviation of each cell (worker count, node count, batch size).

The standard deviations of the parts ("levels") maximize the marginal likelihood under log-normal
priors.

The fit is Bayesian: it determines the most probable parameters under normal priors, and draws
parameters from the posterior by importance sampling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares, minimize

from raybench.scaling.measurements import Cell, Floats, Layout, Observed

NO_EXCHANGE = -60.0
"""Log seconds of the gradient exchange of a single worker; it stands for 0 seconds."""
FEED_OVERLAP = 4.0
"""Exponent of the p-norm by which reading samples overlaps with the step; with 4, the overlap is
nearly complete, as with prefetching."""


Priors = dict[str, tuple[float, float]]
"""Type of priors: mean and standard deviation, keyed by parameter."""
# Chosen by held-out error and coverage on simulated clusters (seven laws, none of them this one;
# the simulation is gone); floor and network on the real clusters of
# benchmarks/scaling/extrapolation.py, where samples take more time than the constant part of a
# pass, and hosts with a network card for each GPU (ratio near 1) are as common as hosts with a
# single card.
PRIORS: Priors = {
    "log_pass": (0.0, 2.0),  # log of c b for the typical batch, relative to the median step
    "log_floor": (-2.0, 1.5),  # log of f / (c b) for the typical batch
    "sharpness": (-0.5, 1.0),  # log(q - 1)
    "log_exchange": (-2.0, 1.5),  # log of A / (c b) for the typical batch
    "growth": (0.1, 0.15),  # rho
    "log_network": (0.5, 1.2),  # log of R: slowdown of an exchange between nodes
    "growth_nodes": (0.1, 0.15),  # rho_n
    "growth_share": (0.04, 0.1),  # rho_m
    "flatness": (1.0, 1.5),  # logit of h
    "overlap": (-1.5, 1.5),  # logit of (gamma - 1) / 9
    "straggling": (0.005, 0.01),  # kappa
    "log_feed": (-3.0, 1.0),  # log of F / c
    "ringness": (1.5, 1.5),  # logit of psi: 1 for a ring; with 0, more participants cost nothing
}
"""Prior mean and standard deviation by parameter; the module docstring explains the symbols."""
NUM_PARAMETERS = len(PRIORS)

Parameters = dict[str, Floats]
"""Parameters of the throughput law, keyed by name; each has the shape [sets, 1]."""


def parameters(units: Floats, priors: Priors = PRIORS) -> Parameters:
    """Convert standardized parameters to parameters by name.

    Args:
        units: Standardized parameters, which have prior mean 0 and prior standard deviation 1,
            shape [sets, parameters].
        priors: Prior mean and standard deviation by parameter.
    """
    numbered = enumerate(priors.items())
    return {name: mean + sd * units[:, i, None] for i, (name, (mean, sd)) in numbered}


@dataclass(frozen=True)
class Scale:
    """Units of the throughput law: a typical batch size per worker, and typical seconds of a
    pass."""

    batch: float
    seconds: float


@dataclass(frozen=True)
class Sites:
    """Cells, and the properties of each that determine the covariance of the residuals."""

    layout: Layout
    compute_share: Floats
    """Share of compute in the step time, 0 to 1, shape [cells]. Jumps affect this share; random
    walks affect mainly the rest."""

    @property
    def walk_weight(self) -> Floats:
        """Factor on the standard deviation of the random walks, shape [cells]."""
        return WALK_OF_COMPUTE + (1 - WALK_OF_COMPUTE) * (1 - self.compute_share)


@dataclass(frozen=True)
class Law:
    """Throughput law for given cells (worker count, node count, batch size).

    Most methods return log seconds, shape [parameter sets, cells].
    """

    scale: Scale
    layout: Layout
    priors: Priors = field(default_factory=lambda: PRIORS)

    def compute(self, at: Parameters) -> Floats:
        """Return the log seconds of computing a pass."""
        q = 1 + np.exp(at["sharpness"])
        linear = np.log(self.layout.batch / self.scale.batch)
        relative = np.logaddexp(q * at["log_floor"], q * linear) / q
        slower = at["straggling"] * np.log(self.layout.workers)
        return np.asarray(np.log(self.scale.seconds) + at["log_pass"] + relative + slower)

    def exchange(self, at: Parameters) -> Floats:
        """Return the log seconds of the gradient exchange."""
        k, n, m = self.layout.workers, self.layout.nodes, self.layout.workers_per_node
        psi = _logistic(at["ringness"])
        within = psi * _log_ring(k) + at["growth"] * np.log(k / 2)
        ends = n * m ** _logistic(at["flatness"])
        grown = at["growth_nodes"] * np.log(n / 2) + at["growth_share"] * np.log(m)
        between = at["log_network"] + psi * _log_ring(ends) + grown
        of_two = np.log(self.scale.seconds) + at["log_pass"] + at["log_exchange"]
        return np.where(k > 1, of_two + np.where(n > 1, between, within), NO_EXCHANGE)

    def feed(self, at: Parameters) -> Floats:
        """Return the log seconds of feeding the samples of a step to all workers of a node."""
        layout = self.layout
        samples = layout.batch / self.scale.batch * layout.workers_per_node * layout.accumulate
        return np.asarray(
            np.log(self.scale.seconds) + at["log_pass"] + at["log_feed"] + np.log(samples)
        )

    def worked(self, at: Parameters, exchange: Floats | None = None) -> Floats:
        """Return the log seconds of a step that does not wait for samples.

        Args:
            at: Parameters of the law.
            exchange: Log seconds of the gradient exchange; by default, those predicted by the law.
        """
        exchange = self.exchange(at) if exchange is None else exchange
        compute, gamma = self.compute(at), _gamma(at)
        last = np.logaddexp(gamma * compute, gamma * exchange) / gamma
        earlier = self.layout.accumulate - 1
        # The logarithm of 0 passes is -inf, so that logaddexp ignores it.
        logs = np.log(earlier, out=np.full_like(earlier, -np.inf), where=earlier > 0)
        return np.asarray(np.logaddexp(logs + compute, last))

    def step(self, units: Floats) -> Floats:
        """Return the log seconds of an optimizer step, given standardized parameters."""
        at = parameters(units, self.priors)
        combined = np.logaddexp(FEED_OVERLAP * self.worked(at), FEED_OVERLAP * self.feed(at))
        return np.asarray(combined / FEED_OVERLAP)

    def sites(self, unit: Floats) -> Sites:
        """Return the cells with their shares of compute, given one set of standardized parameters.

        The share is the elasticity of the time of the last pass with respect to the compute time:
        the relative increase of the former per relative increase of the latter.
        """
        at = parameters(unit[None], self.priors)
        shares = _logistic(_gamma(at) * (self.compute(at) - self.exchange(at)))
        return Sites(self.layout, np.asarray(shares[0]))


def _gamma(at: Parameters) -> Floats:
    """Return gamma, the exponent of the overlap, 1 to 10."""
    return 1 + 9 * _logistic(at["overlap"])


def _log_ring(ends: Floats) -> Floats:
    """Return the log of 2 (e - 1) / e for rings of e participants."""
    return np.log(np.maximum(2 * (ends - 1) / ends, 1e-9))


def _logistic(value: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(value, -500, 500)))


JUMP_LENGTH = 1.0
"""Number of doublings of the batch size over which the correlation of jumps falls to 1/e."""
WALK_OF_COMPUTE = 0.2
"""Factor on the standard deviation of the random walks for a step that is all compute. The factor
increases linearly to 1 as the share of compute falls to 0."""


@dataclass(frozen=True)
class Levels:
    """Relative standard deviations of the four parts of the residuals; 0.03 is 3 % of the step
    time."""

    jump: float
    walk: float
    """Standard deviation of the random walk per doubling of the worker count."""
    walk_nodes: float
    """Standard deviation of the random walk per doubling of the node count."""
    cell: float
    """Standard deviation of the independent deviations of cells."""


PRIOR_LEVELS = Levels(jump=0.03, walk=0.05, walk_nodes=0.06, cell=0.04)
"""Medians of the log-normal priors of the levels."""
PRIOR_LEVEL_SDS = Levels(jump=0.5, walk=0.5, walk_nodes=0.5, cell=0.6)
"""Standard deviations of the logarithms of the levels under their priors."""


def parts(row_sites: Sites, column_sites: Sites) -> list[Floats]:
    """Return the covariance matrices of three parts of the residuals, each at a level of 1.

    The parts are the jumps, the random walk over workers and the random walk over nodes. The rows
    of a matrix are the cells of `row_sites`, and the columns are those of `column_sites`.
    """
    doublings = np.abs(
        np.log2(row_sites.layout.batch[:, None] / column_sites.layout.batch[None, :])
    )
    jumps = np.exp(-doublings / JUMP_LENGTH) * np.outer(
        row_sites.compute_share, column_sites.compute_share
    )
    weights = np.outer(row_sites.walk_weight, column_sites.walk_weight)
    sizes = [(sites.layout.workers, sites.layout.nodes) for sites in (row_sites, column_sites)]
    walks = [
        weights * np.minimum(np.log2(ours)[:, None], np.log2(theirs)[None, :])
        for ours, theirs in zip(*sizes, strict=True)
    ]
    return [jumps, *walks]


def covariance(levels: Levels, row_sites: Sites, column_sites: Sites) -> Floats:
    """Return the covariances between the residuals at `row_sites` and those at `column_sites`,
    without the independent deviations of cells."""
    sizes = levels.jump, levels.walk, levels.walk_nodes
    total = [
        size**2 * part for size, part in zip(sizes, parts(row_sites, column_sites), strict=True)
    ]
    return np.asarray(sum(total))


MAX_ROUNDS = 15
DEGREES = 4.0
"""Degrees of freedom of Student's t for the independent deviations of cells; it gives a single
outlying cell a lower weight."""
NORMAL_WEIGHT = 0.767
"""Mean of (weight x squared distance) if deviations are normal. Weights are divided by this number,
because the lower weights of outliers would otherwise make the levels too small."""
LEVEL_RANGE = 3.0
"""Maximum distance of levels from their prior median, in prior standard deviations."""


def covariance_of(levels: Levels, sites: Sites, observed: Observed, weights: Floats) -> Floats:
    """Return the covariance matrix of the residuals at measured cells, including the noise between
    repeats."""
    independent = levels.cell**2 + observed.noise / observed.repeats
    return covariance(levels, sites, sites) + np.diag(independent / weights)


def whitening(levels: Levels, sites: Sites, observed: Observed, weights: Floats) -> Floats:
    """Return the matrix that transforms residuals to independent ones with variance 1
    (whitening)."""
    spread = np.linalg.cholesky(covariance_of(levels, sites, observed, weights))
    return np.asarray(np.linalg.inv(spread))


def probable_levels(
    residuals: Floats, spread: Floats, sites: Sites, observed: Observed, weights: Floats
) -> Levels:
    """Return the most probable standard deviations (`Levels`) of the parts of the law's residuals.

    Args:
        residuals: Residuals at the measured cells, in log seconds.
        spread: Covariance of the law's predictions that is due to the uncertainty of its fitted
            parameters. Without it, the levels would be too small (Rasmussen and Williams 2006,
            section 2.7).
        sites: The measured cells.
        observed: Their measurements.
        weights: Weight of each cell (`robust_weights`).
    """
    means, sds = (
        np.log(list(vars(PRIOR_LEVELS).values())),
        np.array(list(vars(PRIOR_LEVEL_SDS).values())),
    )

    # The covariance is a sum of parts times squared levels, so the gradient is such a sum too.
    terms = [*parts(sites, sites), np.diag(1 / weights)]
    fixed = spread + np.diag(observed.noise / observed.repeats / weights)

    def loss(units: Floats) -> tuple[float, Floats]:
        squares = np.exp(2 * (means + sds * units))
        total = fixed + sum(size * term for size, term in zip(squares, terms, strict=True))
        precision = np.linalg.inv(total)
        unlike = precision @ residuals
        volume = np.linalg.slogdet(total)[1]
        pulls = precision - np.outer(unlike, unlike)
        slope = squares * np.array([np.sum(pulls * term) for term in terms]) * sds + units
        return 0.5 * float(residuals @ unlike + volume + units @ units), slope

    bounds, limits = [(-LEVEL_RANGE, LEVEL_RANGE)] * len(sds), {"maxiter": MAX_ROUNDS}
    start = np.zeros(len(sds))
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    return Levels(*map(float, np.exp(means + sds * optimum.x)))


def left_out(left: Floats, covariance: Floats) -> Floats:
    """Return the distance of each residual from its prediction by all other residuals.

    The unit is the standard deviation of the prediction. See Rasmussen and Williams 2006, equations
    5.10 to 5.12.

    Args:
        left: Residuals, shape [cells].
        covariance: Their covariance matrix.
    """
    precision = np.linalg.inv(covariance)
    return np.asarray(precision @ left / np.sqrt(np.diag(precision)))


def robust_weights(distances: Floats) -> Floats:
    """Return the weight of each cell, given its distance from its prediction (`left_out`).

    The weights are those of Student's t, written as a mixture of normal distributions (Lange 1989).
    No weight exceeds that of a cell at one standard deviation.
    """
    weights = np.minimum(1.0, (DEGREES + 1) / (DEGREES + distances**2))
    return np.asarray(weights / NORMAL_WEIGHT)


SLOPE_STEP = 1e-4
TOLERANCE = 1e-6

Function = Callable[[Floats], Floats]
"""Function from standardized parameters, shape [sets, parameters], to log seconds, shape [sets,
cells]."""


def slopes(law: Function, unit: Floats) -> tuple[Floats, Floats]:
    """Linearize the law at standardized parameters.

    Returns:
        - Log seconds, shape [cells].
        - Their derivatives by central differences, shape [cells, parameters]."""
    number = len(unit)
    moves = SLOPE_STEP * np.eye(number)
    values = law(np.vstack([unit, unit + moves, unit - moves]))
    return values[0], (values[1 : number + 1] - values[number + 1 :]).T / (2 * SLOPE_STEP)


def most_probable(law: Function, measured: Floats, whiten: Floats, start: Floats) -> Floats:
    """Return the most probable standardized parameters.

    They minimize the sum of the squared whitened residuals and of the squared parameters (the
    normal prior).

    Args:
        measured: Measured log seconds, shape [cells].
        whiten: Matrix that whitens residuals (`whitening`).
        start: Parameters from which the search starts.
    """

    def residuals(unit: Floats) -> Floats:
        return np.concatenate([whiten @ (measured - law(unit[None])[0]), unit])

    def slope(unit: Floats) -> Floats:
        return np.vstack([-whiten @ slopes(law, unit)[1], np.eye(len(unit))])

    optimum = least_squares(residuals, start, jac=slope, method="lm", ftol=TOLERANCE)
    return np.asarray(optimum.x)


SAMPLING_ROUNDS = 3
PROPOSAL_DEGREES = 5.0
"""Degrees of freedom of the proposal distribution (Student's t), which has heavy tails so that no
probable region is missed."""
LEAST_EFFECTIVE = 0.25
"""Minimum effective sample size, as a fraction of the draws, with which the proposal distribution
is good enough."""


def sample(law: Function, measured: Floats, whiten: Floats, peak: Floats, *, number: int) -> Floats:
    """Draw standardized parameters from their posterior, by importance sampling.

    The proposal distribution is Student's t around the peak, with the curvature at the peak. It is
    then adapted to the weighted draws (Cappé 2004, population Monte Carlo). Parameters that the
    measurements do not determine keep the width of their priors. The same measurements give the
    same draws.
    """
    rng = np.random.default_rng(0)
    size = len(peak)
    design = whiten @ slopes(law, peak)[1]
    mean, spread = peak, np.linalg.inv(design.T @ design + np.eye(size))
    for _ in range(SAMPLING_ROUNDS):
        heavy = np.sqrt(rng.chisquare(PROPOSAL_DEGREES, (number, 1)) / PROPOSAL_DEGREES)
        moves = rng.standard_normal((number, size)) / heavy
        draws = mean + moves @ np.linalg.cholesky(spread).T
        residuals = (measured - law(draws)) @ whiten.T
        wanted = -0.5 * np.sum(residuals**2, axis=1) - 0.5 * np.sum(draws**2, axis=1)
        squares = np.sum(moves**2, axis=1)
        proposed = -0.5 * (PROPOSAL_DEGREES + size) * np.log1p(squares / PROPOSAL_DEGREES)
        weights = np.exp(wanted - proposed - np.max(wanted - proposed))
        weights /= weights.sum()
        if 1 / np.sum(weights**2) > LEAST_EFFECTIVE * number:
            break
        mean = weights @ draws
        deviations = draws - mean
        weighted_covariance = (deviations.T * weights) @ deviations
        spread = (
            0.9 * weighted_covariance
            + 0.1 * np.diag(np.diag(weighted_covariance))
            + 1e-6 * np.eye(size)
        )
    return draws[rng.choice(number, size=number, p=weights)]


ROUNDS = 4
"""Number of rounds, each of which fits the law and then the levels; the third changes little."""
DRAWS, DRAWS_LEFT_OUT = 1500, 500
"""Number of parameter draws for a fit, and for each leave-one-out fit."""
BLOCK = 256
"""Maximum number of cells that are predicted together; it limits the size of the covariance
matrix."""


@dataclass(frozen=True)
class LawFit:
    """Throughput law, fitted to measurements together with its residuals."""

    observed: Observed
    scale: Scale
    unit: Floats
    """Most probable standardized parameters (`parameters`)."""
    levels: Levels
    weights: Floats
    """Weight of each cell: about 1, but less for a cell that is far from its prediction by the
    others."""
    draws: Floats
    """Standardized parameters drawn from the posterior, shape [draws, parameters]."""
    priors: Priors

    @classmethod
    def fit(cls, observed: Observed, priors: Priors = PRIORS) -> "LawFit":
        """Fit the law to measured cells; with a single cell, most parameters keep their priors."""
        layout = Layout.of(observed.cells)
        batch = np.exp(np.mean(np.log(layout.batch)))
        seconds = np.exp(np.median(observed.log_seconds - np.log(layout.accumulate)))
        law = Law(Scale(float(batch), float(seconds)), layout, priors)
        unit, levels, weights = np.zeros(NUM_PARAMETERS), PRIOR_LEVELS, np.ones(len(observed.cells))
        for _ in range(ROUNDS):
            whiten = whitening(levels, law.sites(unit), observed, weights)
            unit = most_probable(law.step, observed.log_seconds, whiten, unit)
            value, jacobian = slopes(law.step, unit)
            # The law is linearized around the peak, so that predictions are normally distributed.
            residuals = observed.log_seconds - value + jacobian @ unit
            sites, spread = law.sites(unit), jacobian @ jacobian.T
            levels = probable_levels(residuals, spread, sites, observed, weights)
            distances = left_out(
                residuals, spread + covariance_of(levels, sites, observed, weights)
            )
            weights = robust_weights(distances)
        return cls._around(observed, law, levels, weights, unit, DRAWS)

    def without(self, index: int) -> "LawFit":
        """Return the law refitted without one cell, with the same levels and weights."""
        observed = self.observed.without(index)
        weights = np.delete(self.weights, index)
        law = Law(self.scale, Layout.of(observed.cells), self.priors)
        return self._around(observed, law, self.levels, weights, self.unit, DRAWS_LEFT_OUT)

    @classmethod
    def _around(
        cls,
        observed: Observed,
        law: Law,
        levels: Levels,
        weights: Floats,
        start: Floats,
        number: int,
    ) -> "LawFit":
        measured = observed.log_seconds
        whiten = whitening(levels, law.sites(start), observed, weights)
        unit = most_probable(law.step, measured, whiten, start)
        whiten = whitening(levels, law.sites(unit), observed, weights)
        draws = sample(law.step, measured, whiten, unit, number=number)
        return cls(observed, law.scale, unit, levels, weights, draws, law.priors)

    def quantiles(self, cells: Sequence[Cell]) -> Floats:
        """Predict the log seconds that would be measured at each cell.

        Returns:
            Low end of the 90 % interval, median and high end, shape [3, cells]."""
        blocks = [self._quantiles(cells[i : i + BLOCK]) for i in range(0, len(cells), BLOCK)]
        return np.concatenate(blocks, axis=1)

    def _quantiles(self, cells: Sequence[Cell]) -> Floats:
        centre, doubt = self.outcomes(cells)
        # Few cells do not determine the noise well, so Student's t is used instead of a normal.
        degrees = max(4.0, len(self.observed.cells) / 2 + 3)
        noise = np.random.default_rng(1).standard_t(degrees, size=(len(centre), 1))
        spread = np.sqrt(np.diag(doubt) + self.levels.cell**2 + self.observed.noise)
        low, high = np.quantile(centre + noise * spread, (0.05, 0.95), axis=0)
        return np.stack([low, np.median(centre, axis=0), high])

    def outcomes(self, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
        """Predict the log seconds of cells for each draw of the parameters.

        Returns:
            - Log seconds, shape [draws, cells].
            - Covariance matrix of the residuals of the cells, without the independent deviations
              and the noise between repeats.
        """
        measured_law = Law(self.scale, Layout.of(self.observed.cells), self.priors)
        asked_law = Law(self.scale, Layout.of(cells), self.priors)
        measured_sites, asked_sites = measured_law.sites(self.unit), asked_law.sites(self.unit)
        whiten = whitening(self.levels, measured_sites, self.observed, self.weights)
        cross = covariance(self.levels, asked_sites, measured_sites)
        # Residuals at measured cells predict those at similar cells.
        gain = cross @ whiten.T @ whiten
        residuals = self.observed.log_seconds - measured_law.step(self.draws)
        doubt = covariance(self.levels, asked_sites, asked_sites) - gain @ cross.T
        np.fill_diagonal(doubt, np.maximum(np.diag(doubt), 0.0))
        return asked_law.step(self.draws) + residuals @ gain.T, doubt
