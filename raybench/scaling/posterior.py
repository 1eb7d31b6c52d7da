"""Parameters that fit best under normal priors, and sets of them as probable as the measurements
leave them, by importance sampling.
"""

from collections.abc import Callable

import numpy as np

from raybench.scaling.cells import Floats

STEP = 1e-4
MAX_ROUNDS = 60
GOOD_ENOUGH = 1e-6
NO_WAY_ON = 1e8

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

    `whiten` is the matrix that turns residuals into independent ones of variance one. This is
    Levenberg and Marquardt's method: a step that does not help is tried again, shorter.
    """
    unit, damping = start.copy(), 1e-2
    value, jacobian = slopes(law, unit)
    loss = _loss(whiten @ (measured - value), unit)
    for _ in range(MAX_ROUNDS):
        design, left = whiten @ jacobian, whiten @ (measured - value)
        normal = design.T @ design + np.eye(len(unit))
        damped = normal + damping * np.diag(np.diag(normal))
        moved = unit + np.linalg.solve(damped, design.T @ left - unit)
        loss_there = _loss(whiten @ (measured - law(moved[None])[0]), moved)
        if loss_there < loss:
            gained, unit, loss = loss - loss_there, moved, loss_there
            if gained < GOOD_ENOUGH * (1 + loss):
                break
            damping /= 5
            value, jacobian = slopes(law, unit)
        else:
            damping *= 4
            if damping > NO_WAY_ON:
                break
    return unit


def _loss(residuals: Floats, unit: Floats) -> float:
    return float(residuals @ residuals + unit @ unit)


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
