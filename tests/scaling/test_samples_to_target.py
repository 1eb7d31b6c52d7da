"""Samples to target by batch size: known curves and public measurements."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raybench.scaling.samples_to_target import fit, leave_one_out, read
from raybench.spec.errors import ErrorCode
from tests.refusals import numbers_in, refused

BATCHES = [2**k for k in range(4, 13)]
DATA = Path(os.environ.get("RAYBENCH_DATA", "nowhere"))


def law(batch, least=1e5, critical=500.0, power=1.0, small=0.0):
    batch = np.asarray(batch, dtype=float)
    return least * (1 + (batch / critical) ** power + small / batch)


def runs(batches=BATCHES, *, noise=0.05, repeats=5, seed=0, **truth) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    batch = np.repeat(batches, repeats)
    samples = law(batch, **truth) * np.exp(noise * rng.standard_normal(len(batch)))
    return pd.DataFrame({"batch_size": batch, "samples_to_target": samples})


def test_a_known_curve_is_recovered():
    curve = fit(runs())
    critical = curve.critical_batch
    assert critical.value == pytest.approx(500, rel=0.3)
    assert critical.low < 500 < critical.high
    assert "about" in curve.sentence()
    between = [24, 700, 3000]
    table = curve.predict(between)
    assert list(table.columns) == ["batch_size", "samples", "low", "high"]
    assert table["samples"].to_numpy() == pytest.approx(law(between), rel=0.08)
    assert (table["low"] < law(between)).all()
    assert (law(between) < table["high"]).all()


@pytest.mark.parametrize(
    "truth", [{"power": 2.0}, {"power": 0.6}, {"small": 100.0}, {"critical": 1e9}]
)
def test_other_curve_shapes_are_fitted(truth):
    table = leave_one_out(runs(**truth))
    assert len(table) == len(BATCHES)
    assert table["error"].abs().median() < 0.06
    assert table["error"].abs().max() < 0.35


def test_intervals_have_their_stated_coverage():
    """Coverage of 90 % intervals at held-out batch sizes, for several laws and run counts."""
    inside = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        truth = {
            "critical": float(np.exp(rng.uniform(np.log(30), np.log(8000)))),
            "power": float(rng.choice([0.7, 1.0, 1.4])),
            "small": float(rng.choice([0.0, 20.0])),
        }
        batches = sorted(rng.choice(BATCHES, size=6, replace=False))
        noise, repeats = float(rng.choice([0.03, 0.1])), int(rng.choice([2, 8]))
        predictions = leave_one_out(runs(batches, noise=noise, repeats=repeats, seed=seed, **truth))
        inside += list(predictions["samples"].between(predictions["low"], predictions["high"]))
    assert len(inside) == 72
    assert 0.84 <= np.mean(inside) <= 0.99


def test_repeated_measurements_override_the_law():
    """A repeated deviation of 50 % at one batch size is kept, and fades within a few doublings."""
    table = runs(noise=0.02)
    bump = table.copy()
    bump.loc[bump["batch_size"] == 128, "samples_to_target"] *= 1.5
    batches = [128, 160, 4096]
    before, after = (fit(t).predict(batches)["samples"].to_numpy() for t in (table, bump))
    lifted = after / before
    assert lifted[0] == pytest.approx(1.5, rel=0.05)
    assert 1.15 < lifted[1] < lifted[0]
    assert lifted[2] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        (runs(critical=1e9), True, False),
        (runs(critical=0.1, least=10.0), False, True),
        (runs([64, 70], noise=0.2, repeats=2), False, False),
    ],
)
def test_an_unbounded_critical_batch_is_reported(table, low, high):
    curve = fit(table)
    critical = curve.critical_batch
    assert (critical.low > 0, np.isfinite(critical.high)) == (low, high)
    assert bool(numbers_in(curve.sentence())) == (low or high)


@pytest.mark.parametrize(
    ("reached", "missed", "unusable"),
    [([64, 128, 256, 512], 8, [4, 8, 32]), ([64, 256], 128, [128])],
    ids=["beyond the others", "between the others"],
)
def test_batch_sizes_that_miss_or_lie_beyond_a_miss_are_not_usable(reached, missed, unusable):
    curve = fit(pd.concat([runs(reached), table_of([missed], [None])]))
    sizes = (4, 8, 32, 64, 128, 200, 256, 512, 4096)
    assert [size for size in sizes if not curve.reaches(size)] == unusable


@pytest.mark.skipif(
    not (DATA / "mlperf/convergence.csv").is_file(), reason="RAYBENCH_DATA has no mlperf"
)
def test_each_mlperf_benchmark_is_predicted_within_15_percent():
    """The required accuracy: per benchmark, the median error over held-out batch sizes."""
    table = pd.read_csv(DATA / "mlperf/convergence.csv")
    table = table[table["superseded"] == 0].rename(
        columns={"global_batch_size": "batch_size", "converged_at": "samples_to_target"}
    )
    medians, inside = {}, []
    for key, group in table.groupby(["benchmark", "unit"]):
        if group["batch_size"].nunique() >= 4:
            predictions = leave_one_out(group)
            medians[key] = predictions["error"].abs().median()
            inside += list(predictions["samples"].between(predictions["low"], predictions["high"]))
    assert len(medians) == 15
    assert max(medians.values()) <= 0.15, medians
    assert np.median(list(medians.values())) <= 0.05
    assert 0.85 <= np.mean(inside) <= 0.97


def table_of(batch, samples) -> pd.DataFrame:
    return pd.DataFrame({"batch_size": batch, "samples_to_target": samples})


@pytest.mark.parametrize(
    ("samples", "median"),
    [([5, 3, 9, 7], 6), ([5, 3, None], 5), ([5, 3, 9, None, None], 9), ([8, 4, None, None], None)],
)
def test_the_median_counts_runs_that_missed(samples, median):
    # A second batch size, because a table without any median is refused.
    table = table_of([32] * len(samples) + [64], [*samples, 1.0])
    assert read(table).batch_sizes[0].samples == median


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (runs([64]), ErrorCode.TOO_FEW),
        (pd.concat([runs([64]), table_of([8] * 3, [None] * 3)]), ErrorCode.TOO_FEW),
        (table_of([8, 16], [None, None]), ErrorCode.NO_RESULT),
    ],
)
def test_a_table_with_fewer_than_two_medians_is_refused(table, code):
    with refused(code):
        fit(table)
    assert leave_one_out(runs([64, 128])).empty, "it needs three"
