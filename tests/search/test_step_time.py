"""The step-time model, on times that are made up and on such with noise."""

import itertools

import numpy as np
import pytest

from raybench.search.placement import Setup, StepTime
from raybench.spec.run import Placement

COSTS = {"adam": 0.2e-3, "lamb": 0.5e-3, "lars": 0.3e-3}


def at(framework: str, workers: int, batch: int, optimizer: str) -> Setup:
    return Placement(framework, workers, batch), optimizer


def true_step(setup: Setup) -> float:
    placement, optimizer = setup
    slow = 1.5 if placement.framework == "tensorflow" else 1.0
    communication = 0.6e-3 * (placement.num_workers - 1)
    compute = 0.4e-3 + 12e-6 * placement.batch_size_per_worker
    return slow * (compute + COSTS[optimizer]) + communication


def measured(*setups: Setup, noise: float = 0.0, seed: int = 0) -> StepTime:
    rng = np.random.default_rng(seed)
    model = StepTime()
    for setup in setups:
        factor = float(np.exp(noise * rng.standard_normal()))
        model.observe(*setup, steps=100, seconds=100 * true_step(setup) * factor)
    return model


def test_a_group_never_measured_has_no_prediction() -> None:
    model = measured(at("torch", 1, 64, "adam"))
    assert model.step_s(*at("torch", 2, 64, "adam")) is None
    assert model.step_s(*at("tensorflow", 1, 64, "adam")) is None


def test_what_was_measured_comes_back() -> None:
    setup = at("torch", 1, 64, "adam")
    assert measured(setup).step_s(*setup) == pytest.approx(true_step(setup), rel=1e-6)


def test_few_measurements_predict_the_other_batches_and_workers() -> None:
    """Two batch sizes on one worker, one on each other group: the rest within 10 %."""
    seen = [
        at("torch", 1, 16, "adam"),
        at("torch", 1, 256, "adam"),
        at("torch", 1, 64, "lamb"),
        at("torch", 1, 64, "lars"),
        at("torch", 2, 32, "adam"),
        at("torch", 4, 16, "adam"),
    ]
    model = measured(*seen)
    for workers, batch, optimizer in itertools.product((1, 2, 4), (16, 64, 512), COSTS):
        setup = at("torch", workers, batch, optimizer)
        assert model.step_s(*setup) == pytest.approx(true_step(setup), rel=0.1), setup


def test_noise_of_five_percent_stays_small() -> None:
    batches, errors = (16, 64, 256), []
    for seed in range(20):
        seen = [
            at("torch", k, b, o) for k, b, o in itertools.product((1, 2), batches, ("adam", "lamb"))
        ]
        model = measured(*seen, noise=0.05, seed=seed)
        for k, b in itertools.product((1, 2), (32, 128, 512)):
            setup = at("torch", k, b, "adam")
            found = model.step_s(*setup)
            assert found is not None
            errors.append(abs(found / true_step(setup) - 1))
    assert np.mean(errors) < 0.06


def test_an_optimizer_not_measured_there_costs_the_mean() -> None:
    model = measured(at("torch", 1, 16, "adam"), at("torch", 1, 16, "lamb"))
    known = [model.step_s(*at("torch", 1, 16, name)) for name in ("adam", "lamb")]
    found = model.step_s(*at("torch", 1, 16, "lars"))
    assert found == pytest.approx(np.mean([time for time in known if time]), rel=1e-6)


def test_more_measurements_of_one_setup_are_averaged() -> None:
    model, setup = StepTime(), at("torch", 1, 64, "adam")
    model.observe(*setup, steps=10, seconds=1.0)
    model.observe(*setup, steps=30, seconds=5.0)
    assert model.step_s(*setup) == pytest.approx(6 / 40)


def test_no_steps_say_nothing() -> None:
    model, setup = StepTime(), at("torch", 1, 64, "adam")
    model.observe(*setup, steps=0, seconds=0.0)
    assert model.step_s(*setup) is None
