"""From a space to a configuration, asked of Optuna define-by-run."""

from typing import Any

import optuna

from raybench.core.space import Cases, Choices, Powers, Range, Simple, Space


def propose(trial: optuna.Trial, space: Space, fixed: dict[str, Any]) -> dict[str, Any]:
    """Return one value for every key of the space.

    A case has a name of its own (`learning_rate [optimizer=lars]`), because ranges of
    different optimizers are different parameters to the sampler. A power of two is proposed
    by its exponent, so that the sampler knows 64 to lie between 32 and 128.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases):
            case = dimension.choose(fixed | values)
            values[key] = _ask(trial, f"{key} [{case.label()}]", case.dimension)
        else:
            values[key] = _ask(trial, key, dimension)
    return values


def encode(space: Space, fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return what `propose` asks Optuna for, where the answer shall be `values`.

    Keys that are missing in `values` are left for the sampler.
    """
    params: dict[str, Any] = {}
    for key, value in values.items():
        dimension, name = space[key], key
        if isinstance(dimension, Cases):
            case = dimension.choose(fixed | values)
            dimension, name = case.dimension, f"{key} [{case.label()}]"
        if isinstance(dimension, Powers):
            params[f"log2 {name}"] = int(value).bit_length() - 1
        else:
            params[name] = value
    return params


def _ask(trial: optuna.Trial, name: str, dimension: Simple) -> Any:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, list(dimension.values))
    if isinstance(dimension, Powers):
        exponents = [value.bit_length() - 1 for value in dimension.values()]
        return 2 ** trial.suggest_int(f"log2 {name}", exponents[0], exponents[-1])
    if isinstance(dimension, Range) and dimension.is_integer:
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.log)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
