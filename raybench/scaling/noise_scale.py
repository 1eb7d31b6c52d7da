"""The gradient noise scale of data-parallel training, from two numbers a step that are at hand.

Workers see different samples, so their gradients differ by noise alone: what the average of them
loses in length against each by itself is noise, the rest is gradient. With per-sample covariance
Sigma and true gradient G, a gradient over b samples has E|g|^2 = |G|^2 + tr(Sigma) / b. From the
mean of the workers' squared norms and the squared norm of their average both terms follow without
bias (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1), and

    B_simple = tr(Sigma) / |G|^2

is about the critical batch: where the loss bends alike in all directions it is that exactly, at
that moment of the training. Both terms are smoothed apart before they are divided, as their ratio
in single steps has no mean (AdaptDL, of Pollux: Qiao et al. 2021, arXiv 2008.12260). Everything is
frozen and pure: a `NoiseScale` is fed two scalars a step, or a run's evaluations one after another
(`after`; a run spec with `record_steps` measures what they hold), and may be kept with
`dataclasses.asdict`. For parts of a model (layers, parameter groups) hold one each; for Adam
feed gradients divided by the root of its second moment (Pollux, section 3.1), then the critical
batch is Adam's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raybench.stats.step_times import NoiseSums, noise_terms

DECAY = 0.99
"""Of the moving averages, per step: the last hundred steps count."""
Z = 1.645
"""Standard deviations of a 90 % interval."""


@dataclass(frozen=True)
class NoiseScale:
    """Moving averages of |G|^2 and tr(Sigma), and of how they vary from step to step.

    They lag: a `decay` of 0.99 shows what the noise scale was some hundred steps ago.
    """

    decay: float = DECAY
    num_steps: int = 0
    weight: float = 0.0
    """Sum of the weights so far; below 1 at the start, which the averages are divided by."""
    weight_squares: float = 0.0
    gradient: float = 0.0
    noise: float = 0.0
    gradient_squares: float = 0.0
    noise_squares: float = 0.0
    products: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, not {self.decay}")

    def update(
        self,
        sum_of_squares: float,
        square_of_average: float,
        samples_per_worker: Sequence[int],
        *,
        equal_weights: bool = False,
    ) -> "NoiseScale":
        """Return the averages after another step.

        The arguments are those of `core.step_times.noise_terms`. A step that tells nothing
        changes nothing.
        """
        terms = noise_terms(
            sum_of_squares, square_of_average, samples_per_worker, equal_weights=equal_weights
        )
        sums = NoiseSums.of([terms] if terms else [])
        return self if sums is None else self.after(sums)

    def after(self, sums: NoiseSums) -> "NoiseScale":
        """Return the averages after the steps of an evaluation (`Evaluation.noise_scale`).

        Among themselves they count alike, as their order is not kept.
        """
        old = self.decay**sums.num_steps
        new = (1 - old) / sums.num_steps
        return replace(
            self,
            num_steps=self.num_steps + sums.num_steps,
            weight=old * self.weight + 1 - old,
            weight_squares=old**2 * self.weight_squares + new**2 * sums.num_steps,
            gradient=old * self.gradient + new * sums.gradient,
            noise=old * self.noise + new * sums.noise,
            gradient_squares=old * self.gradient_squares + new * sums.gradient_squares,
            noise_squares=old * self.noise_squares + new * sums.noise_squares,
            products=old * self.products + new * sums.products,
        )

    @property
    def gradient_square(self) -> float:
        """|G|^2, smoothed; NaN before the first step. Noise can make it negative."""
        return self.gradient / self.weight if self.weight else math.nan

    @property
    def noise_trace(self) -> float:
        """tr(Sigma) per sample, smoothed; NaN before the first step."""
        return self.noise / self.weight if self.weight else math.nan

    @property
    def b_simple(self) -> float:
        """The noise scale in samples; infinite where noise hides the gradient, NaN at first."""
        if not self.weight:
            return math.nan
        return max(self.noise_trace, 0.0) / self.gradient_square if self.gradient > 0 else math.inf

    def interval(self) -> tuple[float, float]:
        """Return the 90 % interval of `b_simple`, by Fieller's rule for a ratio of two means.

        It is for independent steps, of a noise scale that stays while they count. Infinite above
        where |G|^2 may as well be 0.
        """
        if self.num_steps < 3:
            return 0.0, math.inf
        steps = self.weight**2 / self.weight_squares
        top, bottom = self.noise_trace, self.gradient_square
        square = Z**2 / (steps - 1)
        # Of the means: their variances and covariance, times Z squared.
        var_top = square * (self.noise_squares / self.weight - top**2)
        var_bottom = square * (self.gradient_squares / self.weight - bottom**2)
        both = square * (self.products / self.weight - top * bottom)
        # Ratios r with (top - r bottom)^2 <= Z^2 var(top - r bottom).
        a, b, c = bottom**2 - var_bottom, top * bottom - both, top**2 - var_top
        root = math.sqrt(max(b**2 - a * c, 0.0))
        low = max((b - root) / a, 0.0) if a and c > 0 else 0.0
        return low, (max((b + root) / a, 0.0) if a > 0 and bottom > 0 else math.inf)


def critical_batch(noise_scales: Sequence[float], batch_sizes: Sequence[float]) -> float:
    """Return the critical batch of a whole run: its noise scales, averaged over its progress.

    The noise scale grows while a training goes on. A step at batch B counts 1 / (1 + B_simple / B)
    as it goes so far towards the step without noise (McCandlish et al. 2018, eq. 2.7 and
    appendix D). Moments without a finite noise scale are left out; NaN where none remains.
    """
    top = bottom = 0.0
    for scale, batch in zip(noise_scales, batch_sizes, strict=True):
        if math.isfinite(scale):
            progress = 1 / (1 + scale / batch)
            top += scale * progress
            bottom += progress
    return top / bottom if bottom else math.nan
