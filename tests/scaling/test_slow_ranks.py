"""Which worker all others wait for, by seconds that each took for itself."""

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
    drift = rng.uniform(1.0, 2.0, size=(rows, 1))  # of the machine, the same for all
    return np.asarray(times) * drift * np.exp(noise * rng.standard_normal((rows, len(times))))


def slow(alone: Floats, reading: Floats) -> list[SlowRank]:
    rows: RankRows = {"compute": list(alone), "cores": list(alone), "input": list(reading)}
    return slow_ranks(rows, WHERE * 2)


def test_one_that_stays_slow_is_named() -> None:
    (one,) = slow(measured([1, 1, 1, 1.4]), measured([2, 2, 2, 2.5]))
    assert (one.rank, one.where, one.kind) == (3, "host 1, cuda:1", "compute")
    assert one.times == pytest.approx(1.4, rel=0.05)
    for name in ("Worker 3", "host 1, cuda:1", "1.4"):
        assert name in one.sentence
    (of_two,) = slow(measured([1.8, 1.0]), measured([1.8, 1.0]))
    assert (of_two.rank, of_two.times) == (0, pytest.approx(1.8, rel=0.05))


def test_one_whose_data_come_slowly_is_told_from_one_that_computes_slowly() -> None:
    found = slow(measured([1, 1.3, 1, 1]), measured([1, 1.3, 1.6, 1]))
    assert [(one.rank, one.kind) for one in found] == [(1, "compute"), (2, "input")]


def test_of_workers_that_are_as_fast_none_is_named() -> None:
    for seed in range(10):
        even = measured([1.0] * 4, noise=0.05, seed=seed)
        assert slow(even, even) == []


def test_a_slow_one_that_changes_is_no_worker_s_fault() -> None:
    seconds = np.ones((12, 4))
    seconds[np.arange(12), np.arange(12) % 4] = 1.5
    assert slow(seconds, seconds) == []


@pytest.mark.parametrize(
    "few", [np.array([]), measured([1, 2], rows=FEWEST_MEASURED - 1), np.ones((9, 1))]
)
def test_of_few_measurements_nothing_is_said(few: Floats) -> None:
    assert slow(few, few) == []


def exchanging(worked: list[float], taken: list[float], waited: list[float]) -> list[Evaluation]:
    """A run of ranks that exchange gradients, so that all take as long as the last one: what each
    did in an interval, and a tenth of a second of exchange."""
    rng = np.random.default_rng(0)
    curve, train_s = [evaluation(5.0)], 5.0
    for index in range(1, FEWEST_MEASURED + 1):
        parts = np.array([worked, taken, waited]) * np.exp(0.02 * rng.standard_normal((3, 4)))
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
        # Of a GPU's worker the processor waits busily, whoever is late.
        (exchanging(EVEN, [0, 0, 0.5, 0], NONE), 1, "cores"),
        (exchanging([1, 1, 1.5, 1], NONE, NONE), 1, None),
        (exchanging(EVEN, NONE, [0.1] * 4), 0, None),
    ],
)
def test_of_ranks_that_exchange_the_slow_one_is_told_by_what_each_did(
    curve: list[Evaluation], gpus: int, kind: str | None
) -> None:
    found = slow_ranks(rank_rows(curve, RunSpec(gpus_per_worker=gpus)), WHERE)
    assert [(one.rank, one.kind) for one in found] == ([(2, kind)] if kind else [])
    for one in found:
        assert one.times == pytest.approx(1.45, abs=0.1)


def test_what_a_quota_takes_while_others_are_waited_for_hides_no_slow_worker() -> None:
    """Rank 1 sleeps; the quota's seconds are those of the whole interval, on every rank alike."""
    part = {"rank_s": (0.5, 2.0), "rank_parts": ((0.5, 0.7, 0.0), (0.5, 0.7, 0.0))}
    curve = [evaluation(2.0 * n, index=n, **part) for n in range(FEWEST_MEASURED + 1)]
    (one,) = slow_ranks(rank_rows(curve, RunSpec()), WHERE)
    assert (one.rank, one.kind) == (1, "compute")
