"""A configuration in one line: what tells it from the others of its study."""

from collections.abc import Iterable, Mapping
from typing import Any

from raybench.core.documents import Document
from raybench.core.spec import RunSpec

BASE_KEYS = ("framework", "num_workers", "batch_size_per_worker", "optimizer", "learning_rate")
"""Keys that every label tells."""


def label_keys(space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the searched keys, in order, that a label must tell beside BASE_KEYS.

    `space` is a study's space as its file has it; a key with one value does not differ.
    """
    return tuple(
        str(key)
        for key, values in space.items()
        if key in RunSpec.model_fields
        and key not in BASE_KEYS
        and not (isinstance(values, list) and _is_one_value(values))
    )


def describe(spec: RunSpec, keys: Iterable[str] = ()) -> str:
    """Return a configuration in one line: framework, workers x batch, optimizer, rate, `keys`.

    `keys` (see `label_keys`) follow with their names: `torch 1x64 adam 0.003 weight_decay 0.01`.
    """
    base = (
        f"{spec.framework} {spec.num_workers}x{spec.batch_size_per_worker} "
        f"{spec.optimizer} {spec.learning_rate:.3g}"
    )
    return " ".join([base, *(f"{key} {short(getattr(spec, key))}" for key in keys)])


def short(value: object) -> str:
    """Return a key's value in a few characters: `flip+random_crop(padding=8)`, `0.5+0.75`."""
    if isinstance(value, list):
        return "+".join(short(one) for one in value) or "none"
    if isinstance(value, Document):  # what of it is not usual
        given = value.model_dump(exclude_defaults=True)
        kind = given.pop("kind", "")
        settings = ",".join(f"{k}={v}" for k, v in given.items())
        return f"{kind}({settings})" if kind and settings else str(kind or settings)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _is_one_value(values: list[Any]) -> bool:
    return len(values) == 1 and not isinstance(values[0], dict)
