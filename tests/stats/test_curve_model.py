"""The curve model on made-up surfaces: extrapolation, and coverage of its intervals."""

import math

import numpy as np
import pytest

from raybench.stats.curve_model import Curve, CurveModel, ModelSettings, Shapes, Surface

ONE = np.array([0.0, 0.0])
"""A configuration with a categorical and a numerical key."""


def run_to(
    model: CurveModel, run: str, tau: float, *, until: float = 1.0, point: np.ndarray = ONE
) -> None:
    """Train a run whose value grows linearly to the target 1 at `tau`, up to the value `until`."""
    model.begin(run, point)
    for step in range(1, round(10 * until) + 1):
        model.observe(run, tau * step / 10, step / 10, tau if step == 10 else None)


def to_one() -> CurveModel:
    return CurveModel(1, 1, baseline=0.0, target=1.0)


def test_a_curve_is_extrapolated_by_curves_that_reached_the_target():
    model = to_one()
    run_to(model, "whole", 100.0)
    run_to(model, "half", 300.0, until=0.5)
    log, deviation = model.extrapolate(model.curves["half"])
    assert math.exp(log) == pytest.approx(300.0, rel=0.03)
    complete, exact = model.extrapolate(model.curves["whole"])
    assert math.exp(complete) == pytest.approx(100.0)
    assert exact == pytest.approx(ModelSettings().seed_sd)
    assert deviation > exact


def test_a_curve_is_extrapolated_by_the_shape_that_fits_it():
    """One shape is linear, the other is halfway to the target after a tenth of the amount."""
    straight, bent = np.array([0.0, 0.0]), np.array([1.0, 0.0])
    shapes = Shapes(0.0, 1.0, ModelSettings(fit=1.0))
    shares = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    shapes.add(Curve(straight, [100 * share for share in shares], shares), 100.0)
    early = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    shapes.add(Curve(bent, [100 * share for share in shares], early), 100.0)
    other = np.array([2.0, 0.0])
    evenly, _ = shapes.remaining(Curve(other, [10.0, 20.0, 40.0, 60.0], [0.1, 0.2, 0.4, 0.6]), 1)
    fast_at_first, _ = shapes.remaining(Curve(other, [10.0, 20.0, 40.0], [0.5, 0.6, 0.7]), 1)
    assert evenly == pytest.approx(math.log(100 / 60), abs=0.15)
    assert fast_at_first == pytest.approx(math.log(100 / 40), abs=0.15)


def test_before_any_hit_an_interim_target_is_used():
    model = to_one()
    for run, tau in (("a", 100.0), ("b", 150.0), ("c", 200.0), ("d", 800.0)):
        run_to(model, run, tau, until=0.6)
    model.refresh()
    log = {run: model.extrapolate(curve)[0] for run, curve in model.curves.items()}
    assert log["a"] < log["b"] < log["c"] < log["d"]
    assert log["d"] - log["a"] == pytest.approx(math.log(8), abs=0.2)


def test_a_run_that_missed_is_not_predicted_to_be_fast():
    """A run that was the first to pass the interim target may still miss the target."""
    model = to_one()
    run_to(model, "missed", 100.0, until=0.9)
    run_to(model, "goes on", 200.0, until=0.9)
    model.curves["missed"].has_missed = True
    model.refresh()
    missed = model.extrapolate(model.curves["missed"])[0]
    assert missed >= math.log(90.0) + ModelSettings().missed
    assert missed > model.extrapolate(model.curves["goes on"])[0]


@pytest.mark.parametrize("target", [None, 1.0])
def test_repeated_evaluations_count_once(target):
    model = CurveModel(1, 1, baseline=None, target=target)
    model.begin("a", ONE)
    for amount in (10.0, 20.0, 20.0, 10.0):
        model.observe("a", amount, 0.5)
    assert model.curves["a"].amounts == [10.0, 20.0]
    assert not model.is_known
    model.refresh()
    assert model.is_known


def test_a_restarted_run_keeps_its_best_value():
    model = to_one()
    run_to(model, "whole", 100.0)
    model.begin("anew", ONE)
    for amount, best in ((10.0, 0.4), (20.0, 0.6), (30.0, 0.1)):
        model.observe("anew", amount, best)
        model.refresh()
    assert model.curves["anew"].best == [0.4, 0.6, 0.6]
    assert math.isfinite(model.extrapolate(model.curves["anew"])[0])


def test_keys_that_only_some_configurations_have_are_modeled():
    surface = Surface(1, 1, ModelSettings(), np.zeros(1))
    points = np.array([[0.0, math.nan], [0.0, 1.0], [1.0, 1.0]])
    surface.fit(points, np.array([0.0, 1.0, 2.0]), np.full(3, 0.1))
    assert surface.means(points) == pytest.approx([0.0, 1.0, 2.0], abs=0.25)


def test_leave_one_out_predictions_equal_those_of_the_other_observations():
    rng = np.random.default_rng(0)
    points = np.c_[np.zeros(6), rng.normal(size=6)]
    values, errors = rng.normal(size=6), np.full(6, 0.3)
    surface, rest = (Surface(1, 1, ModelSettings(refit=99), np.zeros(1)) for _ in range(2))
    surface.fit(points, values, errors)
    rest.fit(points[1:], values[1:], errors[1:])
    mean, variance = surface.without(0)
    # The constant mean is estimated from all observations.
    expected, covariance = rest.predict(points[:1])
    assert mean == pytest.approx(expected[0], abs=0.3)
    assert variance == pytest.approx(covariance[0, 0] + 0.3**2, rel=0.01)


def test_variances_match_the_covariance_and_fall_near_running_trials():
    rng = np.random.default_rng(1)
    points = np.c_[rng.integers(2, size=8).astype(float), rng.normal(size=8)]
    surface = Surface(1, 1, ModelSettings(), np.array([0.3]))
    surface.fit(points, rng.normal(size=8), np.full(8, 0.2))
    queries = np.array([[0.0, 0.5], [1.0, 2.0]])
    plain = surface.variances(queries, np.empty((0, 2)))
    assert plain == pytest.approx(np.diag(surface.predict(queries)[1]))
    beside = surface.variances(queries, queries[:1])
    assert beside[0] < 0.5 * plain[0]
    assert beside[1] < plain[1]


def test_only_the_best_and_the_latest_of_many_runs_are_modeled():
    model = CurveModel(1, 1, baseline=0.0, target=1.0, settings=ModelSettings(most=20))
    for number in range(60):
        run_to(model, str(number), 100.0 + number, point=np.array([0.0, number / 20]))
    model.refresh()
    assert len(model.surface) == 20
    assert model.means(np.array([[0.0, 0.0]]))[0] == pytest.approx(math.log(100), abs=0.2)


@pytest.mark.parametrize("number", [12, 60])
def test_intervals_of_predicted_amounts_hold(number):
    """90 % intervals cover 85 to 95 % for configurations that never ran, and more for stopped runs,
    whose assumed error is wider because the shapes of real curves differ more."""
    covered = np.array([coverage(seed, number) for seed in range(40)]).mean(axis=0)
    assert 0.85 <= covered[0] <= 0.95
    assert covered[1] >= 0.85


def coverage(seed: int, number: int) -> tuple[float, float]:
    """Return the coverage of the intervals of other configurations, and of stopped runs, in a world
    with three categories and two numbers."""
    rng = np.random.default_rng(seed)
    center, width = rng.normal(0, 1, 2), rng.uniform(1.0, 2.5, 2)
    offset, power = rng.normal(0, 0.5, 3), rng.uniform(0.3, 0.7, 3)

    def true_log(point: np.ndarray) -> float:
        return float(6 + offset[int(point[0])] + 0.5 * (((point[1:] - center) / width) ** 2).sum())

    def anywhere() -> np.ndarray:
        return np.array([rng.integers(3), *rng.uniform(-2, 2, 2)], dtype=float)

    model, logs = CurveModel(1, 2, baseline=0.0, target=0.9), {}
    for run in map(str, range(number)):
        point = anywhere()
        logs[run] = true_log(point) + 0.2 * rng.standard_normal()
        tau, best = math.exp(logs[run]), 0.0
        stop = rng.uniform(0.15, 1.3) * tau
        model.begin(run, point)
        for amount in np.arange(1, 400) * math.exp(6) / 20:
            value = 0.9 * min(amount / tau, 1.2) ** power[int(point[0])]
            best = max(best, value + 0.005 * rng.standard_normal())
            model.observe(run, float(amount), best, float(amount) if best >= 0.9 else None)
            if best >= 0.9 or amount > stop:
                break
    model.refresh()
    others = np.array([anywhere() for _ in range(60)])
    mean, covariance = model.predict(others)
    errors = np.abs(np.array([true_log(point) for point in others]) - mean)
    covered = []
    for run, curve in model.curves.items():
        if curve.reached is None and curve.amounts:
            log, variance = model.posterior(run)
            covered.append(abs(logs[run] - log) < 1.645 * math.sqrt(variance))
    new_share = (errors < 1.645 * np.sqrt(np.diag(covariance))).mean()
    return float(new_share), float(np.mean(covered or [1]))
