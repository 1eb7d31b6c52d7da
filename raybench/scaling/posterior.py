"""Sets of parameters as probable as the measurements leave them, by importance sampling."""

import numpy as np

from raybench.scaling.cells import Floats
from raybench.scaling.least_squares import Function, slopes

ROUNDS = 3
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
    for _ in range(ROUNDS):
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
