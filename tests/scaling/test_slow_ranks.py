"""Which worker all others wait for, by seconds that each took for itself."""

import numpy as np
import pytest

from raybench.scaling.measurements import Floats
from raybench.scaling.shares import FEWEST_MEASURED, moves, slow_ranks

WHERE = [f"host {rank // 2}, cuda:{rank % 2}" for rank in range(4)]


def measured(times: list[float], *, rows: int = 12, noise: float = 0.03, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    drift = rng.uniform(1.0, 2.0, size=(rows, 1))  # of the machine, the same for all
    return np.asarray(times) * drift * np.exp(noise * rng.standard_normal((rows, len(times))))


def test_one_that_stays_slow_is_named() -> None:
    (one,) = slow_ranks(measured([1, 1, 1, 1.4]), measured([2, 2, 2, 2.5]), WHERE)
    assert (one.rank, one.where, one.is_input) == (3, "host 1, cuda:1", False)
    assert one.times == pytest.approx(1.4, rel=0.05)
    assert one.sentence.startswith(
        "Worker 3 (host 1, cuda:1) takes 1.4 times as long as the others for the same work, and "
        "every step waits for it; its steps are: look for a throttled or shared device"
    )
    (of_two,) = slow_ranks(measured([1.8, 1.0]), measured([1.8, 1.0]), WHERE)
    assert (of_two.rank, of_two.times) == (0, pytest.approx(1.8, rel=0.05))


def test_one_whose_data_come_slowly_is_told_from_one_that_computes_slowly() -> None:
    found = slow_ranks(measured([1, 1.3, 1, 1]), measured([1, 1.3, 1.6, 1]), WHERE)
    assert [(one.rank, one.is_input) for one in found] == [(1, False), (2, True)]
    assert "its data come slowly" in found[1].sentence


@pytest.mark.parametrize("seed", range(20))
def test_of_workers_that_are_as_fast_none_is_named(seed: int) -> None:
    for ranks in (2, 4, 8):
        even = measured([1.0] * ranks, noise=0.05, seed=seed)
        assert slow_ranks(even, even, WHERE * 2) == []
    assert moves(measured([1.0] * 4, noise=0.02, seed=seed)) is None


def test_a_slow_one_that_changes_is_no_worker_s_fault() -> None:
    seconds = np.ones((12, 4))
    seconds[np.arange(12), np.arange(12) % 4] = 1.5
    assert slow_ranks(seconds, seconds, WHERE) == []
    assert moves(seconds) == 1.5
    assert moves(measured([1, 1, 1, 1.4])) is None


@pytest.mark.parametrize(
    "few", [np.array([]), measured([1, 2], rows=FEWEST_MEASURED - 1), np.ones((9, 1))]
)
def test_of_few_measurements_nothing_is_said(few: Floats) -> None:
    assert slow_ranks(few, few, WHERE) == []
    assert moves(few) is None
