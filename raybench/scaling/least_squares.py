"""Parameters that fit best under normal priors, and how a law bends around them."""

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
