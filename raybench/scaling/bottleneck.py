"""Bottleneck of training: the part of a step that limits its speed, and the predicted gains of
changes to the run spec.

Probes are short runs of variants of a run spec (`shares`). The throughput model is fitted to them
and predicts the duration of steps that do not wait for samples. The time to read the samples is
then taken into account: it is added to the step if nothing is prefetched, and otherwise overlaps
with the step as in the throughput model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Cell, Floats, Layout, Observed
from raybench.scaling.shares import Estimate, Probe, Probes, Shares, StepPart
from raybench.scaling.throughput import FEED_OVERLAP, Law, parameters
from raybench.spec.run import RunSpec
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
    """Predicts the gains of changes to a run spec, from probes (short runs) of the run spec."""

    spec: RunSpec
    num_nodes: int
    model: ThroughputModel
    worked_s: float
    """Measured seconds of a step on synthetic data in memory, which never waits for samples."""
    feed_s: float
    """Measured seconds to prepare the samples of a step."""

    @classmethod
    def of(
        cls, spec: RunSpec, probes: Probes, times: Mapping[Probe, Sequence[float]], num_nodes: int
    ) -> "Outlook":
        """Fit the throughput model to probes.

        A probe without gradient exchange counts as a run of a single worker.

        Args:
            spec: The run spec.
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
        """Return an upper bound on the gain from faster data loading: no step waits for data."""
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
        size.

        Args:
            change: The change in words.
            cell: Worker count, node count and batch size after the change.
        """
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
    """Return the seconds of a step that overlaps with reading, by the p-norm of the throughput
    model.

    Args:
        worked_s: Seconds of the step without reading.
        feed_s: Seconds to read the samples of a step.
    """
    worked = np.asarray(worked_s, dtype=float)
    return np.asarray((worked**FEED_OVERLAP + feed_s**FEED_OVERLAP) ** (1 / FEED_OVERLAP))


NOT_SURE = "not sure"
LEAST_GAIN = 1.05
"""Minimum predicted speed-up of a change that is proposed."""
LEAST_KEPT = 0.95
"""Fewer workers are proposed if they keep at least this fraction of the samples/s."""
HEADS: dict[StepPart, str] = {
    "compute": "Compute-bound",
    "communication": "Communication-bound",
    "input": "Input-bound",
    "overhead": "Bound by the overhead of a small model or batch",
}


@dataclass(frozen=True)
class BottleneckVerdict:
    """What limits the speed of a run spec, and which changes to try."""

    kind: str
    """Part of a step that takes the most time, or `not sure`."""
    shares: dict[StepPart, Estimate]
    step: Estimate
    """Seconds of a step of the run spec."""
    gains: list[Gain]
    """Changes to try, largest gain first."""
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


def judge(
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
