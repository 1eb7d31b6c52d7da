"""Conclusions of `raybench diagnose` from probes (short runs of variants of a run spec): the
bottleneck of a training, or its fastest settings.

The bottleneck is the part of a step that limits its speed (`shares`). To predict the gains of
changes to the run spec, the throughput model is fitted to the probes; it predicts the duration of
steps that do not wait for samples. The time to read the samples is then taken into account: it is
added to the step if nothing is prefetched, and otherwise overlaps with the step as in the
throughput model.

The fastest settings are those that change the speed of training but not its learning curve. Each
such setting is an axis, and a variant is the run spec with another value of the setting. All
variants have the same global batch size, so they are compared by the seconds of a step. The axes
are measured one after another, each starting from the fastest variant so far; the number of probes
is therefore a sum over axes, not a product.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError
from scipy.special import stdtrit

from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Cell, Floats, Layout, Observed
from raybench.scaling.shares import FEWEST_ROUNDS, Estimate, Probe, Probes, Shares, StepPart
from raybench.scaling.throughput import FEED_OVERLAP, Law, parameters
from raybench.spec.run import (
    COMPILES,
    CUDA_GRAPHS,
    ResourceRequest,
    RunSpec,
    installed_frameworks,
)
from raybench.stats.step_times import bytes_exchanged

LARGER_FACTOR = 4
"""Factor by which a proposed change increases the batch size, or the number of passes between two
gradient exchanges."""
PREFETCH = 2
"""Number of prefetched batches in a proposed change. With augmentation, it is instead the factor by
which the number of threads increases."""


@dataclass(frozen=True)
class Gain:
    """A change to the run spec and its predicted speed-up."""

    change: str
    """The change as a key and value of a run spec, such as `accumulate: 4`."""
    times: float
    """Predicted samples/s with the change, divided by the samples/s without it."""
    low: float
    high: float
    """Bounds of the 90 % interval of `times`."""
    workers: float = 1.0
    """Factor by which the change multiplies the worker count."""
    is_limit: bool = False
    """Whether `times` is an upper bound."""

    @property
    def phrase(self) -> str:
        """Description such as `accumulate: 4 (about 2.1 times the samples/s, 1.8 to 2.4)`."""
        prefix = "at most " if self.is_limit else "about "
        workers = "" if self.workers == 1 else f" on {self.workers:g} times the workers"
        ends = f", {self.low:.2g} to {self.high:.2g}" if self.low < self.high else ""
        return f"{self.change} ({prefix}{self.times:.2g} times the samples/s{workers}{ends})"


@dataclass(frozen=True)
class Outlook:
    """Predictor of the gains of changes to a run spec, fitted to probes (short runs) of it."""

    spec: RunSpec
    num_nodes: int
    model: ThroughputModel
    worked_s: float
    """Measured seconds of a step that never waits for samples (synthetic data in memory)."""
    feed_s: float
    """Seconds to prepare the samples of a step, computed from the step times of the probes."""

    @classmethod
    def of(
        cls, spec: RunSpec, probes: Probes, times: Mapping[Probe, Sequence[float]], num_nodes: int
    ) -> "Outlook":
        """Fit the throughput model to probes.

        A probe without gradient exchange counts as a run of a single worker.

        Args:
            probes: Probes of the run spec.
            times: Seconds of a step by probe, one value per round.
            num_nodes: Number of nodes on which the workers ran.
        """
        rows = []
        for probe in (candidate for candidate in probes.names if not candidate.reads):
            workers, nodes = (spec.num_workers, num_nodes) if probe.exchanges else (1, 1)
            cell = Cell(workers, nodes, probe.batch_size_per_worker, spec.accumulate)
            rows += [(cell, seconds) for seconds in times[probe]]
        worked = float(np.median(times[probes.in_memory]))
        slower = max(float(np.median(times[probes.as_it_is])), worked)
        feed = slower - worked
        if is_ahead(spec):
            feed = (slower**FEED_OVERLAP - worked**FEED_OVERLAP) ** (1 / FEED_OVERLAP)
        return cls(spec, num_nodes, ThroughputModel.fit(Observed.of(rows)), worked, feed)

    @property
    def cell(self) -> Cell:
        """Worker count, node count and batch size of the run spec."""
        spec = self.spec
        return Cell(spec.num_workers, self.num_nodes, spec.batch_size_per_worker, spec.accumulate)

    def larger_batch(self) -> Gain:
        """Return the gain from a larger batch size, which may not fit into memory."""
        batch = LARGER_FACTOR * self.spec.batch_size_per_worker
        cell = replace(self.cell, batch_size_per_worker=batch)
        return self._gain_at(f"batch_size_per_worker: {batch}", cell)

    def fewer_exchanges(self) -> Gain:
        """Return the gain from exchanging gradients less often, which needs no more memory."""
        passes = LARGER_FACTOR * self.spec.accumulate
        return self._gain_at(f"accumulate: {passes}", replace(self.cell, accumulate=passes))

    def other_workers(self, num_workers: int) -> Gain:
        """Return the gain from another worker count with the same batch size per worker."""
        now = self.cell
        nodes = math.ceil(now.num_nodes * num_workers / now.num_workers)
        nodes = 1 if now.num_nodes == 1 else min(nodes, num_workers)
        cell = replace(now, num_workers=num_workers, num_nodes=nodes)
        return self._gain_at(f"num_workers: {num_workers}", cell)

    def compression(self) -> Gain:
        """Return an upper bound on the gain from exchanging gradients in half the bytes.

        The bound assumes that latencies are halved too.
        """
        fitted = self.model.law
        law, at = Law(fitted.scale, Layout.of([self.cell])), parameters(fitted.draws, fitted.priors)
        now = np.exp(law.worked(at))
        then = np.exp(law.worked(at, law.exchange(at) - math.log(2)))
        ratios = self._with_reading(now) / self._with_reading(then)
        low, middle, high = (float(np.quantile(ratios, q)) for q in (0.05, 0.5, 0.95))
        return Gain("gradient_compression: bf16", middle, low, high, is_limit=True)

    def prefetch(self) -> Gain:
        """Return an upper bound on the gain from prefetching, which overlaps reading with the step.

        With augmentation, samples are always prepared in advance; the change then doubles the
        number of threads.
        """
        number, feed = PREFETCH, self.feed_s
        if self.spec.augment:
            number, feed = PREFETCH * max(1, self.spec.prefetch), feed / PREFETCH
        return self._upper_bound(f"prefetch: {number}", float(_overlapped(self.worked_s, feed)))

    def quicker_data(self) -> Gain:
        """Return an upper bound on the gain from faster data loading, as if no step waited for
        data."""
        return self._upper_bound("data in memory", self.worked_s)

    def _with_reading(self, worked_s: ArrayLike, samples: float = 1.0) -> Floats:
        """Return the seconds of a step including the time to read its samples.

        Args:
            worked_s: Seconds of the step if its samples are in memory.
            samples: Number of samples of the step, relative to a step of the run spec.
        """
        feed = self.feed_s * samples
        return _overlapped(worked_s, feed) if is_ahead(self.spec) else np.asarray(worked_s) + feed

    def _upper_bound(self, change: str, seconds: float) -> Gain:
        """Return a gain that is an upper bound, for a change after which a step takes `seconds`."""
        times = float(self._with_reading(self.worked_s)) / seconds
        return Gain(change, times, times, times, is_limit=True)

    def _gain_at(self, change: str, cell: Cell) -> Gain:
        """Return the predicted gain from training with another worker count, node count or batch
        size."""
        now = self.cell
        (prediction,) = self.model.predict([cell])
        samples_per_worker = now.batch_size_per_worker * now.accumulate
        samples = cell.batch_size_per_worker * cell.accumulate / samples_per_worker
        rate = now.samples / float(self._with_reading(self.worked_s))
        times, low, high = (
            cell.samples / float(self._with_reading(seconds, samples)) / rate
            for seconds in (prediction.step_s, prediction.high_s, prediction.low_s)
        )
        workers = cell.num_workers / now.num_workers
        return Gain(change, times, low, high, workers=workers)


def is_ahead(spec: RunSpec) -> bool:
    """Return whether samples are prepared during earlier steps, as augmented samples always are."""
    return bool(spec.prefetch or spec.augment)


def _overlapped(worked_s: ArrayLike, feed_s: float) -> Floats:
    """Return the seconds of a step that overlaps with reading its samples, by the p-norm of the
    throughput model."""
    worked = np.asarray(worked_s, dtype=float)
    return np.asarray((worked**FEED_OVERLAP + feed_s**FEED_OVERLAP) ** (1 / FEED_OVERLAP))


NOT_SURE = "not sure"
LEAST_GAIN = 1.05
"""Minimum predicted speed-up of a change that is proposed."""
LEAST_KEPT = 0.95
"""Fewer workers are proposed only if they keep at least this fraction of the samples/s."""
HEADS: dict[StepPart, str] = {
    "compute": "Compute-bound",
    "communication": "Communication-bound",
    "input": "Input-bound",
    "overhead": "Bound by the overhead of a small model or batch",
}


@dataclass(frozen=True)
class BottleneckVerdict:
    """Verdict on what limits the speed of a run spec, and on which changes to try."""

    kind: str
    """Part of a step that takes the most time, or `not sure`."""
    shares: dict[StepPart, Estimate]
    step: Estimate
    """Seconds of a step of the run spec."""
    gains: list[Gain]
    """Changes to try, the most recommended one first."""
    num_bytes: int
    """Bytes that a worker exchanges in a step."""
    sentence: str

    def document(self) -> dict[str, object]:
        """Return the verdict as plain data, which is written to a file."""
        return {
            "verdict": self.kind,
            "sentence": self.sentence,
            "step_s": vars(self.step),
            "shares": {part: vars(share) for part, share in self.shares.items()},
            "bytes_exchanged_per_step": self.num_bytes,
            "gains": [vars(gain) for gain in self.gains],
        }


def find_bottleneck(
    spec: RunSpec,
    times: Mapping[Probe, Sequence[float]],
    *,
    num_nodes: int = 1,
    num_parameters: int = 0,
) -> BottleneckVerdict:
    """Determine what limits the speed of a run spec, and which changes to try.

    Args:
        spec: The run spec that was diagnosed.
        times: Seconds of a step by probe (short run of a variant), one value per round.
        num_nodes: Number of nodes on which the workers ran.
        num_parameters: Number of parameters of the model.
    """
    probes = Probes.of(spec)
    shares = Shares.of(probes, times)
    estimates = {part: shares[part] for part in shares.order}
    step = Estimate.of(np.array(times[probes.as_it_is], dtype=float))
    num_bytes = bytes_exchanged(spec, num_parameters)
    parts = [
        f"{part} {estimate.percent} ({estimate.percents})" for part, estimate in estimates.items()
    ]
    if not shares.is_sure:
        sentence = (
            f"Not sure: the spread of {len(times[probes.as_it_is])} rounds hides what bounds a "
            f"step of {milliseconds(step.value)}, {' and '.join(parts[:2])} are not "
            "distinguishable; use an idle machine, or increase --repeats."
        )
        return BottleneckVerdict(NOT_SURE, estimates, step, [], num_bytes, sentence)
    largest, *others = shares.order
    gains = _gains(largest, Outlook.of(spec, probes, times, num_nodes))
    hosts = f" on {num_nodes} hosts" if num_nodes > 1 else ""
    what = {
        "communication": f"the exchange of {num_bytes / 1e6:.3g} MB of gradients by "
        f"{spec.num_workers} workers{hosts}",
        "input": "waiting for data",
        "overhead": "independent of the number of samples: starting operations, updating weights",
        "compute": "forward and backward",
    }[largest]
    advice = "no change of the run spec is predicted to gain 5 % or more"
    if gains:
        advice = f"try {' or '.join(gain.phrase for gain in gains[:2])}"
    sentence = (
        f"{HEADS[largest]}: {estimates[largest].percent} ({estimates[largest].percents}) of a "
        f"step of {milliseconds(step.value)} is {what}; "
        f"{', '.join(f'{part} {estimates[part].percent}' for part in others)}; {advice}."
    )
    return BottleneckVerdict(str(largest), estimates, step, gains, num_bytes, sentence)


def milliseconds(seconds: float) -> str:
    """Return a duration in seconds as text in ms or s."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _gains(largest: StepPart, outlook: Outlook) -> list[Gain]:
    """Return the changes that are worth trying if `largest` is the largest part of a step."""
    spec, fewer = outlook.spec, list[Gain]()
    if largest == "input":
        tried = [outlook.quicker_data()]
        if spec.augment or spec.prefetch < PREFETCH:
            tried.append(outlook.prefetch())
    elif largest == "compute":
        tried = [outlook.other_workers(2 * spec.num_workers), outlook.larger_batch()]
    else:
        tried = [outlook.larger_batch()]
        if largest == "communication":
            tried.insert(0, outlook.fewer_exchanges())
            if spec.gradient_compression == "none":
                tried.append(outlook.compression())
        if spec.num_workers > 1:
            half = outlook.other_workers(spec.num_workers // 2)
            fewer = [half] if half.times >= LEAST_KEPT else []
    worth = sorted(
        (gain for gain in tried if gain.times >= LEAST_GAIN), key=lambda gain: -gain.times
    )
    # For input, prefetching comes first, since faster data loading is harder to achieve.
    return [*fewer, *(reversed(worth) if largest == "input" else worth)]


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
    """Function that returns whether a worker group fits on the cluster."""


def _frameworks(spec: RunSpec, leeway: Leeway) -> Changes | str:
    if not leeway.equal_frameworks:
        return "the network is not the same in both frameworks"
    # Values of `compile` are specific to a framework.
    return [
        {"framework": framework, "compile": "none"}
        for framework in installed_frameworks()
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
    """Function that returns the possible changes to a run spec, or the reason why there are
    none."""
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
"""A variant takes part in the next round if its step time is at most this multiple of that of the
fastest variant. The first value applies after the first round, the second after later rounds."""
CLEARLY_SLOWER = 1.5
"""The original run spec drops out without a significance test if, after two or more rounds, even
its fastest round is slower by this factor than the slowest round of the fastest variant."""
ERRORS = 0.05 / len(AXES)
"""Significance level per axis, so that the probability of any wrong choice is at most 5 % over all
axes."""


@dataclass(frozen=True)
class AxisProbes:
    """Results of the probes (short runs) of all variants along an axis."""

    original: str
    """Label of the original run spec."""
    step_s: dict[str, list[float]]
    """Seconds of a step in each round, keyed by variant. Variants that failed are missing."""
    compile_s: dict[str, list[float]]
    """Seconds of compilation (phase `compile`) of each probe, keyed by variant."""

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
        probes_by_axis: Results of the probes, keyed by axis.
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
