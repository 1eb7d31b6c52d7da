"""Configurations of a space that are looked at before it is searched."""

import itertools
from collections.abc import Mapping

from raybench.core.space import Space, known_values, possible_values, resolve, values_of
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec

START_KEYS = ("weights", "frozen_epochs", "sync_batch_norm")
"""Keys that say what a model begins with: a value of theirs may be one that it cannot have."""


def first_values(
    study: StudySpec, space: Space, wanted: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a configuration of the space: the first value of every key, as its cases go.

    Of a key of `wanted` that value, where the values before it allow it.
    """
    values: dict[str, object] = {}
    for key, dimension in space.items():
        possible = possible_values(resolve(dimension, known_values(study.fixed, values)))
        is_wanted = wanted is not None and key in wanted and wanted[key] in possible
        values[key] = wanted[key] if wanted is not None and is_wanted else possible[0]
    return values


def other_starts(study: StudySpec, space: Space, spec: RunSpec) -> list[RunSpec]:
    """Return `spec` with other values that are searched of what a model begins with.

    Each value stands in one of them, not every combination.
    """
    keys = [key for key in START_KEYS if key in space]
    seen, found = {(key, getattr(spec, key)) for key in keys}, []
    for combination in itertools.product(*(values_of(key, space, study.fixed) for key in keys)):
        values = first_values(study, space, dict(zip(keys, combination, strict=True)))
        pairs = {(key, values[key]) for key in keys}
        if not pairs <= seen:
            seen |= pairs
            found.append(spec.model_copy(update={key: values[key] for key in keys}))
    return found
