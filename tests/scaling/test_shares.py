"""Probes: their run specs, step times and shares of a step; and detection of slow workers from the
time that each rank takes itself."""

import math

import numpy as np
import pytest
from made_up_probes import spec_of, times_of

from raybench.data.dataset import Dataset, Split
from raybench.models.find import load_workload_dataset
from raybench.scaling.measurements import Floats
from raybench.scaling.shares import (
    FEWEST_MEASURED,
    FEWEST_STEPS,
    INTERVALS,
    MOST_STEPS,
    PARTS,
    SYNTHETIC_BYTES,
    Estimate,
    Probe,
    Probes,
    Shares,
    SlowRank,
    probe_spec,
    rank_rows,
    slow_ranks,
    step_seconds,
    steps_for,
    synthetic_like,
)
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import find_backend
from raybench.training.run import run
from tests.factories import evaluation

MIXED = {"compute": 0.04, "overhead": 0.01, "exchange": 0.03, "reading": 0.02}


def values(shares: Shares) -> dict[str, float]:
    return {part: shares[part].value for part in PARTS}


@pytest.mark.parametrize("batch", [1, 3, 64, 100])
def test_sequential_parts_are_recovered_at_any_batch_size(batch):
    spec = spec_of(batch_size_per_worker=batch)
    shares = values(Shares.of(Probes.of(spec), times_of(spec, noise=0.0, **MIXED)))
    assert shares == pytest.approx(
        {"compute": 0.4, "overhead": 0.1, "communication": 0.3, "input": 0.2}
    )


def test_overlapping_parts_are_split_evenly():
    """Reading and exchange overlap, 0.05 s each, after 0.05 s of compute."""
    probes = Probes.of(spec_of())

    def seconds(probe: Probe) -> float:
        slowest = 0.05 if probe.exchanges or probe.reads else 0.0
        return slowest + 0.05 * probe.batch_size_per_worker / 64

    times = {probe: [seconds(probe)] * 3 for probe in probes.names}
    shares = values(Shares.of(probes, times))
    assert shares == pytest.approx(
        {"compute": 0.5, "overhead": 0.0, "communication": 0.25, "input": 0.25}
    )


def test_two_rounds_give_no_verdict():
    spec = spec_of()
    for number, is_sure in ((2, False), (3, True)):
        times = times_of(spec, rounds=number, noise=0.0, **MIXED)
        assert Shares.of(Probes.of(spec), times).is_sure is is_sure


def test_an_estimate_covers_the_truth_as_stated():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(500):
        estimate = Estimate.of(rng.normal(0.4, 0.1, 5))
        inside.append(estimate.low <= 0.4 <= estimate.high)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_equal_parts_are_rarely_ranked():
    """Two equal parts with 5 % noise: every certain verdict is wrong."""
    spec = spec_of()
    probes = Probes.of(spec)
    sure = [
        Shares.of(
            probes,
            times_of(spec, seed=seed, noise=0.05, compute=0.04, exchange=0.04, overhead=0.01),
        ).is_sure
        for seed in range(100)
    ]
    assert np.mean(sure) < 0.1


def dataset_of(number: int, shape: tuple[int, ...] = (4, 4, 1)) -> Dataset:
    split = Split(np.zeros((number, *shape), np.uint8), np.zeros(number, np.int64))
    return Dataset("made up", 3, train=split, validation=split, test=split)


def curve_of(seconds: list[float], samples: list[int]) -> list[Evaluation]:
    pairs = enumerate(zip(seconds, samples, strict=True))
    return [evaluation(trained, index=i, samples=count) for i, (trained, count) in pairs]


@pytest.mark.parametrize(
    ("ends_s", "step_s"),
    [
        ([9.0, 10.0, 11.0, 31.0], 0.01),  # without the first interval; a stall has no effect
        ([2.0, 4.0, 6.0, 8.0], 0.02),
    ],
)
def test_a_step_is_the_median_of_the_means_of_intervals(ends_s, step_s):
    assert step_seconds(curve_of(ends_s, [100, 200, 300, 400]), 1) == pytest.approx(step_s)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.01, 50), (10.0, FEWEST_STEPS), (1e-6, MOST_STEPS)]
)
def test_the_number_of_steps_follows_their_duration(step_s, steps):
    assert steps_for(0.5, step_s) == steps


@pytest.mark.parametrize(("rows", "steps"), [(1, 33), (64, 2), (100_000, 33)])
def test_a_probe_has_only_whole_steps_for_any_dataset_size(rows, steps):
    spec, dataset = spec_of(accumulate=2), dataset_of(rows)
    for probe in Probes.of(spec).names:
        probed = probe_spec(spec, probe, dataset, steps=steps)
        num_samples = rows if probe.reads else probed.dataset.num_samples
        epoch = num_samples * probed.dataset.repeat
        samples = math.ceil(probed.epochs * epoch)
        assert probed.eval_every_samples == steps * probed.global_batch_size
        assert samples == INTERVALS * probed.eval_every_samples
        assert epoch >= samples + probed.global_batch_size, "no partial step at the end of an epoch"
        assert RunSpec.model_validate(probed.document()) == probed


def test_synthetic_data_have_the_shape_and_a_limited_size():
    large = dataset_of(2000, (600, 600, 3))
    synthetic = synthetic_like(large, 10**9)
    assert synthetic.shape == [600, 600, 3]
    assert synthetic.num_classes == 3
    assert synthetic.num_samples * 600 * 600 * 3 <= SYNTHETIC_BYTES
    assert synthetic_like(dataset_of(50), 10**9).num_samples == 50
    assert synthetic_like(dataset_of(50, (8,)), 50).shape == [8]


def test_a_probe_trains_the_requested_intervals():
    """Runs the training loop of workers on digits and on synthetic data of the same shape."""
    pytest.importorskip("torch")
    data = DatasetSpec(name="digits", validation_size=32)
    spec = RunSpec(framework="torch", dataset=data, batch_size_per_worker=16)
    backend = find_backend("torch")
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    _, digits = load_workload_dataset(spec.workload, spec.dataset)
    for probe in Probes.of(spec).names:
        probed = probe_spec(spec, probe, digits, steps=3, intervals=2)
        workload, dataset = load_workload_dataset(probed.workload, probed.dataset)
        trainer = backend.Trainer(probed, workload, dataset, world)
        curve = list(run(probed, dataset, trainer, world, Ledger("setup")))
        trainer.close()
        assert [point.samples for point in curve] == [
            3 * probed.global_batch_size * n for n in (1, 2)
        ]
        assert step_seconds(curve, probed.global_batch_size) > 0


WHERE = [f"host {rank // 2}, cuda:{rank % 2}" for rank in range(4)]


def measured(times: list[float], *, rows: int = 12, noise: float = 0.03, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    drift = rng.uniform(1.0, 2.0, size=(rows, 1))  # common to all workers of the machine
    return np.asarray(times) * drift * np.exp(noise * rng.standard_normal((rows, len(times))))


def slow(alone: Floats, reading: Floats) -> list[SlowRank]:
    rows = {"compute": list(alone), "cores": list(alone), "input": list(reading)}
    return slow_ranks(rows, WHERE * 2)


CHANGING = np.ones((12, 4))
CHANGING[np.arange(12), np.arange(12) % 4] = 1.5
TOO_FEW = np.array([]), measured([1, 2], rows=FEWEST_MEASURED - 1), np.ones((9, 1))


@pytest.mark.parametrize(
    ("alone", "reading", "found"),
    [
        (measured([1, 1, 1, 1.4]), measured([2, 2, 2, 2.5]), [(3, "compute")]),
        (measured([1.4, 1.0]), measured([1.4, 1.0]), [(0, "compute")]),
        (measured([1, 1.4, 1, 1]), measured([1, 1.4, 1.4, 1]), [(1, "compute"), (2, "input")]),
        *((even, even, []) for even in (measured([1.0] * 4, noise=0.05, seed=i) for i in range(9))),
        (CHANGING, CHANGING, []),
        *((few, few, []) for few in TOO_FEW),
    ],
)
def test_persistently_slow_workers_are_named(alone, reading, found):
    slow_workers = slow(alone, reading)
    assert [(rank.rank, rank.kind) for rank in slow_workers] == found
    for rank in slow_workers:
        assert rank.times == pytest.approx(1.4, rel=0.05)
        for name in (f"Worker {rank.rank}", (WHERE * 2)[rank.rank], f"{rank.times:.2g}"):
            assert name in rank.sentence


def exchanging(
    compute: list[float], stolen: list[float], input_wait: list[float]
) -> list[Evaluation]:
    """Return the curve of ranks that exchange gradients and wait for the slowest: their own parts
    per interval, and 0.1 s of exchange."""
    rng = np.random.default_rng(0)
    curve, train_s = [evaluation(5.0)], 5.0
    for index in range(1, FEWEST_MEASURED + 1):
        parts = np.array([compute, stolen, input_wait]) * np.exp(0.02 * rng.standard_normal((3, 4)))
        train_s += float(parts.sum(axis=0).max()) + 0.1
        rows = tuple(map(tuple, parts.T.tolist()))
        curve.append(evaluation(train_s, index=index, rank_parts=rows))
    return curve


NONE, EVEN = [0.0] * 4, [1.0] * 4


@pytest.mark.parametrize(
    ("curve", "gpus", "kind"),
    [
        (exchanging([1, 1, 1.5, 1], NONE, NONE), 0, "compute"),
        (exchanging(EVEN, [0, 0, 0.5, 0], NONE), 0, "cores"),
        (exchanging(EVEN, NONE, [0.1, 0.1, 0.6, 0.1]), 0, "input"),
        # The CPU of a GPU worker waits busily, so its compute time is not informative.
        (exchanging(EVEN, [0, 0, 0.5, 0], NONE), 1, "cores"),
        (exchanging([1, 1, 1.5, 1], NONE, NONE), 1, None),
        (exchanging(EVEN, NONE, [0.1] * 4), 0, None),
    ],
)
def test_the_slow_rank_of_exchanging_workers_is_found_by_its_own_parts(curve, gpus, kind):
    slow_workers = slow_ranks(rank_rows(curve, RunSpec(gpus_per_worker=gpus)), WHERE)
    assert [(rank.rank, rank.kind) for rank in slow_workers] == ([(2, kind)] if kind else [])
    for rank in slow_workers:
        assert rank.times == pytest.approx(1.45, abs=0.1)


def test_a_cpu_quota_does_not_hide_a_slow_worker():
    """Rank 1 sleeps; the seconds taken by the quota are equal on all ranks."""
    part = {"rank_s": (0.5, 2.0), "rank_parts": ((0.5, 0.7, 0.0), (0.5, 0.7, 0.0))}
    curve = [evaluation(2.0 * n, index=n, **part) for n in range(FEWEST_MEASURED + 1)]
    (rank,) = slow_ranks(rank_rows(curve, RunSpec()), WHERE)
    assert (rank.rank, rank.kind) == (1, "compute")
