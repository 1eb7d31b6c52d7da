"""Shares of a step's time: the probes of a training, and the shares from their times.

What a part of the step costs is what the step loses with it: probes are the same steps without the
exchange, without the data's way, without both. Pure: which run specs to train, in which order.

And which worker is slow, from what each does for itself: in an exchange all wait for the last one,
so that its seconds look alike on every rank.
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
"""On the training clock: a probe ends by its number of steps."""
INTERVALS = 4
"""Between evaluations of a probe; the first is left out, the others' median counts."""
PILOT_INTERVALS, PILOT_STEPS = 2, 2
"""Intervals and steps of the pilot run, which tells how many steps the probe itself takes, and
warms its workers."""
FEWEST_STEPS, MOST_STEPS = 4, 5000
"""Steps of an interval."""
SYNTHETIC_BYTES = 256 * 2**20
"""Most bytes of synthetic training samples; more of them say nothing new."""
FEW = 256
"""Synthetic samples to evaluate on: nobody asks how accurate a probe is."""
OTHER_BATCH = 4
"""Ratio of the other batch, which is smaller (or larger, where it would be too small)."""


@dataclass(frozen=True, order=True)
class Probe:
    """One way to train, told by what is different from the run spec."""

    exchanges: bool
    """Gradients are exchanged after every step; else never."""
    reads: bool
    """Samples of the run spec's dataset; else synthetic ones of the same shape, in memory."""
    batch_size_per_worker: int


@dataclass(frozen=True)
class Probes:
    """The probes of a run spec; some are the same where there is nothing to leave out."""

    as_it_is: Probe
    no_exchange: Probe
    in_memory: Probe
    alone: Probe
    """Probe in memory and without exchange: what a worker's own step takes."""
    other_batch: Probe
    """`alone`, with another batch: what does not depend on the number of samples."""
    other_exchange: Probe
    """`other_batch` with exchange: how much of that hides behind the samples; for predictions."""

    @classmethod
    def of(cls, spec: RunSpec) -> "Probes":
        """Return those of a run spec: one worker exchanges nothing, synthetic data are no data."""
        batch, reads = spec.batch_size_per_worker, spec.dataset.name != "synthetic"
        exchanges = spec.num_workers > 1
        other = batch // OTHER_BATCH if batch >= OTHER_BATCH else batch * OTHER_BATCH
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
        """The probes to train, each once, with its first name; in the order above."""
        found: dict[Probe, str] = {}
        for name, probe in vars(self).items():
            found.setdefault(probe, name)
        return found


def probe_spec(
    spec: RunSpec, probe: Probe, dataset: Dataset, *, steps: int, intervals: int = INTERVALS
) -> RunSpec:
    """Return the run spec of a probe: so many intervals of so many optimizer steps.

    `dataset` is that of `spec`. All steps are full ones: an epoch of the probe is longer than it.
    """
    batch = probe.batch_size_per_worker
    global_batch = batch * spec.num_workers * spec.accumulate
    samples = intervals * steps * global_batch
    data, rows = spec.dataset, len(dataset.train)
    if not probe.reads:
        data = synthetic_like(dataset, samples)
        rows = data.num_samples
    own = rows * data.repeat
    longer = data.repeat * math.ceil((samples + global_batch) / own)
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
            # Half a sample less: a rounded product never asks for one more step.
            "epochs": (samples - 0.5) / (own / data.repeat * longer),
            "checkpoint_every_s": 0.0,
        }
    )


def synthetic_like(dataset: Dataset, samples: int) -> DatasetSpec:
    """Return synthetic data of a dataset's shape, as many as it has or `samples`, if they fit."""
    assert not isinstance(dataset.input_shape, dict)
    fitting = max(1, SYNTHETIC_BYTES // math.prod(dataset.input_shape))
    return DatasetSpec(
        name="synthetic",
        task=dataset.task,
        shape=list(dataset.input_shape),
        num_classes=dataset.num_outputs,
        num_samples=min(samples, len(dataset.train), fitting),
        validation_size=min(len(dataset.validation), FEW),
    )


def steps_for(seconds: float, step_s: float) -> int:
    """Return how many steps take about so many seconds."""
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(seconds / step_s)))


def step_seconds(curve: Sequence[Evaluation], global_batch_size: int) -> float:
    """Return the seconds of a full step: the median over the intervals after the first.

    Of an interval the mean counts, not the median over its steps: data that come slowly every
    tenth step slow the training as much as those that are always late.
    """
    rates = [
        (later.train_s - earlier.train_s) / (later.samples - earlier.samples)
        for earlier, later in pairwise(curve)
    ]
    return float(np.median(rates)) * global_batch_size


def rounds(probes: Probes, *, seed: int) -> Iterator[list[Probe]]:
    """Yield orders without end, each probe once in each: what drifts meets all of them alike."""
    rng = np.random.default_rng(seed)
    distinct = list(probes.names)
    while True:
        yield [distinct[i] for i in rng.permutation(len(distinct))]


Part = Literal["compute", "communication", "input", "overhead"]
PARTS: tuple[Part, ...] = ("compute", "communication", "input", "overhead")
CONFIDENCE = 0.95
"""Confidence of intervals, two-sided; Student's, since rounds are few."""
FEWEST_ROUNDS = 3
"""Fewest rounds of which a spread can be told."""


@dataclass(frozen=True)
class Estimate:
    """A median over rounds, and the interval that it is in 19 times of 20."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """A share for people: `62 %`; noise below none is none."""
        return f"{100 * min(max(self.value, 0.0), 1.0):.0f} %"

    @property
    def percents(self) -> str:
        """A share's interval for people: `58 to 66 %`."""
        low, high = (100 * min(max(end, 0.0), 1.0) for end in (self.low, self.high))
        return f"{low:.0f} to {high:.0f} %"

    @classmethod
    def of(cls, values: Floats) -> "Estimate":
        """Return the estimate from a value for each round; infinitely wide of a single one."""
        middle, number = float(np.median(values)), len(values)
        if number < 2:
            return cls(middle, -math.inf, math.inf)
        factor = float(stdtrit(number - 1, (1 + CONFIDENCE) / 2))
        half = factor * float(np.std(values, ddof=1)) / math.sqrt(number)
        return cls(middle, middle - half, middle + half)


@dataclass(frozen=True)
class Shares:
    """Shares of the parts of a step, round by round; every round sums to one."""

    rounds: dict[Part, Floats]

    @classmethod
    def of(cls, probes: Probes, times: Mapping[Probe, Sequence[float]]) -> "Shares":
        """Return the shares from seconds of a step: one of each probe for each round.

        | part | is |
        |---|---|
        | communication | what the step loses without exchange of gradients |
        | input | what it loses with synthetic data in memory |
        | overhead | what is left of it without both, and without any sample |
        | compute | the rest: forward and backward, as long as there are samples |

        Rounds are compared within themselves: what slows the machine for a while slows all of a
        round. Exchange and input may each hide behind the other, or wait for each other: each gets
        the mean of what it costs beside the other and alone (Shapley 1953), so that nothing counts
        twice. Noise may make a part negative in a round; cut off, it would be no noise but a bias.
        """
        number = min(map(len, times.values()))
        at = {
            name: np.array(times[probe][:number], dtype=float)
            for name, probe in vars(probes).items()
        }
        whole, alone = at["as_it_is"], at["alone"]
        # What a step takes beside its samples: the line through two batches, at none.
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

    def __getitem__(self, part: Part) -> Estimate:
        return Estimate.of(self.rounds[part])

    @property
    def order(self) -> list[Part]:
        """The parts, largest first."""
        return sorted(PARTS, key=lambda part: -self[part].value)

    @property
    def is_sure(self) -> bool:
        """Whether the spread leaves no doubt which part is the largest.

        Each of the others is smaller in the whole interval of the difference, round by round.
        """
        largest, *others = self.order
        if len(self.rounds[largest]) < FEWEST_ROUNDS:
            return False
        return all(
            Estimate.of(self.rounds[largest] - self.rounds[other]).low > 0 for other in others
        )


SLOW = 1.1
"""Times the seconds of the others from which on a worker is called slow."""
OFTEN = 0.75
"""Share of the measurements in which it is."""
FEWEST_MEASURED = 6
"""Measurements, below which nothing is said."""


SlowKind = Literal["compute", "cores", "input"]
SLOW_WORDS: dict[SlowKind, str] = {
    "compute": "its steps are: look for a throttled or shared device there, or leave the host out",
    "cores": "others have its cores: end them, or lift the quota there",
    "input": "its steps alone are not: its data come slowly: look at how that host reads them",
}


@dataclass(frozen=True)
class SlowRank:
    """A worker that all others wait for."""

    rank: int
    where: str
    """Its host and device."""
    times: float
    """Its seconds for the same work over those of the others, the median of all measurements."""
    kind: SlowKind
    """`compute`: it computes slowly; `cores`: it would not if others left it its cores; `input`:
    only where it reads its samples."""

    @property
    def sentence(self) -> str:
        """Sentence on it."""
        return (
            f"Worker {self.rank} ({self.where}) takes {self.times:.2g} times as long as the others "
            f"for the same work, and every step waits for it; {SLOW_WORDS[self.kind]}."
        )


RankRows = dict[SlowKind, list[Floats]]
"""Seconds of each measurement (row) and rank (column), each kind with more than the one before:
computing, with what others took of the cores, and with waiting for data."""


def rank_rows(curve: Sequence[Evaluation], spec: RunSpec) -> RankRows:
    """Return what each rank did for itself in the intervals after the first.

    Ranks that exchange wait for one another: the last one does not, and others had done as much
    sooner as they used less of the processor, lost less of it to others and waited less for data.
    """
    cores = math.inf if spec.gpus_per_worker else spec.cpus_per_worker  # it waits busily for GPUs
    found: RankRows = {"compute": [], "cores": [], "input": []}
    for earlier, later in pairwise(curve):
        if later.rank_parts is None:
            continue
        used, taken, waited = np.array(later.rank_parts, dtype=float).T
        own = used / cores + taken + waited
        own += max(later.train_s - earlier.train_s - own.max(), 0.0)
        if later.rank_s is not None:
            own = np.array(later.rank_s)
        # What was taken while it waited for the others is no part of its own seconds.
        least = np.maximum(used / cores, max(own.min() / 10, 1e-9))
        found["compute"].append(np.maximum(own - taken - waited, least))
        found["cores"].append(np.maximum(own - waited, least))
        found["input"].append(own)
    return found


def slow_ranks(measured: RankRows, where: Sequence[str]) -> list[SlowRank]:
    """Return the workers that stay slower than the others, each with the first kind of seconds that
    tells; `where`: of each rank."""
    found: dict[int, SlowRank] = {}
    whole = dict(_slow(np.array(measured["input"])))
    for kind, rows in measured.items():
        for rank, times in _slow(np.array(rows)):
            if rank in whole or not measured["input"]:  # else nobody waits for it
                found.setdefault(rank, SlowRank(rank, where[rank], times, kind))
    return [found[rank] for rank in sorted(found)]


def slow_sentences(measured: RankRows, where: Sequence[str]) -> list[str]:
    """Return what is said of slow workers: of those that stay slow, or that it is another one each
    time; [] where all are about as fast."""
    if slow := slow_ranks(measured, where):
        return [one.sentence for one in slow]
    if (times := moves(np.array(measured["cores"]))) is None:
        return []
    return [
        f"The slowest worker takes {times:.2g} times as long as the others, another one each "
        "time, as where other processes use the cores."
    ]


def moves(alone: Floats) -> float | None:
    """Return how many times as long the slowest takes where that is another worker each time; None
    where one stays slow, or all are about as fast."""
    if len(alone) < FEWEST_MEASURED or _slow(alone):
        return None
    times = float(np.median(_beside_others(alone).max(axis=1)))
    return times if times >= SLOW else None


def _beside_others(seconds: Floats) -> Floats:
    """Return each rank's seconds over those of the one in the middle, the lower of two."""
    middle = np.sort(seconds, axis=1)[:, (seconds.shape[1] - 1) // 2]
    return np.asarray(seconds / middle[:, None])


def _slow(seconds: Floats) -> list[tuple[int, float]]:
    """Return the ranks that are slow in most measurements, and how many times."""
    if len(seconds) < FEWEST_MEASURED or seconds.shape[1] < 2:
        return []
    times = _beside_others(seconds)
    often = (times >= SLOW).mean(axis=0) >= OFTEN
    return [(int(rank), float(np.median(times[:, rank]))) for rank in np.flatnonzero(often)]
