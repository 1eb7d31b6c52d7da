"""Configurations of a space, asked of Optuna define-by-run, and the samplers that propose them."""

import importlib.util
import math
import warnings
from typing import Any

import optuna
from optuna import samplers
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from pydantic_core import to_json

from raybench.search.factorisation import GLOBAL_BATCH, speed_values
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec, value_of
from raybench.spec.space import (
    Cases,
    Choices,
    Dimension,
    Powers,
    Range,
    Simple,
    Space,
    known_values,
    lies_in,
    possible_values,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec


def propose(trial: optuna.trial.BaseTrial, space: Space, fixed: dict[str, Any]) -> dict[str, Any]:
    """Return one value for every key of the space.

    Ranges that depend on others (the rate, by optimizer) are one parameter, the share of the
    range: so the sampler sees rate, batch and optimizer together, and asks once instead of
    once for every case. Other cases have names of their own (`weight_decay [optimizer=lars]`).
    A power of two is proposed by its exponent, so that the sampler knows 64 to lie between 32
    and 128.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            share = trial.suggest_float(_share_name(key), 0.0, 1.0)
            values[key] = _at(dimension.choose(known_values(fixed, values)).dimension, share)
            continue
        name, simple = _resolve(key, dimension, known_values(fixed, values))
        values[key] = _ask(trial, name, simple)
    return values


def values_of_params(
    params: dict[str, Any], space: Space, fixed: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the values that parameters stand for; None where they lack one."""
    try:
        return propose(optuna.trial.FixedTrial(params), space, fixed)
    except ValueError:  # Optuna's word for a parameter that is not there
        return None


def encode(space: Space, fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return what `propose` asks Optuna for, where the answer shall be `values`.

    Keys that are missing in `values` are left for the sampler.
    """
    params: dict[str, Any] = {}
    for key, value in values.items():
        dimension = space[key]
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            case = dimension.choose(known_values(fixed, values))
            params[_share_name(key)] = _share(case.dimension, value)
            continue
        name, simple = _resolve(key, space[key], known_values(fixed, values))
        params[name] = _parameter(simple, value)
    return params


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return every parameter that `propose` may ask for, with its distribution."""
    found: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            found[_share_name(key)] = FloatDistribution(0.0, 1.0)
        elif isinstance(dimension, Cases):
            for case in dimension.cases:
                name = _name(f"{key} [{case.label()}]", case.dimension)
                found[name] = _distribution(case.dimension)
        else:
            found[_name(key, dimension)] = _distribution(dimension)
    return found


def params_of(
    spec: RunSpec, study: StudySpec, space: Space, *, widen: bool = False
) -> dict[str, Any] | None:
    """Return a run spec as the parameters that `propose` asks for; None if it is none of `space`,
    beyond whose rates it may lie where these `widen` (`search.widen`).

    `space` is what the sampler samples, with GLOBAL_BATCH where it is taken apart.
    """
    values = {key: value_of(spec, key) for key in space if key != GLOBAL_BATCH}
    # A sampled batch stands for every placement of it: that on which the run was.
    placement = speed_values(spec.placement) if GLOBAL_BATCH in space else {}
    batch = {GLOBAL_BATCH: spec.global_batch_size} if placement else {}
    known = known_values(study.fixed, values)
    bounded = {k: v for k, v in (values | batch).items() if not (widen and k == "learning_rate")}
    if not all(lies_in(key, space[key], value, known) for key, value in bounded.items()):
        return None
    own = study.run_spec(values | placement, seed=spec.seed)
    # How often a run is evaluated makes it no other configuration.
    if own.model_copy(update={EVAL_INTERVAL: spec.eval_every_samples}) != spec:
        return None
    return encode(space, study.fixed, values | batch)


def _are_ranges(dimension: Cases) -> bool:
    ranges = [case.dimension for case in dimension.cases]
    return all(isinstance(one, Range) and not one.is_integer for one in ranges)


def _share_name(key: str) -> str:
    return f"{key} [share of its range]"


def _at(dimension: Simple, share: float) -> float:
    """Return the value at a share of a range, evenly on the scale that it is sampled on."""
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    value = low * (high / low) ** share if dimension.log else low + share * (high - low)
    value = float(f"{value:.12g}")  # 0.003, not 0.003000000000000001
    return min(max(value, low), high) if 0 <= share <= 1 else value


def _share(dimension: Simple, value: float) -> float:
    """Return the inverse of `_at`; outside of 0..1 for values outside of the range."""
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    if dimension.log:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    is_bound = value in (low, high)
    return float(round(share)) if is_bound else share


def _resolve(key: str, dimension: Dimension, known: dict[str, Any]) -> tuple[str, Simple]:
    """Return the parameter's name and the dimension that holds among what is known."""
    if isinstance(dimension, Cases):
        case = dimension.choose(known)
        key, dimension = f"{key} [{case.label()}]", case.dimension
    return _name(key, dimension), dimension


def _name(key: str, dimension: Simple) -> str:
    return f"log2 {key}" if isinstance(dimension, Powers) else key


def _distribution(dimension: Simple) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution([_parameter(dimension, one) for one in dimension.values])
    if isinstance(dimension, Powers):
        exponents = [value.bit_length() - 1 for value in dimension.values()]
        return IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Range) and dimension.is_integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _parameter(dimension: Simple, value: Any) -> Any:
    """Return what Optuna is told for a value: the exponent of a power of two; the value as JSON
    where Optuna cannot hold one of the choices (lists, mappings) or takes two for one (1, true)."""
    if isinstance(dimension, Powers):
        return int(value).bit_length() - 1
    if isinstance(dimension, Choices) and not _are_apart(dimension.values):
        return to_json(value).decode()
    return value


def _are_apart(values: tuple[Any, ...]) -> bool:
    is_held = all(one is None or isinstance(one, bool | int | float | str) for one in values)
    return is_held and len({*values}) == len(values)


def _ask(trial: optuna.trial.BaseTrial, name: str, dimension: Simple) -> Any:
    asked = _distribution(dimension)
    if isinstance(asked, CategoricalDistribution):
        chosen = asked.to_internal_repr(trial.suggest_categorical(name, asked.choices))
        return possible_values(dimension)[int(chosen)]
    if isinstance(asked, IntDistribution):
        value = trial.suggest_int(name, asked.low, asked.high, log=asked.log)
        return 2**value if isinstance(dimension, Powers) else value
    assert isinstance(asked, FloatDistribution)
    return trial.suggest_float(name, asked.low, asked.high, log=asked.log)


NEEDS = {
    "gp": ("torch", "gp needs PyTorch; run: pip install 'raybench[torch]'."),
    "cmaes": ("cmaes", "cmaes needs its package; run: pip install cmaes."),
}
PARETO_SAMPLERS = ("nsga2",)
"""Samplers that look for the whole front of seconds and worker-seconds."""
STARTUP_TRIALS = 10
"""Trials before a sampler of Optuna's models what it has seen."""
POPULATION = 16
"""Trials of a generation of NSGA-II; searches have tens of trials, not thousands."""


def build_sampler(
    name: str, *, seed: int, num_earlier: int, startup_trials: int = STARTUP_TRIALS
) -> BaseSampler:
    """Return a sampler; UserError if a package it needs is missing.

    `num_earlier` is the number of trials the study holds already: a continued study must not
    draw the same random numbers again. `startup_trials` come before it models what it has seen.
    """
    module, advice = NEEDS.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise UserError(f"search.sampler: {advice}")
    # Some of them, and TPE's `group`, are marked experimental by Optuna.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # A rate beyond its range is meant (`search.widen`).
    warnings.filterwarnings("ignore", message="Fixed parameter .* is out of range")
    seed = (seed + 1_000_003 * num_earlier) % 2**32
    at_random = samplers.RandomSampler(seed=seed)
    # `group` samples the ranges of different optimizers apart.
    tpe = samplers.TPESampler(
        seed=seed,
        n_startup_trials=startup_trials,
        multivariate=True,
        group=True,
        constant_liar=True,
    )
    match name:
        case "tpe":
            return tpe
        case "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=startup_trials, independent_sampler=at_random
            )
        case "cmaes":
            return samplers.CmaEsSampler(
                seed=seed, independent_sampler=tpe, warn_independent_sampling=False
            )
        case "qmc":
            return samplers.QMCSampler(
                seed=seed,
                scramble=True,
                independent_sampler=at_random,
                warn_independent_sampling=False,
                warn_asynchronous_seeding=False,
            )
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
    return at_random  # of a grid and of sampler `model`, whose trials are named beforehand
