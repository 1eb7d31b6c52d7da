"""Bayesian fit of the law to measured steps, and its predictions with intervals.

The maximum a posteriori parameters under normal priors, and draws from their posterior by
importance sampling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from raybench.scaling.measurements import Cell, Floats, Layout, Observed
from raybench.scaling.throughput import (
    NUM_PARAMETERS,
    PRIORS,
    USUAL,
    Law,
    Levels,
    Priors,
    Scale,
    covariance,
    covariance_of,
    left_out,
    probable_levels,
    robust_weights,
    whitening,
)

STEP = 1e-4
GOOD_ENOUGH = 1e-6

Function = Callable[[Floats], Floats]
"""Rows of parameters in units of their priors -> rows of logarithms of seconds."""


def slopes(law: Function, unit: Floats) -> tuple[Floats, Floats]:
    """Return the law at some parameters, and its derivatives there: a row for each cell."""
    number = len(unit)
    moves = STEP * np.eye(number)
    values = law(np.vstack([unit, unit + moves, unit - moves]))
    return values[0], (values[1 : number + 1] - values[number + 1 :]).T / (2 * STEP)


def most_probable(law: Function, measured: Floats, whiten: Floats, start: Floats) -> Floats:
    """Return the parameters of the least squared misfit plus squared distance from the priors.

    `whiten` is the matrix that turns residuals into independent ones of variance one.
    """

    def away(unit: Floats) -> Floats:
        return np.concatenate([whiten @ (measured - law(unit[None])[0]), unit])

    def slope(unit: Floats) -> Floats:
        return np.vstack([-whiten @ slopes(law, unit)[1], np.eye(len(unit))])

    found = least_squares(away, start, jac=slope, method="lm", ftol=GOOD_ENOUGH)
    return np.asarray(found.x)


SAMPLING_ROUNDS = 3
DEGREES = 5.0
"""Degrees of freedom of the proposals: heavy tails, so that no probable region is missed."""
ENOUGH = 0.25
"""Effective share of the draws at which a proposal is good enough."""


def sample(law: Function, measured: Floats, whiten: Floats, peak: Floats, *, number: int) -> Floats:
    """Return `number` rows of parameters, drawn from their posterior.

    Proposals are Student's t around the peak with the curvature there, then moved to the probable
    draws (Cappé 2004, population Monte Carlo). Parameters that the measurements do not determine
    keep the width of their priors. The same measurements give the same draws.
    """
    rng = np.random.default_rng(0)
    parameters = len(peak)
    design = whiten @ slopes(law, peak)[1]
    mean, spread = peak, np.linalg.inv(design.T @ design + np.eye(parameters))
    for _ in range(SAMPLING_ROUNDS):
        heavy = np.sqrt(rng.chisquare(DEGREES, (number, 1)) / DEGREES)
        moves = rng.standard_normal((number, parameters)) / heavy
        draws = mean + moves @ np.linalg.cholesky(spread).T
        residuals = (measured - law(draws)) @ whiten.T
        wanted = -0.5 * np.sum(residuals**2, axis=1) - 0.5 * np.sum(draws**2, axis=1)
        proposed = -0.5 * (DEGREES + parameters) * np.log1p(np.sum(moves**2, axis=1) / DEGREES)
        weights = np.exp(wanted - proposed - np.max(wanted - proposed))
        weights /= weights.sum()
        if 1 / np.sum(weights**2) > ENOUGH * number:
            break
        mean = weights @ draws
        apart = draws - mean
        found = (apart.T * weights) @ apart
        spread = 0.9 * found + 0.1 * np.diag(np.diag(found)) + 1e-6 * np.eye(parameters)
    return draws[rng.choice(number, size=number, p=weights)]


ROUNDS = 4
"""Rounds of fitting the law and then the residual levels; the third changes little."""
DRAWS, DRAWS_LEFT_OUT = 1500, 500
"""Draws of parameters: for a fit, and for each of the fits without one cell."""
BLOCK = 256
"""Cells that are predicted together, with their covariance matrix."""


@dataclass(frozen=True)
class LawFit:
    """The law fitted to measurements, and its residuals."""

    observed: Observed
    scale: Scale
    unit: Floats
    """Most probable parameters, in units of their priors."""
    levels: Levels
    weights: Floats
    """Weight of each cell: about 1, less if it is far from its prediction by the others."""
    draws: Floats
    """Rows of parameters drawn from the posterior."""
    priors: Priors

    @classmethod
    def fit(cls, observed: Observed, priors: Priors = PRIORS) -> "LawFit":
        """Fit to measured cells; with a single cell most of the fit is the priors."""
        layout = Layout.of(observed.cells)
        batch = np.exp(np.mean(np.log(layout.batch)))
        seconds = np.exp(np.median(observed.log_seconds - np.log(layout.accumulate)))
        law = Law(Scale(float(batch), float(seconds)), layout, priors)
        unit, levels, weights = np.zeros(NUM_PARAMETERS), USUAL, np.ones(len(observed.cells))
        for _ in range(ROUNDS):
            whiten = whitening(levels, law.sites(unit), observed, weights)
            unit = most_probable(law.step, observed.log_seconds, whiten, unit)
            value, jacobian = slopes(law.step, unit)
            # Linearized around the peak, the measurements are normal.
            left = observed.log_seconds - value + jacobian @ unit
            sites, spread = law.sites(unit), jacobian @ jacobian.T
            levels = probable_levels(left, spread, sites, observed, weights)
            apart = left_out(left, spread + covariance_of(levels, sites, observed, weights))
            weights = robust_weights(apart)
        return cls._around(observed, law, levels, weights, unit, DRAWS)

    def without(self, index: int) -> "LawFit":
        """Return the fit without one cell, with the same levels and weights."""
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
        """Return log seconds, shape (3, cells): low end, median and high end (90 %) of a
        measurement."""
        blocks = [self._quantiles(cells[i : i + BLOCK]) for i in range(0, len(cells), BLOCK)]
        return np.concatenate(blocks, axis=1)

    def _quantiles(self, cells: Sequence[Cell]) -> Floats:
        centre, doubt = self.outcomes(cells)
        # Few cells do not determine the noise: Student's tails instead of normal ones.
        degrees = max(4.0, len(self.observed.cells) / 2 + 3)
        noise = np.random.default_rng(1).standard_t(degrees, size=(len(centre), 1))
        spread = np.sqrt(np.diag(doubt) + self.levels.own**2 + self.observed.noise)
        low, high = np.quantile(centre + noise * spread, (0.05, 0.95), axis=0)
        return np.stack([low, np.median(centre, axis=0), high])

    def outcomes(self, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
        """Return the prediction of each draw, shape (draws, cells), and the covariance of the
        residuals of the cells, without each cell's own part and noise."""
        here = Law(self.scale, Layout.of(self.observed.cells), self.priors)
        there = Law(self.scale, Layout.of(cells), self.priors)
        known, asked = here.sites(self.unit), there.sites(self.unit)
        whiten = whitening(self.levels, known, self.observed, self.weights)
        cross = covariance(self.levels, asked, known)
        # Residuals at measured cells carry over to similar cells.
        gain = cross @ whiten.T @ whiten
        left = self.observed.log_seconds - here.step(self.draws)
        doubt = covariance(self.levels, asked, asked) - gain @ cross.T
        np.fill_diagonal(doubt, np.maximum(np.diag(doubt), 0.0))
        return there.step(self.draws) + left @ gain.T, doubt
