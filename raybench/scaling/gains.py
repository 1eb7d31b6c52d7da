"""What changes of a run spec would bring, by the throughput model fitted to its probes.

The model (`throughput`) gives the seconds of a step on the cells of the probes and on others; what
it costs to wait for samples is not in these, and is added: one after the other where nothing is
prepared ahead, else as the model lets reading hide behind the step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from raybench.core.spec import RunSpec
from raybench.scaling.cells import Cell, Floats, Layout
from raybench.scaling.fit import ThroughputModel
from raybench.scaling.observed import Observed
from raybench.scaling.probes import Probe, Probes
from raybench.scaling.throughput import FEED_OVERLAP, Law, Parameters

MORE = 4
"""How many times the batch, or the passes between two exchanges, is made."""
PREFETCH = 2
"""Batches that are prepared ahead, at least."""


@dataclass(frozen=True)
class Gain:
    """A change of the run spec, and how many times as many samples/s it would bring."""

    change: str
    """As it stands in a run spec: `exchange_every: 4`."""
    times: float
    low: float
    high: float
    """Nine of ten times it brings between these."""
    workers: float = 1.0
    """How many times as many workers it takes."""
    is_limit: bool = False
    """Whether it is the most that it can bring."""

    @property
    def words(self) -> str:
        """For a sentence: `exchange_every: 4 (2.1 times the samples/s, 1.8 to 2.4)`."""
        most = "at most " if self.is_limit else "about "
        workers = "" if self.workers == 1 else f" on {self.workers:g} times the workers"
        ends = f", {self.low:.2g} to {self.high:.2g}" if self.low < self.high else ""
        return f"{self.change} ({most}{self.times:.2g} times the samples/s{workers}{ends})"


@dataclass(frozen=True)
class Outlook:
    """The model of a run spec's probes, and what is measured of the spec itself."""

    spec: RunSpec
    num_nodes: int
    model: ThroughputModel
    worked_s: float
    """Seconds of a step in memory."""
    feed_s: float
    """Seconds of a step in which samples are made ready, whoever waits for them."""

    @classmethod
    def of(
        cls, spec: RunSpec, probes: Probes, times: Mapping[Probe, Sequence[float]], num_nodes: int
    ) -> "Outlook":
        """Fit the model: workers that exchange nothing are each alone."""
        rows = []
        for probe in (one for one in probes.names if not one.reads):
            workers, nodes = (spec.num_workers, num_nodes) if probe.exchanges else (1, 1)
            cell = Cell(workers, nodes, probe.batch_size_per_worker, spec.accumulate)
            rows += [(cell, seconds) for seconds in times[probe]]
        whole, worked = (
            float(np.median(times[one])) for one in (probes.as_it_is, probes.in_memory)
        )
        slower = max(whole, worked)
        feed = slower - worked
        if is_ahead(spec):
            feed = (slower**FEED_OVERLAP - worked**FEED_OVERLAP) ** (1 / FEED_OVERLAP)
        return cls(spec, num_nodes, ThroughputModel.fit(Observed.of(rows)), worked, feed)

    @property
    def cell(self) -> Cell:
        """Where the run spec trains."""
        spec = self.spec
        return Cell(spec.num_workers, self.num_nodes, spec.batch_size_per_worker, spec.accumulate)

    def larger_batch(self) -> Gain:
        """Return what a larger batch would bring, memory permitting."""
        batch = MORE * self.spec.batch_size_per_worker
        cell = Cell(self.cell.num_workers, self.cell.num_nodes, batch, self.spec.accumulate)
        return self._moved(f"batch_size_per_worker: {batch}", cell)

    def fewer_exchanges(self) -> Gain:
        """Return what an exchange after more passes would bring, for the same memory."""
        every = MORE * self.spec.accumulate
        cell = Cell(
            self.cell.num_workers, self.cell.num_nodes, self.cell.batch_size_per_worker, every
        )
        return self._moved(f"exchange_every: {every}", cell)

    def other_workers(self, num_workers: int) -> Gain:
        """Return what another number of workers would bring, each with the same batch."""
        now = self.cell
        nodes = max(1, math.ceil(now.num_nodes * num_workers / now.num_workers))
        nodes = 1 if now.num_nodes == 1 else min(nodes, num_workers)
        cell = Cell(num_workers, nodes, now.batch_size_per_worker, now.accumulate)
        return self._moved(f"num_workers: {num_workers}", cell)

    def compression(self) -> Gain:
        """Return what half the bytes would bring at most: latencies stay as they are."""
        law = Law(self.model.scale, Layout.of([self.cell]))
        at = Parameters.of(self.model.draws)
        compute, exchange = law.compute(at), law.exchange(at)
        earlier = (self.cell.accumulate - 1) * np.exp(compute)
        now, then = (
            earlier + np.exp(np.logaddexp(at.gamma * compute, at.gamma * sent) / at.gamma)
            for sent in (exchange, exchange - math.log(2))
        )
        ratios = self._whole(now) / self._whole(then)
        low, middle, high = (float(np.quantile(ratios, q)) for q in (0.05, 0.5, 0.95))
        return Gain("gradient_compression: bf16", middle, low, high, is_limit=True)

    @property
    def readers(self) -> int:
        """How many threads make samples ready as fast as the step takes them. Augmentation alone is
        divided among threads: samples on demand are read by one at a time."""
        if not self.spec.augment:
            return PREFETCH
        now = max(1, self.spec.prefetch)
        return max(PREFETCH, math.ceil(self.feed_s * now / self.worked_s))

    def prefetch(self) -> Gain:
        """Return what preparing batches ahead would bring at most: the step hides the reading."""
        share = max(1, self.spec.prefetch) / self.readers if self.spec.augment else 1.0
        seconds = float(_hidden(self.worked_s, self.feed_s * share))
        return self._to(f"prefetch: {self.readers}", seconds, is_limit=True)

    def quicker_data(self) -> Gain:
        """Return what data that never keep anybody waiting would bring."""
        return self._to("data in memory", self.worked_s, is_limit=True)

    def _whole(self, worked_s: ArrayLike, samples: float = 1.0) -> Floats:
        """Return the seconds of a step that takes `worked_s` in memory, for so many times the
        samples: reading waits for the step, or hides behind this very step where it may."""
        feed = self.feed_s * samples
        return _hidden(worked_s, feed) if is_ahead(self.spec) else np.asarray(worked_s) + feed

    def _to(self, change: str, seconds: float, *, is_limit: bool) -> Gain:
        times = float(self._whole(self.worked_s)) / seconds
        return Gain(change, times, times, times, is_limit=is_limit)

    def _moved(self, change: str, cell: Cell) -> Gain:
        """Return what training on another cell would bring."""
        now = self.cell
        (there,) = self.model.predict([cell])
        own = now.batch_size_per_worker * now.accumulate
        samples = cell.batch_size_per_worker * cell.accumulate / own
        rate = now.samples / float(self._whole(self.worked_s))
        times, low, high = (
            cell.samples / float(self._whole(seconds, samples)) / rate
            for seconds in (there.step_s, there.high_s, there.low_s)
        )
        workers = cell.num_workers / now.num_workers
        return Gain(change, times, low, high, workers=workers)


def is_ahead(spec: RunSpec) -> bool:
    """Whether samples are made ready while earlier ones are trained on: augmented ones always."""
    return bool(spec.prefetch or spec.augment)


def _hidden(worked_s: ArrayLike, feed_s: float) -> Floats:
    """Return the seconds of a step behind which reading hides, as the throughput model has it."""
    worked = np.asarray(worked_s, dtype=float)
    return np.asarray((worked**FEED_OVERLAP + feed_s**FEED_OVERLAP) ** (1 / FEED_OVERLAP))
