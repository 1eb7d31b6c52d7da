"""How many training samples a global batch size needs to reach the target, and how sure that is.

Fitted is the logarithm of the median at each batch size, by the law of `samples_law` and what it
leaves over, which is alike at neighbouring batch sizes (an Ornstein-Uhlenbeck process over
doublings). No best values are picked: every set of parameters on a grid weighs what it makes the
medians probable, S_min integrated out, and predictions are over all of them. So a B_crit that no
run determines shows as an interval without an end.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from raybench.core.errors import UserError
from raybench.scaling.convergence import BatchSize, Convergence, read
from raybench.scaling.samples_curve import HIGH, MEDIAN_NOISE, Left, SamplesToTarget
from raybench.scaling.samples_law import MISFITS, Curves, alike, draw, grid, middles, scattered

LEAST_NOISE = 1e-4
"""Of a median's logarithm, where no run was repeated: the misfit then takes it all."""
NUM_DRAWS = 2000
COLUMNS = ("batch_size", "num_runs", "num_reached", "samples", "predicted", "low", "high", "error")


def fit(table: pd.DataFrame | Path | str) -> SamplesToTarget:
    """Fit the curve to runs: a CSV file or a DataFrame as `convergence` describes it."""
    return fit_convergence(read(table))


def fit_convergence(runs: Convergence) -> SamplesToTarget:
    """Fit the curve to runs that were read before; two batch sizes with a median are needed."""
    known = [size for size in runs.batch_sizes if size.samples is not None]
    if len(known) < 2:
        raise UserError(
            "samples to target: two batch sizes or more at which most runs reach the target are "
            f"needed, not {len(known)}; train at another batch size"
        )
    batch = np.array([size.batch_size for size in known], dtype=float)
    logs = np.log([float(size.samples or 0) for size in known])
    noise = np.array([_noise(runs, size) for size in known])
    sets, prior = grid(batch.min(), batch.max())
    away = logs - sets.log_rise(batch)

    scores, leasts, sds, solved = [], [], [], []
    for misfit in MISFITS:
        covariance = misfit**2 * alike(batch, batch) + np.diag(noise**2)
        inverse = np.linalg.inv(covariance)
        weight = inverse.sum(axis=0)
        least = away @ weight / weight.sum()
        over = away - least[:, None]
        score = prior - 0.5 * ((over @ inverse) * over).sum(axis=1)
        score -= 0.5 * (np.linalg.slogdet(covariance)[1] + np.log(weight.sum()))
        for size in runs.batch_sizes:
            if size.at_least is None:
                continue
            # A median of which is only known that it lies above what was spent.
            here = np.array([float(size.batch_size)])
            share = (misfit**2 * alike(here, batch) @ inverse)[0]
            above = least + sets.log_rise(here)[:, 0] + over @ share - np.log(size.at_least)
            variance = misfit**2 * (1 - share @ alike(batch, here)[:, 0]) + _noise(runs, size) ** 2
            variance += (1 - share.sum()) ** 2 / weight.sum()
            score = score + norm.logcdf(above / np.sqrt(variance))
        scores.append(score)
        leasts.append(least)
        sds.append(1 / np.sqrt(weight.sum()))
        solved.append(inverse)

    drawn = draw(np.concatenate(scores), NUM_DRAWS)
    level, chosen = np.divmod(drawn, len(prior))
    log_least = np.concatenate(leasts)[drawn] + np.array(sds)[level] * scattered(NUM_DRAWS, 0)
    left = Left(batch, tuple(solved), away[chosen] - log_least[:, None], level)
    missed = tuple(size.batch_size for size in runs.batch_sizes if size.samples is None)
    tried = (known[0].batch_size, known[-1].batch_size)
    return SamplesToTarget(
        log_least, sets.take(chosen), left, runs.spread, tried, missed, runs.notes
    )


def from_noise_scale(
    batch_size: int, samples: float, critical: float, *, factor: float = 3.0
) -> SamplesToTarget:
    """Return the curve of one batch size's samples and the critical batch of its gradient noise.

    `critical` is taken to be right within `factor` (90 %): noise scales were found two to four
    times off the critical batch of tuned runs, here and in McCandlish et al. 2018, section 3.
    """
    if not 0 < critical < np.inf:
        raise ValueError(f"a critical batch of {critical} says nothing: measure more steps")
    width = np.log(factor) / norm.ppf(HIGH)
    many = critical * np.exp(width * norm.ppf(middles(NUM_DRAWS)))
    curves = Curves(many, np.ones(NUM_DRAWS), np.zeros(NUM_DRAWS))
    log_least = np.log(samples) - np.log1p(batch_size / many)
    return SamplesToTarget(log_least, curves, None, 0.0, (batch_size, batch_size))


def leave_one_out(table: pd.DataFrame | Path | str | Convergence) -> pd.DataFrame:
    """Predict each batch size from the others: how far off the curve is where nothing was run.

    Columns: batch_size, num_runs, num_reached, samples (measured median), predicted, low, high
    (90 %, of a median of so many runs), error (relative). Batch sizes without a median are left
    out, and so is everything where two others do not remain.
    """
    runs = table if isinstance(table, Convergence) else read(table)
    known = [size for size in runs.batch_sizes if size.samples is not None]
    rows = []
    for size in known if len(known) > 2 else []:
        curve = fit_convergence(runs.without(size.batch_size))
        found = curve.predict([size.batch_size], size.num_runs).iloc[0]
        rows.append(
            {
                "batch_size": size.batch_size,
                "num_runs": size.num_runs,
                "num_reached": size.num_reached,
                "samples": size.samples,
                "predicted": found["samples"],
                "low": found["low"],
                "high": found["high"],
                "error": found["samples"] / size.samples - 1,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _noise(runs: Convergence, size: BatchSize) -> float:
    """Return the standard error of the logarithm of a batch size's median."""
    return max(MEDIAN_NOISE * runs.spread / float(np.sqrt(size.num_runs)), LEAST_NOISE)
