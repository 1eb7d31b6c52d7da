"""How configurations are proposed: Optuna's samplers by the names of `search.sampler`."""

import importlib.util
import warnings
from collections.abc import Callable

import optuna
from optuna.samplers import BaseSampler

from raybench.core.errors import UserError
from raybench.search.policy import DEFAULT


def _tpe(seed: int, startup_trials: int) -> BaseSampler:
    # `group` samples the ranges of different optimizers apart.
    return optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=startup_trials,
        multivariate=True,
        group=True,
        constant_liar=True,
    )


def _gp(seed: int, startup_trials: int) -> BaseSampler:
    if importlib.util.find_spec("torch") is None:
        raise UserError("search.sampler: gp needs PyTorch; run: pip install 'raybench[torch]'.")
    return optuna.samplers.GPSampler(
        seed=seed,
        n_startup_trials=startup_trials,
        independent_sampler=optuna.samplers.RandomSampler(seed=seed),
    )


def _cmaes(seed: int, startup_trials: int) -> BaseSampler:
    if importlib.util.find_spec("cmaes") is None:
        raise UserError("search.sampler: cmaes needs its package; run: pip install cmaes.")
    return optuna.samplers.CmaEsSampler(
        seed=seed, independent_sampler=_tpe(seed, startup_trials), warn_independent_sampling=False
    )


def _random(seed: int, startup_trials: int) -> BaseSampler:
    del startup_trials  # it learns nothing
    return optuna.samplers.RandomSampler(seed=seed)


def _qmc(seed: int, startup_trials: int) -> BaseSampler:
    del startup_trials  # it learns nothing
    return optuna.samplers.QMCSampler(
        seed=seed,
        scramble=True,
        independent_sampler=optuna.samplers.RandomSampler(seed=seed),
        warn_independent_sampling=False,
        warn_asynchronous_seeding=False,
    )


def _nsga2(seed: int, startup_trials: int) -> BaseSampler:
    del startup_trials  # it has a generation of its own
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)


PARETO_SAMPLERS = ("nsga2",)
"""They look for the whole front of seconds and worker-seconds."""
POPULATION = 16
"""Trials of a generation of NSGA-II; searches have tens of trials, not thousands."""
SAMPLERS: dict[str, Callable[[int, int], BaseSampler]] = {
    "tpe": _tpe,
    "gp": _gp,
    "cmaes": _cmaes,
    "random": _random,
    "qmc": _qmc,
    "nsga2": _nsga2,
    "grid": _random,  # asked for nothing: `grid.py` names every trial
}


def build_sampler(
    name: str, *, seed: int, num_earlier: int, startup_trials: int = DEFAULT.startup_trials
) -> BaseSampler:
    """Return a sampler; UserError if a package it needs is missing.

    `num_earlier` is the number of trials the study holds already: a continued study must not
    draw the same random numbers again. `startup_trials` come before it models what it has seen.
    """
    # Some of them, and TPE's `group`, are marked experimental by Optuna.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return SAMPLERS[name]((seed + 1_000_003 * num_earlier) % 2**32, startup_trials)
