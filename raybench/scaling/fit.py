"""A throughput model: the law fitted to measured steps, and its predictions with their doubt.

Fitted are the most probable parameters under normal priors, and sets of them as probable as the
measurements leave them, by importance sampling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from raybench.scaling.measurements import Cell, Floats, Layout, Observed
from raybench.scaling.throughput import (
    NUM_PARAMETERS,
    USUAL,
    Law,
    Levels,
    Scale,
    covariance,
    covariance_of,
    left_out,
    probable_levels,
    robust_weights,
    variance,
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
"""Of freedom of the proposals: heavy tails, so that no probable place is left out."""
ENOUGH = 0.25
"""Share of draws that count; a proposal as good as that is kept."""


def sample(law: Function, measured: Floats, whiten: Floats, peak: Floats, *, number: int) -> Floats:
    """Return `number` rows of parameters, drawn from their posterior.

    Proposals are Student's around the peak with the curvature there, then moved to where the
    probable draws were (Cappé 2004, population Monte Carlo). Parameters that the measurements say
    nothing of keep their priors' whole width. The same measurements give the same draws.
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
"""Of fitting the law, then the sizes of what it leaves over: the third changes little."""
DRAWS, DRAWS_LEFT_OUT = 1500, 500
"""Of parameters: for a fit, and for one of the many fits without a cell."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, and the interval that a measurement of it is in nine times of ten."""

    cell: Cell
    step_s: float
    low_s: float
    high_s: float

    @property
    def samples_per_s(self) -> float:
        """Throughput of all workers together."""
        return self.cell.samples / self.step_s


@dataclass(frozen=True)
class ThroughputModel:
    """A law fitted to measurements, and what it leaves over (`misfit`)."""

    observed: Observed
    scale: Scale
    unit: Floats
    """The most probable parameters, in units of their priors."""
    levels: Levels
    weights: Floats
    """Of each cell: about one, and less where it is far from what the others say."""
    draws: Floats
    """Rows of parameters, as probable as the measurements leave them."""

    @classmethod
    def fit(cls, observed: Observed) -> "ThroughputModel":
        """Fit to measured cells; one is enough, and leaves most of it to the priors."""
        layout = Layout.of(observed.cells)
        batch = np.exp(np.mean(np.log(layout.batch)))
        seconds = np.exp(np.median(observed.log_seconds - np.log(layout.accumulate)))
        law = Law(Scale(float(batch), float(seconds)), layout)
        unit, levels, weights = np.zeros(NUM_PARAMETERS), USUAL, np.ones(len(observed.cells))
        for _ in range(ROUNDS):
            whiten = whitening(levels, law.sites(unit), observed, weights)
            unit = most_probable(law.step, observed.log_seconds, whiten, unit)
            value, jacobian = slopes(law.step, unit)
            # As if the law were straight around the peak, the measurements are normal.
            left = observed.log_seconds - value + jacobian @ unit
            sites, spread = law.sites(unit), jacobian @ jacobian.T
            levels = probable_levels(left, spread, sites, observed, weights)
            apart = left_out(left, spread + covariance_of(levels, sites, observed, weights))
            weights = robust_weights(apart)
        return cls._around(observed, law.scale, levels, weights, unit, DRAWS)

    def without(self, index: int) -> "ThroughputModel":
        """Return the model fitted without a cell; levels and weights are kept."""
        observed = self.observed.without(index)
        weights = np.delete(self.weights, index)
        return self._around(observed, self.scale, self.levels, weights, self.unit, DRAWS_LEFT_OUT)

    @classmethod
    def _around(
        cls,
        observed: Observed,
        scale: Scale,
        levels: Levels,
        weights: Floats,
        start: Floats,
        number: int,
    ) -> "ThroughputModel":
        law, measured = Law(scale, Layout.of(observed.cells)), observed.log_seconds
        whiten = whitening(levels, law.sites(start), observed, weights)
        unit = most_probable(law.step, measured, whiten, start)
        whiten = whitening(levels, law.sites(unit), observed, weights)
        draws = sample(law.step, measured, whiten, unit, number=number)
        return cls(observed, scale, unit, levels, weights, draws)

    def predict(self, cells: Sequence[Cell]) -> list[Prediction]:
        """Return the predictions of cells, in their order."""
        if not cells:
            return []
        here = Law(self.scale, Layout.of(self.observed.cells))
        there = Law(self.scale, Layout.of(cells))
        known, asked = here.sites(self.unit), there.sites(self.unit)
        whiten = whitening(self.levels, known, self.observed, self.weights)
        cross = covariance(self.levels, asked, known)
        # What the law leaves over at measured cells is carried to those like them.
        gain = cross @ whiten.T @ whiten
        left = self.observed.log_seconds - here.step(self.draws)
        centre = there.step(self.draws) + left @ gain.T
        unknown = variance(self.levels, asked) - np.sum(gain * cross, axis=1)
        doubt = np.maximum(unknown, 0.0) + self.levels.own**2 + self.observed.noise
        # Few cells do not tell how noisy they are: Student's tails instead of normal ones.
        degrees = max(4.0, len(self.observed.cells) / 2 + 3)
        noise = np.random.default_rng(1).standard_t(degrees, size=(len(centre), 1))
        low, high = np.exp(np.quantile(centre + noise * np.sqrt(doubt), (0.05, 0.95), axis=0))
        middle = np.exp(np.median(centre, axis=0))
        return [
            Prediction(cell, *map(float, row))
            for cell, *row in zip(cells, middle, low, high, strict=True)
        ]

    def efficiency(self, cells: Sequence[Cell]) -> list[float]:
        """Return each cell's throughput a worker over that of one worker with the same batch."""
        alone = self.predict([cell.one_worker for cell in cells])
        together = self.predict(cells)
        return [one.step_s / many.step_s for one, many in zip(alone, together, strict=True)]
