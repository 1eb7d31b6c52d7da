"""Shares of compute, communication, input and overhead in the time of a step, and slow workers.

The time of a part of a step is the time that is saved if the part is left out. It is measured by
probes: short runs without gradient exchange, without reading data, or without both. This module
determines which run specs to train as probes, and in which order.

Slow workers are found by comparing the time that each worker spends on its own work. The step times
cannot be compared, since they are the same on all ranks: all workers wait for the slowest in the
gradient exchange.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from raybench.data.dataset import Dataset
from raybench.scaling.measurements import Floats
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.record import Evaluation

ENDLESS_S = 1e6
"""Limit on the training seconds of a probe. It is never reached, because the number of steps ends
the probe."""
INTERVALS = 4
"""Number of intervals between evaluations of a probe; the median over all but the first counts."""
PILOT_INTERVALS, PILOT_STEPS = 2, 2
"""Number of intervals of the pilot run, and of steps in each. The pilot run warms up the workers,
and its step time determines the number of steps of the probes."""
FEWEST_STEPS, MOST_STEPS = 4, 5000
"""Minimum and maximum number of steps of an interval."""
SYNTHETIC_BYTES = 256 * 2**20
"""Maximum bytes of synthetic training samples."""
VALIDATION_SAMPLES = 256
"""Number of synthetic validation samples; the accuracy of a probe does not matter."""
BATCH_RATIO = 4
"""Factor between the batch size of the run spec and the second batch size that probes measure. The
second one is smaller if possible, otherwise larger."""


@dataclass(frozen=True, order=True)
class Probe:
    """A variant of a run spec that is trained for a few steps to measure the step time."""

    exchanges: bool
    """True to exchange gradients after every step, False to exchange none."""
    reads: bool
    """True to read samples of the dataset, False for synthetic samples in memory."""
    batch_size_per_worker: int


@dataclass(frozen=True)
class Probes:
    """All probes (short runs of variants) of a run spec; several fields may be the same probe."""

    as_it_is: Probe
    no_exchange: Probe
    in_memory: Probe
    alone: Probe
    """Probe with data in memory and without gradient exchange, like a step of a single worker."""
    other_batch: Probe
    """Probe like `alone`, but with another batch size. The step times at the two batch sizes
    determine the part that does not depend on the number of samples."""
    other_exchange: Probe
    """Probe like `other_batch`, but with gradient exchange. It shows how much of the exchange
    overlaps with compute."""

    @classmethod
    def of(cls, spec: RunSpec) -> "Probes":
        """Return the probes of a run spec; with a single worker, no probe exchanges gradients."""
        batch, reads = spec.batch_size_per_worker, spec.dataset.name != "synthetic"
        exchanges = spec.num_workers > 1
        other = batch // BATCH_RATIO if batch >= BATCH_RATIO else batch * BATCH_RATIO
        return cls(
            as_it_is=Probe(exchanges, reads, batch),
            no_exchange=Probe(False, reads, batch),
            in_memory=Probe(exchanges, False, batch),
            alone=Probe(False, False, batch),
            other_batch=Probe(False, False, other),
            other_exchange=Probe(exchanges, False, other),
        )

    @property
    def names(self) -> dict[Probe, str]:
        """Distinct probes, each with the name of the first field that contains it."""
        names: dict[Probe, str] = {}
        for name, probe in vars(self).items():
            names.setdefault(probe, name)
        return names


def probe_spec(
    spec: RunSpec, probe: Probe, dataset: Dataset, *, steps: int, intervals: int = INTERVALS
) -> RunSpec:
    """Return the run spec of a probe.

    Args:
        spec: The run spec to diagnose.
        probe: The variant.
        dataset: Dataset of `spec`.
        steps: Optimizer steps between two evaluations. All steps have whole batches, because the
            dataset is repeated until an epoch is longer than the probe.
        intervals: Number of intervals between evaluations.
    """
    batch = probe.batch_size_per_worker
    global_batch = batch * spec.num_workers * spec.accumulate
    samples = intervals * steps * global_batch
    data, rows = spec.dataset, len(dataset.train)
    if not probe.reads:
        data = synthetic_like(dataset, samples)
        rows = data.num_samples
    num_rows = rows * data.repeat
    longer = data.repeat * math.ceil((samples + global_batch) / num_rows)
    return spec.model_copy(
        update={
            "dataset": data.model_copy(update={"repeat": longer}),
            "objective": Objective(
                kind="best_at_budget",
                metric=spec.objective.metric,
                direction=spec.objective.direction,
                max_train_seconds=ENDLESS_S,
            ),
            "augment": spec.augment if probe.reads else [],
            "exchange_gradients": probe.exchanges or spec.num_workers == 1,
            "batch_size_per_worker": batch,
            "eval_every_samples": steps * global_batch,
            # Half a sample less, so that rounding never adds a step.
            "epochs": (samples - 0.5) / (num_rows / data.repeat * longer),
            "checkpoint_every_s": 0.0,
        }
    )


def synthetic_like(dataset: Dataset, samples: int) -> DatasetSpec:
    """Return the spec of synthetic data with the same shape as a dataset.

    Args:
        samples: Requested number of training samples. The result has no more than the dataset, and
            no more than fit into SYNTHETIC_BYTES of memory.
    """
    assert not isinstance(dataset.input_shape, dict)
    fitting = max(1, SYNTHETIC_BYTES // math.prod(dataset.input_shape))
    return DatasetSpec(
        name="synthetic",
        task=dataset.task,
        shape=list(dataset.input_shape),
        num_classes=dataset.num_outputs,
        num_samples=min(samples, len(dataset.train), fitting),
        validation_size=min(len(dataset.validation), VALIDATION_SAMPLES),
    )


def steps_for(seconds: float, step_s: float) -> int:
    """Return how many steps of `step_s` seconds take about `seconds`; the result is between
    FEWEST_STEPS and MOST_STEPS."""
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(seconds / step_s)))


def step_seconds(curve: Sequence[Evaluation], global_batch_size: int) -> float:
    """Return the seconds of a step of a probe: the median over the intervals after the first
    evaluation.

    Each interval contributes its mean step time, not its median, because data that arrive very late
    at every tenth step slow training as much as data that always arrive a little late.

    Args:
        curve: Evaluations of the probe.
        global_batch_size: Samples of a step.
    """
    rates = [
        (later.train_s - earlier.train_s) / (later.samples - earlier.samples)
        for earlier, later in pairwise(curve)
    ]
    return float(np.median(rates)) * global_batch_size


def rounds(probes: Probes, *, seed: int) -> Iterator[list[Probe]]:
    """Endlessly yield rounds, each a random order of the distinct probes.

    The order is random so that a slow change of the machine's speed affects all probes equally.
    """
    rng = np.random.default_rng(seed)
    distinct = list(probes.names)
    while True:
        yield [distinct[i] for i in rng.permutation(len(distinct))]


StepPart = Literal["compute", "communication", "input", "overhead"]
PARTS: tuple[StepPart, ...] = ("compute", "communication", "input", "overhead")
CONFIDENCE = 0.95
"""Confidence level of two-sided intervals (Student's t)."""
FEWEST_ROUNDS = 3
"""Minimum number of rounds to judge which part of a step is the largest."""


@dataclass(frozen=True)
class Estimate:
    """A median over rounds and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """The value as text such as `62 %`, clipped to 0 to 100 %."""
        return f"{100 * min(max(self.value, 0.0), 1.0):.0f} %"

    @property
    def percents(self) -> str:
        """The interval as text such as `58 to 66 %`, clipped to 0 to 100 %."""
        low, high = (100 * min(max(end, 0.0), 1.0) for end in (self.low, self.high))
        return f"{low:.0f} to {high:.0f} %"

    @classmethod
    def of(cls, values: Floats) -> "Estimate":
        """Estimate the median from one value per round; a single round gives an infinite
        interval."""
        middle, number = float(np.median(values)), len(values)
        if number < 2:
            return cls(middle, -math.inf, math.inf)
        factor = float(stdtrit(number - 1, (1 + CONFIDENCE) / 2))
        half = factor * float(np.std(values, ddof=1)) / math.sqrt(number)
        return cls(middle, middle - half, middle + half)


@dataclass(frozen=True)
class Shares:
    """Share of each part of a step in the step time, one value per round; the shares of a round sum
    to 1."""

    rounds: dict[StepPart, Floats]

    @classmethod
    def of(cls, probes: Probes, times: Mapping[Probe, Sequence[float]]) -> "Shares":
        """Compute the shares from the step times of the probes.

        | part | time |
        |---|---|
        | communication | time saved by not exchanging gradients |
        | input | time saved by synthetic data in memory |
        | overhead | time without exchange and input, extrapolated to a batch of 0 samples |
        | compute | remaining time: forward and backward |

        Probes are compared within a round, so that a slow phase of the machine cancels out.
        Exchange and input may overlap. The share of each is therefore the mean of two savings: with
        and without the other part (Shapley 1953). Noise may make a share negative in a round; it is
        not clipped, because clipping would bias the mean.

        Args:
            times: Seconds of a step by probe, one value per round.
        """
        number = min(map(len, times.values()))
        at = {
            name: np.array(times[probe][:number], dtype=float)
            for name, probe in vars(probes).items()
        }
        whole, alone = at["as_it_is"], at["alone"]
        # Overhead: a line through the times at two batch sizes, extrapolated to batch size 0.
        batch = probes.alone.batch_size_per_worker
        other = probes.other_batch.batch_size_per_worker
        fixed = alone - (alone - at["other_batch"]) / (batch - other) * batch
        exchange = whole - at["no_exchange"] + at["in_memory"] - alone
        reading = whole - at["in_memory"] + at["no_exchange"] - alone
        return cls(
            {
                "compute": (alone - fixed) / whole,
                "communication": exchange / 2 / whole,
                "input": reading / 2 / whole,
                "overhead": fixed / whole,
            }
        )

    def __getitem__(self, part: StepPart) -> Estimate:
        return Estimate.of(self.rounds[part])

    @property
    def order(self) -> list[StepPart]:
        """Parts of a step, largest share first."""
        return sorted(PARTS, key=lambda part: -self[part].value)

    @property
    def is_sure(self) -> bool:
        """Whether the largest part is significantly larger than each other part: the intervals of
        all differences lie above 0."""
        largest, *others = self.order
        if len(self.rounds[largest]) < FEWEST_ROUNDS:
            return False
        return all(
            Estimate.of(self.rounds[largest] - self.rounds[other]).low > 0 for other in others
        )


SLOW_FACTOR = 1.1
"""A worker is slow in a measurement if it takes at least this multiple of the median over ranks."""
SLOW_FRACTION = 0.75
"""Minimum fraction of the measurements in which a worker must be slow to be reported."""
FEWEST_MEASURED = 6
"""Minimum number of measurements to judge whether a worker is slow."""


SlowKind = Literal["compute", "cores", "input"]
SLOW_WORDS: dict[SlowKind, str] = {
    "compute": "its steps are slow: look for a throttled or shared device, or exclude the host",
    "cores": "other processes use its cores: end them, or raise the quota",
    "input": "its data arrive late: check how the host reads them",
}


@dataclass(frozen=True)
class SlowRank:
    """A slow worker, for which all others wait."""

    rank: int
    where: str
    """Host and device."""
    times: float
    """Seconds of the worker, divided by those of the median rank; median over the measurements."""
    kind: SlowKind
    """Why the worker is slow. `compute`: its computation is slow; `cores`: other processes use its
    cores; `input`: its samples are read slowly."""

    @property
    def sentence(self) -> str:
        """Sentence about how slow the worker is, and what to do about it."""
        return (
            f"Worker {self.rank} ({self.where}) takes {self.times:.2g} times as long as the others "
            f"for the same work, and every step waits for it; {SLOW_WORDS[self.kind]}."
        )


RankRows = dict[SlowKind, list[Floats]]
"""Seconds of work by measurement (row) and rank (column), in three cumulative versions. `compute`:
the rank's own computation; `cores`: in addition, the time when other processes used the rank's
cores; `input`: in addition, the time waiting for data."""


def rank_rows(curve: Sequence[Evaluation], spec: RunSpec) -> RankRows:
    """Return the seconds that each rank spent on its own work, for each interval after the first
    evaluation.

    A rank's own work is its CPU time, the time lost to other processes, and waiting for data. The
    rest of its time is spent waiting for the slowest rank in the gradient exchange.

    Args:
        curve: Evaluations of the run.
        spec: Run spec of the run.
    """
    # With a GPU, CPU time is not counted, since the CPU only waits actively for the GPU.
    cores = math.inf if spec.gpus_per_worker else spec.cpus_per_worker
    rows: RankRows = {"compute": [], "cores": [], "input": []}
    for earlier, later in pairwise(curve):
        if later.rank_parts is None:
            continue
        used, taken, waited = np.array(later.rank_parts, dtype=float).T
        work_s = used / cores + taken + waited
        work_s += max(later.train_s - earlier.train_s - work_s.max(), 0.0)
        if later.rank_s is not None:
            work_s = np.array(later.rank_s)
        # A rank loses no time if other processes use its cores while it waits for other ranks.
        min_s = np.maximum(used / cores, max(work_s.min() / 10, 1e-9))
        rows["compute"].append(np.maximum(work_s - taken - waited, min_s))
        rows["cores"].append(np.maximum(work_s - waited, min_s))
        rows["input"].append(work_s)
    return rows


def slow_ranks(measured: RankRows, where: Sequence[str]) -> list[SlowRank]:
    """Return the workers that are consistently slower than the others.

    Args:
        measured: Seconds of work by measurement and rank. The reason why a worker is slow is the
            first of the three versions in `RankRows` in which it is slow.
        where: Host and device of each rank.
    """
    slow: dict[int, SlowRank] = {}
    whole = dict(_slow(np.array(measured["input"])))
    for kind, rows in measured.items():
        for rank, times in _slow(np.array(rows)):
            # A rank that is not slow in total keeps no other rank waiting.
            if rank in whole or not measured["input"]:
                slow.setdefault(rank, SlowRank(rank, where[rank], times, kind))
    return [slow[rank] for rank in sorted(slow)]


def _slow(seconds: Floats) -> list[tuple[int, float]]:
    """Return the ranks that are slow in most measurements.

    Args:
        seconds: Seconds by measurement and rank, shape [measurements, ranks].

    Returns:
        Pairs (rank, times), where `times` is the median over measurements of the rank's seconds,
        divided by the (lower) median over ranks.
    """
    if len(seconds) < FEWEST_MEASURED or seconds.shape[1] < 2:
        return []
    middle = np.sort(seconds, axis=1)[:, (seconds.shape[1] - 1) // 2]
    times = seconds / middle[:, None]
    often = (times >= SLOW_FACTOR).mean(axis=0) >= SLOW_FRACTION
    return [(int(rank), float(np.median(times[:, rank]))) for rank in np.flatnonzero(often)]
