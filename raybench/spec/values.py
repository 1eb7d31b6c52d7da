"""Values of settings: conversion from Python objects, comparison, and text for labels."""

import contextlib
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from raybench.spec.errors import ErrorCode, UserError

_WORDS = ("null", "none", "true", "false", "~", ".nan", ".inf", "-.inf", "+.inf")
_MARKS = frozenset("'\"[]{},")


def plain_data(value: Any, source: str, path: str = "") -> Any:
    """Return a copy of a Python value as plain data for YAML or JSON.

    Arrays (NumPy, pandas, torch), tuples, ranges and sets become lists, array scalars numbers,
    paths strings, and members of an enumeration their values.

    Args:
        value: Value from a call of the Python API.
        source: Name of the argument, for error messages.
        path: Keys of the nested mappings that contain the value, each after a dot: `.model.block`.

    Raises:
        UserError: An object, such as another tool's distribution, cannot be converted.
    """
    if isinstance(value, Mapping):
        return {key: plain_data(item, source, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, Enum):
        return plain_data(value.value, source, path)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if hasattr(value, "tolist"):
        plain = value.tolist()
        if isinstance(plain, list):
            return [plain_data(item, source, path) for item in value]
        with contextlib.suppress(ValueError):  # float32 0.1 becomes 0.1, not 0.10000000149011612
            plain = float(str(value)) if isinstance(plain, float) else plain
        value = plain
    if isinstance(value, set | frozenset):  # sorted: the order of a set differs between processes
        return sorted((plain_data(item, source, path) for item in value), key=identity)
    if isinstance(value, list | tuple | range):
        return [plain_data(item, source, path) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind, where = type(value), f"{source}: '{path[1:]}'" if path else source
    raise UserError(
        f"{where}: contains an object of {kind.__module__.partition('.')[0]} "
        f"({kind.__qualname__}); "
        "write plain values: a list, or a range such as {low: 0.001, high: 0.1, log: true}.",
        ErrorCode.INVALID_VALUE,
    )


def identity(value: Any) -> str:
    """Return a string that identifies a value: unlike with `==`, 1, 1.0, true and '1' differ."""
    return json.dumps(to_jsonable_python(value), sort_keys=True)


def short(value: object) -> str:
    """Return a value as text for a label: in YAML syntax, with three or four significant digits.

    Examples: `relu`, `null`, `true`, `1`, `1.0`, `'1'`, `[64,32]`, `{kernel:3,stride:1}`. A
    pydantic model, such as an augmentation, shows the keys that differ from their defaults:
    `random_crop(padding=8)`.
    """
    if isinstance(value, BaseModel):
        fields = value.model_dump(exclude_defaults=True)
        kind = fields.pop("kind", "")
        settings = ",".join(f"{key}={item}" for key, item in fields.items())
        return f"{kind}({settings})" if kind and settings else str(kind or settings)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(short, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{short(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        return _number_text(value)
    if isinstance(value, str):
        return value if _is_word(value) else repr(value)
    return json.dumps(value)


def _number_text(value: float) -> str:
    text = f"{value:.3g}"
    if float(four := f"{value:.4g}") == value:
        text = four
    elif float(text).is_integer():  # show 0.99995, not 1
        text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text


def _is_word(text: str) -> bool:
    """Return whether YAML reads unquoted `text` as the same string."""
    if text != text.strip() or not text.isprintable() or not text or _MARKS & set(text):
        return False
    if text.lower() in _WORDS:
        return False
    for convert in (float, lambda digits: int(digits, 0)):
        with contextlib.suppress(ValueError):
            convert(text)
            return False
    return True
