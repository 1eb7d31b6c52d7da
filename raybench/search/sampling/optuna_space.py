"""Translate search spaces to Optuna parameters and back, and create Optuna's samplers."""

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
from raybench.spec.errors import ErrorCode, UserError
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
    """Ask an Optuna trial for one value per key of the space.

    Keys are encoded as Optuna parameters:

    - A range that depends on another key (such as a learning rate range per optimizer) is a single
      parameter in [0, 1]: the position within the range. The sampler can then model it jointly with
      the other key.
    - Any other key that depends on another key has one parameter per case
      (`weight_decay [optimizer=lars]`).
    - A power of two is encoded as its exponent, so that the sampler knows that 64 lies between 32
      and 128.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            share = trial.suggest_float(_share_name(key), 0.0, 1.0)
            values[key] = _value_at(dimension.choose(known_values(fixed, values)).dimension, share)
            continue
        name, simple = _resolve(key, dimension, known_values(fixed, values))
        values[key] = _ask(trial, name, simple)
    return values


def values_of_params(
    params: dict[str, Any], space: Space, fixed: dict[str, Any]
) -> dict[str, Any] | None:
    """Decode Optuna parameters to a configuration; None if a parameter is missing."""
    try:
        return propose(optuna.trial.FixedTrial(params), space, fixed)
    except ValueError:  # raised by Optuna for a missing parameter
        return None


def encode(space: Space, fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Encode a configuration as Optuna parameters, as `propose` does.

    A key without a value has no parameter, so that the sampler chooses it.
    """
    params: dict[str, Any] = {}
    for key, value in values.items():
        dimension = space[key]
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            case = dimension.choose(known_values(fixed, values))
            params[_share_name(key)] = _position_of(case.dimension, value)
            continue
        name, simple = _resolve(key, space[key], known_values(fixed, values))
        params[name] = _parameter(simple, value)
    return params


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the distribution of every parameter that `propose` may ask for."""
    all_distributions: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            all_distributions[_share_name(key)] = FloatDistribution(0.0, 1.0)
        elif isinstance(dimension, Cases):
            for case in dimension.cases:
                name = _name(f"{key} [{case.label()}]", case.dimension)
                all_distributions[name] = _distribution(case.dimension)
        else:
            all_distributions[_name(key, dimension)] = _distribution(dimension)
    return all_distributions


def params_of(
    spec: RunSpec, study: StudySpec, space: Space, *, widen: bool = False
) -> dict[str, Any] | None:
    """Return the configuration of a run spec as Optuna parameters; None if it lies outside the
    space.

    Args:
        spec: The run spec.
        study: The study.
        space: The sampled space; with GLOBAL_BATCH if it is factorized.
        widen: Whether the learning rate may lie outside its range (`search.widen`).
    """
    values = {key: value_of(spec, key) for key in space if key != GLOBAL_BATCH}
    # A global batch size has several placements; `spec` has the one on which it ran.
    placement = speed_values(spec.placement) if GLOBAL_BATCH in space else {}
    batch = {GLOBAL_BATCH: spec.global_batch_size} if placement else {}
    all_values = known_values(study.fixed, values)
    bounded = {k: v for k, v in (values | batch).items() if not (widen and k == "learning_rate")}
    if not all(lies_in(key, space[key], value, all_values) for key, value in bounded.items()):
        return None
    expected = study.run_spec(values | placement, seed=spec.seed)
    # Runs that differ only in the evaluation interval have the same configuration.
    if expected.model_copy(update={EVAL_INTERVAL: spec.eval_every_samples}) != spec:
        return None
    return encode(space, study.fixed, values | batch)


def _are_ranges(dimension: Cases) -> bool:
    ranges = [case.dimension for case in dimension.cases]
    return all(isinstance(dimension, Range) and not dimension.is_integer for dimension in ranges)


def _share_name(key: str) -> str:
    return f"{key} [share of its range]"


def _value_at(dimension: Simple, share: float) -> float:
    """Return the value at a position in [0, 1] of a range, on its linear or log scale."""
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    value = low * (high / low) ** share if dimension.log else low + share * (high - low)
    value = float(f"{value:.12g}")  # 0.003, not 0.003000000000000001
    return min(max(value, low), high) if 0 <= share <= 1 else value


def _position_of(dimension: Simple, value: float) -> float:
    """Return the position of a value in a range, as the inverse of `_value_at`.

    The position lies outside [0, 1] if the value lies outside the range.
    """
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    if dimension.log:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    is_bound = value in (low, high)
    return float(round(share)) if is_bound else share


def _resolve(key: str, dimension: Dimension, all_values: dict[str, Any]) -> tuple[str, Simple]:
    """Return the Optuna parameter name of a key, and the dimension that applies to the other
    values."""
    if isinstance(dimension, Cases):
        case = dimension.choose(all_values)
        key, dimension = f"{key} [{case.label()}]", case.dimension
    return _name(key, dimension), dimension


def _name(key: str, dimension: Simple) -> str:
    return f"log2 {key}" if isinstance(dimension, Powers) else key


def _distribution(dimension: Simple) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution([_parameter(dimension, value) for value in dimension.values])
    if isinstance(dimension, Powers):
        exponents = [value.bit_length() - 1 for value in dimension.values()]
        return IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Range) and dimension.is_integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _parameter(dimension: Simple, value: Any) -> Any:
    """Return a value in the form that Optuna stores.

    A power of two becomes its exponent. Choices become JSON strings if Optuna cannot store one of
    them (list, mapping) or would confuse two of them (1 and true).
    """
    if isinstance(dimension, Powers):
        return int(value).bit_length() - 1
    if isinstance(dimension, Choices) and not _are_distinct(dimension.values):
        return to_json(value).decode()
    return value


def _are_distinct(values: tuple[Any, ...]) -> bool:
    is_held = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    return is_held and len({*values}) == len(values)


def _ask(trial: optuna.trial.BaseTrial, name: str, dimension: Simple) -> Any:
    distribution = _distribution(dimension)
    if isinstance(distribution, CategoricalDistribution):
        chosen = distribution.to_internal_repr(
            trial.suggest_categorical(name, distribution.choices)
        )
        return possible_values(dimension)[int(chosen)]
    if isinstance(distribution, IntDistribution):
        value = trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        return 2**value if isinstance(dimension, Powers) else value
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


REQUIRED_PACKAGES = {
    "gp": ("torch", "gp needs PyTorch; run: pip install 'raybench[torch]'."),
    "cmaes": ("cmaes", "cmaes needs its package; run: pip install cmaes."),
}
PARETO_SAMPLERS = ("nsga2",)
"""Samplers that search for the Pareto front of seconds and worker-seconds."""
STARTUP_TRIALS = 10
"""Number of random trials before an Optuna sampler fits its model."""
POPULATION = 16
"""Population size of NSGA-II; it suits searches of tens to hundreds of trials."""


def build_sampler(name: str, *, seed: int, num_earlier: int) -> BaseSampler:
    """Create an Optuna sampler.

    Args:
        name: Value of `search.sampler`.
        seed: Seed of the study.
        num_earlier: Number of trials that the study already has. It changes the random numbers of a
            resumed study.

    Raises:
        UserError: A package that the sampler needs is not installed.
    """
    module, advice = REQUIRED_PACKAGES.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise UserError(f"search.sampler: {advice}", ErrorCode.NOT_INSTALLED)
    # Optuna marks some samplers and the `group` option of TPE as experimental.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # Learning rates outside their range are intended (`search.widen`).
    warnings.filterwarnings("ignore", message="Fixed parameter .* is out of range")
    seed = (seed + 1_000_003 * num_earlier) % 2**32
    at_random = samplers.RandomSampler(seed=seed)
    # `group` models the ranges of different optimizers separately.
    tpe = samplers.TPESampler(
        seed=seed,
        n_startup_trials=STARTUP_TRIALS,
        multivariate=True,
        group=True,
        constant_liar=True,
    )
    match name:
        case "tpe":
            return tpe
        case "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, independent_sampler=at_random
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
    return at_random  # with `grid` and `model`, trials are enqueued instead of sampled
