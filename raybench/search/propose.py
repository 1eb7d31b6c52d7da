"""From a space to a configuration, asked of Optuna define-by-run."""

from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from raybench.core.space import Cases, Choices, Dimension, Powers, Range, Simple, Space


def propose(trial: optuna.Trial, space: Space, fixed: dict[str, Any]) -> dict[str, Any]:
    """Return one value for every key of the space.

    A case has a name of its own (`learning_rate [optimizer=lars]`), because ranges of
    different optimizers are different parameters to the sampler. A power of two is proposed
    by its exponent, so that the sampler knows 64 to lie between 32 and 128.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        name, simple = _resolve(key, dimension, fixed | values)
        values[key] = _ask(trial, name, simple)
    return values


def encode(space: Space, fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return what `propose` asks Optuna for, where the answer shall be `values`.

    Keys that are missing in `values` are left for the sampler.
    """
    params: dict[str, Any] = {}
    for key, value in values.items():
        name, simple = _resolve(key, space[key], fixed | values)
        params[name] = int(value).bit_length() - 1 if isinstance(simple, Powers) else value
    return params


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return every parameter that `propose` may ask for, with its distribution."""
    found: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        simple = [(key, dimension)]
        if isinstance(dimension, Cases):
            simple = [(f"{key} [{case.label()}]", case.dimension) for case in dimension.cases]
        for name, one in simple:
            assert not isinstance(one, Cases)
            found[f"log2 {name}" if isinstance(one, Powers) else name] = _distribution(one)
    return found


def _resolve(key: str, dimension: Dimension, known: dict[str, Any]) -> tuple[str, Simple]:
    """Return the parameter's name and the dimension that holds among what is known."""
    name = key
    if isinstance(dimension, Cases):
        case = dimension.choose(known)
        name, dimension = f"{key} [{case.label()}]", case.dimension
    return (f"log2 {name}" if isinstance(dimension, Powers) else name), dimension


def _distribution(dimension: Simple) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.values)
    if isinstance(dimension, Powers):
        exponents = [value.bit_length() - 1 for value in dimension.values()]
        return IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Range) and dimension.is_integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _ask(trial: optuna.Trial, name: str, dimension: Simple) -> Any:
    asked = _distribution(dimension)
    if isinstance(asked, CategoricalDistribution):
        return trial.suggest_categorical(name, asked.choices)
    if isinstance(asked, IntDistribution):
        value = trial.suggest_int(name, asked.low, asked.high, log=asked.log)
        return 2**value if isinstance(dimension, Powers) else value
    assert isinstance(asked, FloatDistribution)
    return trial.suggest_float(name, asked.low, asked.high, log=asked.log)
