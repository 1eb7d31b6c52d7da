"""The curve model in an Optuna study without raybench."""

import math
from collections.abc import Callable

import numpy as np
import optuna
import pytest

from raybench.search.sampling.curve_sampler import CurvePruner, CurveSampler
from raybench.search.sampling.default_rates import default_rate_of

BEST = {"a": 1e-2, "b": 1e-1}
"""Best rate of each kind."""


def objective_of(
    seed: int, trials: list[tuple[float, float]], *, sign: float = 1.0
) -> Callable[[optuna.Trial], float]:
    """Return a training that reaches 0.95 sooner the nearer its rate is to the best of its kind;
    `found` gets the distance of the rate and the number of samples of each trial."""
    rng = np.random.default_rng(seed)

    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", list(BEST))
        rate = trial.suggest_float("rate", 1e-5, 1.0, log=True)
        units = trial.suggest_int("units", 16, 256, log=True)
        if kind == "b":
            trial.suggest_float("only b", 0.0, 1.0)
        off = math.log(rate / BEST[kind]) / 1.2
        log = 0.5 * off**2 + (kind == "b") + 0.3 * math.log(units / 64) ** 2
        tau = 100 * math.exp(log + 0.1 * rng.standard_normal())
        value, samples = 0.0, 0
        for samples in range(20, 820, 20):
            value = 1 - math.exp(-3 * samples / tau) + 0.003 * rng.standard_normal()
            trial.report(sign * value, samples)
            if value >= 0.95 or trial.should_prune():
                break
        trials.append((abs(off) + (kind == "b"), samples))
        if value < 0.95 and samples < 800:
            raise optuna.TrialPruned
        return sign * value

    return objective


def test_a_study_that_minimizes_finds_the_best_and_trains_little_elsewhere():
    trials: list[tuple[float, float]] = []
    sampler = CurveSampler(target=-0.95, baseline=0.0, seed=3)
    study = optuna.create_study(sampler=sampler, pruner=CurvePruner(sampler))
    study.optimize(objective_of(0, trials, sign=-1.0), n_trials=40)
    near = [trial for trial in trials[20:] if trial[0] < 1]
    assert len(near) >= 8
    assert min(distance for distance, _ in trials[:20]) < 0.3
    bad = [samples for distance, samples in trials[10:] if distance > 2.5]
    assert np.mean(bad or [0.0]) < 200, "of 800"


def test_without_a_target_the_best_values_so_far_are_the_target():
    trials: list[tuple[float, float]] = []
    study = optuna.create_study(direction="maximize", sampler=CurveSampler(seed=1))
    study.optimize(objective_of(1, trials), n_trials=30)
    distances = [distance for distance, _ in trials]
    assert np.median(distances[15:]) < np.median(distances[:8])


def test_the_same_seed_proposes_the_same_and_failed_trials_are_passed_over():
    def rates(seed: int) -> list[float]:
        objective = objective_of(2, [])

        def failing(trial: optuna.Trial) -> float:
            value = objective(trial)
            return math.nan if trial.number == 4 else value

        sampler = CurveSampler(target=0.95, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(failing, n_trials=14)
        return [trial.params["rate"] for trial in study.trials]

    assert rates(5) == rates(5)
    assert rates(5) != rates(6)


def test_trials_that_report_nothing_are_drawn_at_random():
    study = optuna.create_study(sampler=CurveSampler(target=0.1, seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=12)
    assert len({trial.params["x"] for trial in study.trials}) == 12


@pytest.mark.parametrize(("batch_size", "is_number"), [(512.0, True), ("large", False)])
def test_default_rates_follow_batch_sizes_that_are_numbers(batch_size, is_number):
    """A user's own study may suggest the batch size as a float, or as a name."""
    rates = [
        default_rate_of(
            {"optimizer": "sgd", "batch_size_per_worker": size}, {"num_workers": 1, "accumulate": 1}
        )
        for size in (512, batch_size)
    ]
    assert (rates[0] == rates[1]) is is_number


def test_parameters_keep_to_their_steps_and_may_have_names_of_our_keys():
    def objective(trial: optuna.Trial) -> float:
        number = trial.suggest_int("whole", 10, 50, step=10)
        fraction = trial.suggest_float("part", 0.0, 1.0, step=0.25)
        trial.suggest_int("num_workers", 0, 4)  # of a data loader, where 0 is usual
        trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
        for samples in (10, 20):
            trial.report(1 - abs(number - 30) / 40 - fraction / 2, samples)
        return fraction

    study = optuna.create_study(direction="maximize", sampler=CurveSampler(target=0.9, seed=0))
    study.optimize(objective, n_trials=20)
    assert {trial.params["whole"] % 10 for trial in study.trials} == {0}
    assert {trial.params["part"] % 0.25 for trial in study.trials} == {0.0}
