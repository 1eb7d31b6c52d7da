"""Detection of slow workers from the time that each rank takes itself."""

import numpy as np
import pytest

from raybench.scaling.measurements import Floats
from raybench.scaling.shares import (
    FEWEST_MEASURED,
    RankRows,
    SlowRank,
    rank_rows,
    slow_ranks,
)
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from tests.search.made_up import evaluation

WHERE = [f"host {rank // 2}, cuda:{rank % 2}" for rank in range(4)]


def measured(times: list[float], *, rows: int = 12, noise: float = 0.03, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    drift = rng.uniform(1.0, 2.0, size=(rows, 1))  # common to all workers of the machine
    return np.asarray(times) * drift * np.exp(noise * rng.standard_normal((rows, len(times))))


def slow(alone: Floats, reading: Floats) -> list[SlowRank]:
    rows: RankRows = {"compute": list(alone), "cores": list(alone), "input": list(reading)}
    return slow_ranks(rows, WHERE * 2)


def test_a_persistently_slow_worker_is_named() -> None:
    (rank,) = slow(measured([1, 1, 1, 1.4]), measured([2, 2, 2, 2.5]))
    assert (rank.rank, rank.where, rank.kind) == (3, "host 1, cuda:1", "compute")
    assert rank.times == pytest.approx(1.4, rel=0.05)
    for name in ("Worker 3", "host 1, cuda:1", "1.4"):
        assert name in rank.sentence
    (first_of_two,) = slow(measured([1.8, 1.0]), measured([1.8, 1.0]))
    assert (first_of_two.rank, first_of_two.times) == (0, pytest.approx(1.8, rel=0.05))


def test_slow_input_is_distinguished_from_slow_compute() -> None:
    slow_workers = slow(measured([1, 1.3, 1, 1]), measured([1, 1.3, 1.6, 1]))
    assert [(rank.rank, rank.kind) for rank in slow_workers] == [(1, "compute"), (2, "input")]


def test_equally_fast_workers_are_not_named() -> None:
    for seed in range(10):
        even = measured([1.0] * 4, noise=0.05, seed=seed)
        assert slow(even, even) == []


def test_a_slow_worker_that_changes_is_not_named() -> None:
    seconds = np.ones((12, 4))
    seconds[np.arange(12), np.arange(12) % 4] = 1.5
    assert slow(seconds, seconds) == []


@pytest.mark.parametrize(
    "times", [np.array([]), measured([1, 2], rows=FEWEST_MEASURED - 1), np.ones((9, 1))]
)
def test_few_measurements_name_no_worker(times: Floats) -> None:
    assert slow(times, times) == []


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
def test_the_slow_rank_of_exchanging_workers_is_found_by_its_own_parts(
    curve: list[Evaluation], gpus: int, kind: str | None
) -> None:
    slow_workers = slow_ranks(rank_rows(curve, RunSpec(gpus_per_worker=gpus)), WHERE)
    assert [(rank.rank, rank.kind) for rank in slow_workers] == ([(2, kind)] if kind else [])
    for rank in slow_workers:
        assert rank.times == pytest.approx(1.45, abs=0.1)


def test_a_cpu_quota_does_not_hide_a_slow_worker() -> None:
    """Rank 1 sleeps; the seconds taken by the quota are equal on all ranks."""
    part = {"rank_s": (0.5, 2.0), "rank_parts": ((0.5, 0.7, 0.0), (0.5, 0.7, 0.0))}
    curve = [evaluation(2.0 * n, index=n, **part) for n in range(FEWEST_MEASURED + 1)]
    (rank,) = slow_ranks(rank_rows(curve, RunSpec()), WHERE)
    assert (rank.rank, rank.kind) == (1, "compute")
