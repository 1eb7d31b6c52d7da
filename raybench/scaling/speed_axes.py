"""Find the fastest values of settings that change the speed of training but not its learning curve.

Each such setting is an axis, and a variant is the run spec with another value of the setting. The
variants are measured by probes: short runs that `runs.diagnose` trains. All variants have the same
global batch size, so they are compared by the seconds of a step. The axes are measured one after
another, each starting from the fastest variant so far; the number of probes is therefore a sum over
axes, not a product.
"""

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from scipy.special import stdtrit

from raybench.scaling.shares import FEWEST_ROUNDS, Estimate
from raybench.spec.run import COMPILES, CUDA_GRAPHS, FRAMEWORKS, ResourceRequest, RunSpec

PASSES, WORKERS = (1, 2, 4, 8, 16), tuple(2**power for power in range(11))
"""Values to try: the number of passes into which a step is split, and the worker count."""
BATCH_NORM = "batch normalization uses the samples of a pass, so the curve would change"
Changes = Iterable[dict[str, Any]]
"""Alternative changes to a run spec; each is a dict of keys and new values."""


@dataclass(frozen=True)
class Leeway:
    """Properties of a run that determine which of its settings may change."""

    equal_frameworks: bool
    """Whether the network is the same in every framework."""
    batch_statistics: bool
    """Whether a layer normalizes over the samples that one worker processes in one pass."""
    reads: bool
    """Whether samples are read on demand, or augmented."""
    fits: Callable[[ResourceRequest], bool]
    """Returns whether a worker group fits on the cluster."""


def _frameworks(spec: RunSpec, leeway: Leeway) -> Changes | str:
    if not leeway.equal_frameworks:
        return "the network is not the same in both frameworks"
    installed = [
        framework for framework in FRAMEWORKS if importlib.util.find_spec(framework) is not None
    ]
    # Values of `compile` are specific to a framework.
    return [
        {"framework": framework, "compile": "none"}
        for framework in installed
        if framework != spec.framework
    ]


def _workers(spec: RunSpec, leeway: Leeway) -> Changes | str:
    if leeway.batch_statistics:
        return BATCH_NORM
    if spec.learning_rate_scaling != "none":
        return "learning_rate_scaling makes the learning rate depend on the worker count"
    samples, accumulate = spec.global_batch_size, spec.accumulate
    return [
        {"num_workers": number, "batch_size_per_worker": samples // (number * accumulate)}
        for number in WORKERS
        if samples % (number * accumulate) == 0
    ]


def _micro_batches(spec: RunSpec, leeway: Leeway) -> Changes | str:
    if leeway.batch_statistics:
        return BATCH_NORM
    samples = spec.batch_size_per_worker * spec.accumulate
    return [
        {"batch_size_per_worker": samples // passes, "accumulate": passes}
        for passes in PASSES
        if samples % passes == 0
    ]


def _prefetched(spec: RunSpec, leeway: Leeway) -> Changes | str:
    if not leeway.reads:
        return "the data are in memory and not augmented"
    return [{"prefetch": number} for number in (0, 1, 2, 4, 8) if number <= spec.cpus_per_worker]


def _compiled(spec: RunSpec, leeway: Leeway) -> Changes | str:
    del leeway
    # Without a GPU there are no CUDA graphs: `reduce-overhead` is `default`.
    left_out = () if spec.gpus_per_worker else CUDA_GRAPHS[:1]
    modes = [mode for mode in COMPILES[spec.framework] if mode not in left_out]
    return [{"compile": mode} for mode in ("none", *modes)]


class SpeedAxis(NamedTuple):
    """A setting that affects only the speed: how to vary it, and how to label its values."""

    changes: Callable[[RunSpec, Leeway], Changes | str]
    """Returns the possible changes to a run spec, or the reason why there are none."""
    label: str
    """Format string for the label of a variant, with keys of its run spec in braces."""


AXES: dict[str, SpeedAxis] = {
    "framework": SpeedAxis(_frameworks, "{framework}"),
    "workers": SpeedAxis(_workers, "{num_workers}x{batch_size_per_worker}"),
    "micro-batch": SpeedAxis(_micro_batches, "{batch_size_per_worker}x{accumulate}"),
    "prefetch": SpeedAxis(_prefetched, "{prefetch}"),
    "compile": SpeedAxis(_compiled, "{compile}"),
}
"""Axes in the order in which they are measured. Compilation is last, since it is slow and must be
repeated for each batch size."""


def variants_of(axis: str, spec: RunSpec, leeway: Leeway) -> dict[str, RunSpec] | str:
    """Return the variants of a run spec along an axis (setting).

    Args:
        axis: Name of the axis, a key of AXES.
        spec: The run spec.
        leeway: Properties of the run that determine which settings may change.

    Returns:
        Run specs by label, with `spec` itself first. If there is no other variant, the reason as a
        string.
    """
    changes, label = AXES[axis]
    alternatives = changes(spec, leeway)
    if isinstance(alternatives, str):
        return alternatives
    variants = {label.format_map(spec.document()): spec}
    for change in alternatives:
        try:
            other = RunSpec.model_validate(spec.document() | change)
        except ValidationError:  # keys that exclude each other
            continue
        if leeway.fits(other.resources):
            variants.setdefault(label.format_map(other.document()), other)
    return variants if len(variants) > 1 else "there is no other"


NEXT_ROUND = (1.25, 1.1)
"""A variant takes part in the next round if its step time is at most this multiple of the fastest
variant's. The first value applies after the first round, the second after later rounds."""
CLEARLY_SLOWER = 1.5
"""The original run spec drops out without a significance test if, after two or more rounds, even
its fastest round is slower than the slowest round of the fastest variant by this factor."""
ERRORS = 0.05 / len(AXES)
"""Significance level per axis, so that the probability of any wrong choice is at most 5 % over all
axes."""


@dataclass(frozen=True)
class AxisProbes:
    """Results of the probes (short runs) of all variants along an axis."""

    original: str
    """Label of the original run spec."""
    step_s: dict[str, list[float]]
    """Seconds of a step in each round, by variant; variants that failed are missing."""
    compile_s: dict[str, list[float]]
    """Seconds before the first step of each probe, by variant."""

    @property
    def _last(self) -> list[str]:
        """Labels of the variants that took part in the last round."""
        num_rounds = max(map(len, self.step_s.values()))
        return [variant for variant, seconds in self.step_s.items() if len(seconds) == num_rounds]

    def next_round(self) -> list[str]:
        """Return the labels of the variants for the next round.

        These are all variants that may be the fastest, and the original unless it is clearly slower
        (CLEARLY_SLOWER).
        """
        last = self._last
        rounds = len(self.step_s[last[0]])
        if not rounds:
            return last
        middles = {variant: float(np.median(self.step_s[variant])) for variant in last}
        best = min(middles, key=lambda variant: middles[variant])
        near = NEXT_ROUND[min(rounds, len(NEXT_ROUND)) - 1] * middles[best]
        is_slow = min(self.step_s[self.original]) > CLEARLY_SLOWER * max(self.step_s[best])
        kept_variants = () if rounds > 1 and is_slow else (self.original,)
        return [variant for variant in last if middles[variant] <= near or variant in kept_variants]

    def gain(self, variant: str) -> Estimate:
        """Estimate the speed-up of a variant over the original, from the rounds in which both
        ran."""
        rounds = min(len(self.step_s[variant]), len(self.step_s[self.original]))
        original_s, variant_s = self.step_s[self.original][:rounds], self.step_s[variant][:rounds]
        logs = Estimate.of(np.log(np.divide(original_s, variant_s)))
        return Estimate(*(float(np.exp(log)) for log in (logs.value, logs.low, logs.high)))

    @property
    def chosen(self) -> str:
        """Label of the fastest variant, or of the original if no other is significantly faster."""
        last = self._last
        best = min(last, key=lambda variant: float(np.median(self.step_s[variant])))
        is_doubtful = self.original in self.next_round() and not self._is_faster(best)
        return self.original if is_doubtful else best

    def _is_faster(self, best: str) -> bool:
        """Return whether the fastest variant, `best`, is significantly faster than the original.

        The test is Student's t. The error variance is estimated from the residuals of all variants
        of the last round after removing variant and round means (two-way analysis of variance). The
        significance level is ERRORS divided by the number of other variants (Bonferroni).
        """
        logs = np.log([self.step_s[variant] for variant in self._last])
        number, rounds = logs.shape
        if number < 2 or rounds < FEWEST_ROUNDS or best == self.original:
            return False
        left = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
        freedom = (number - 1) * (rounds - 1)
        error = math.sqrt(2 * float((left**2).sum()) / freedom / rounds)
        means = dict(zip(self._last, logs.mean(axis=1).tolist(), strict=True))
        quantile = float(stdtrit(freedom, 1 - ERRORS / (len(self.step_s) - 1)))
        return bool(means[self.original] - means[best] > quantile * error)

    @property
    def compile_words(self) -> str:
        """Sentence about how long compilation takes, and how long a run must be for it to pay
        off."""
        first_s, *later = self.compile_s[self.chosen]
        more_s = first_s - float(np.median(self.compile_s[self.original]))
        pays_s = more_s / (1 - 1 / self.gain(self.chosen).value)
        note = f" and {min(later):.1f} s in later runs of the same workers" if later else ""
        return (
            f"Compiling takes {first_s:.1f} s{note}; it pays off once in a run that would train "
            f"for more than {pays_s:.0f} s without it."
        )

    def document(self) -> dict[str, Any]:
        """Return the results as plain data for `diagnosis.yaml`."""
        gains = {variant: list(vars(self.gain(variant)).values()) for variant in self.step_s}
        return {"chosen": self.chosen, "times": gains, **vars(self)}


def gains_sentence(probes_by_axis: Mapping[str, AxisProbes]) -> str:
    """Return sentences about the speed-up by each axis and by all axes together, and about when
    compilation pays off.

    Args:
        probes_by_axis: Results of the probes by axis.
    """
    better = {
        axis: probes for axis, probes in probes_by_axis.items() if probes.chosen != probes.original
    }
    if not better:
        return "No measured variant is significantly faster than the original."
    gains = {axis: probes.gain(probes.chosen).value for axis, probes in better.items()}
    text = ", ".join(
        f"x {gains[axis]:.2f} {axis} {probes.chosen}" for axis, probes in better.items()
    )
    if len(gains) > 1:
        text += f": together x {math.prod(gains.values()):.2f}"
    compiled = better.get("compile")
    is_compiled = compiled is not None and compiled.chosen != "none"
    return f"{text}. {compiled.compile_words}" if compiled and is_compiled else f"{text}."
