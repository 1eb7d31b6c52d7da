"""The gradient noise scale of data-parallel training, from two numbers a step that are at hand.

Workers see different samples, so their gradients differ by noise alone: what the average of them
loses in length against each by itself is noise, the rest is gradient (`stats.step_times`). With
per-sample covariance Sigma and true gradient G,

    B_simple = tr(Sigma) / |G|^2

is about the critical batch: where the loss bends alike in all directions it is that exactly, at
that moment of the training (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1). Both terms are
smoothed apart before they are divided, as their ratio in single steps has no mean (AdaptDL, of
Pollux: Qiao et al. 2021, arXiv 2008.12260).
"""

import math
from collections.abc import Iterable, Sequence

from raybench.stats.step_times import NoiseSums

DECAY = 0.99
"""Of the moving averages, per step: the last hundred steps count."""


def noise_scales(evaluations: Iterable[NoiseSums], *, decay: float = DECAY) -> list[float]:
    """Return B_simple in samples after each evaluation (`Evaluation.noise_scale`) of a run.

    The steps of an evaluation count alike, as their order is not kept. Infinite where noise hides
    the gradient. It lags: a `decay` of 0.99 shows what it was some hundred steps ago.
    """
    found, gradient, noise = [], 0.0, 0.0
    for sums in evaluations:
        old = decay**sums.num_steps
        new = (1 - old) / sums.num_steps
        gradient, noise = old * gradient + new * sums.gradient, old * noise + new * sums.noise
        # At the start both are too small, by the same factor.
        found.append(max(noise, 0.0) / gradient if gradient > 0 else math.inf)
    return found


def critical_batch(noise_scales: Sequence[float], batch_size: float) -> float:
    """Return the critical batch of a run at a batch size: its noise scales over its progress.

    The noise scale grows while a training goes on. A step at batch B counts 1 / (1 + B_simple / B)
    as it goes so far towards the step without noise (McCandlish et al. 2018, eq. 2.7 and
    appendix D). Moments without a finite noise scale are left out; NaN where none remains.
    """
    known = [scale for scale in noise_scales if math.isfinite(scale)]
    progress = [1 / (1 + scale / batch_size) for scale in known]
    if not known:
        return math.nan
    weighed = (scale * way for scale, way in zip(known, progress, strict=True))
    return sum(weighed) / sum(progress)
