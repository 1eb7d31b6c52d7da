"""Shares of a step from times of its probes: what was put in comes out."""

import numpy as np
import pytest
from made_up_probes import spec_of, times_of

from raybench.scaling.shares import PARTS, Estimate, Probe, Probes, Shares

MIXED = {"compute": 0.04, "overhead": 0.01, "exchange": 0.03, "reading": 0.02}


def shares_of(spec, **parts) -> Shares:
    return Shares.of(Probes.of(spec), times_of(spec, **parts))


def values(shares: Shares) -> dict[str, float]:
    return {part: shares[part].value for part in PARTS}


def test_parts_that_follow_each_other_come_back_without_noise() -> None:
    found = values(shares_of(spec_of(), noise=0.0, **MIXED))
    assert found == pytest.approx(
        {"compute": 0.4, "overhead": 0.1, "communication": 0.3, "input": 0.2}
    )


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 100])
def test_any_batch_size_has_another_beside_it(batch: int) -> None:
    spec = spec_of(batch_size_per_worker=batch)
    found = values(shares_of(spec, noise=0.0, **MIXED))
    assert found["overhead"] == pytest.approx(0.1)
    assert found["compute"] == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(20))
def test_every_round_sums_to_one_whatever_the_noise(seed: int) -> None:
    shares = shares_of(spec_of(), noise=0.5, seed=seed, rounds=6, **MIXED)
    total = sum(shares.rounds[part] for part in PARTS)
    np.testing.assert_allclose(total, 1.0)


def test_one_worker_exchanges_nothing() -> None:
    spec = spec_of(num_workers=1)
    assert len(Probes.of(spec).names) == 3
    assert (shares_of(spec, **MIXED).rounds["communication"] == 0).all()


def test_synthetic_data_keep_nobody_waiting() -> None:
    spec = spec_of(dataset={"name": "synthetic"})
    assert len(Probes.of(spec).names) == 4
    assert (shares_of(spec, **MIXED).rounds["input"] == 0).all()


def test_what_only_both_together_win_counts_half_to_each() -> None:
    """Reading and exchange at the same time, 0.05 s each, beside 0.05 s of compute."""
    probes = Probes.of(spec_of())

    def seconds(probe: Probe) -> float:
        slowest = 0.05 if probe.exchanges or probe.reads else 0.0
        return slowest + 0.05 * probe.batch_size_per_worker / 64

    times = {probe: [seconds(probe)] * 3 for probe in probes.names}
    found = values(Shares.of(probes, times))
    assert found == pytest.approx(
        {"compute": 0.5, "overhead": 0.0, "communication": 0.25, "input": 0.25}
    )


@pytest.mark.parametrize("seed", range(3))
def test_noise_does_not_take_from_a_part_what_it_is(seed: int) -> None:
    """30 % noise from probe to probe: many rounds of it still have the same middle."""
    shares = shares_of(spec_of(), noise=0.3, seed=seed, rounds=4000, **MIXED)
    found = {part: float(np.mean(shares.rounds[part])) for part in PARTS}
    assert found["communication"] == pytest.approx(0.3, abs=0.05)
    assert found["input"] == pytest.approx(0.2, abs=0.05)


def test_a_round_that_is_not_finished_does_not_count() -> None:
    spec = spec_of()
    times = times_of(spec, rounds=3, **MIXED)
    times[Probes.of(spec).as_it_is].append(99.0)
    assert len(Shares.of(Probes.of(spec), times).rounds["compute"]) == 3


def test_two_rounds_are_never_sure() -> None:
    spec = spec_of()
    for rounds, is_sure in ((2, False), (3, True)):
        times = times_of(spec, rounds=rounds, noise=0.0, **MIXED)
        assert Shares.of(Probes.of(spec), times).is_sure is is_sure


def test_an_estimate_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(2000):
        found = Estimate.of(rng.normal(0.4, 0.1, 5))
        inside.append(found.low <= 0.4 <= found.high)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_equal_parts_are_told_apart_as_rarely_as_the_interval_says() -> None:
    """5 % noise, two equal parts: being sure is wrong each time."""
    spec = spec_of()
    probes = Probes.of(spec)
    sure = [
        Shares.of(
            probes,
            times_of(spec, seed=seed, noise=0.05, compute=0.04, exchange=0.04, overhead=0.01),
        ).is_sure
        for seed in range(300)
    ]
    assert np.mean(sure) < 0.1
