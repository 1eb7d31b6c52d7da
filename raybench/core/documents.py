"""Plain data into validated models, and validation errors into one sentence."""

import difflib
import math
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from raybench.core.errors import UserError
from raybench.core.yaml_files import parse_yaml as parse_yaml
from raybench.core.yaml_files import read_mapping as read_mapping
from raybench.core.yaml_files import to_yaml as to_yaml

Model = TypeVar("Model", bound="Document")

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

SHORT_FORMS = {"dataset": "name"}
"""Keys that may be one word, and what of theirs it is: `dataset: mnist` is `{name: mnist}`."""
OTHER_NAMES = {"exchange_every": "accumulate"}
"""Other names of run-spec keys, and the keys."""
FLOAT32_MAX, FLOAT32_MIN = 3.4e38, 1.2e-38
"""Bounds of what float32, in which all training happens, holds at full precision."""


class Document(BaseModel):
    """Base of everything that is read from a file: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True
    )


def validate(model: type[Model], content: dict[str, Any], source: str) -> Model:
    """Build `model` from parsed YAML; the first problem becomes a one-sentence UserError."""
    _check_numbers(content, source)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(_sentence(error.errors()[0], model, source)) from None


def validate_key(model: type[Model], key: str, value: Any, source: str) -> Any:
    """Return `value` as `model` holds it; UserError if it cannot, whatever its other keys are."""
    _check_numbers({key: value}, source)
    try:
        return getattr(model.model_validate({key: value}), key)
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"][:1] == (key,):
                raise UserError(_sentence(detail, model, source)) from None
    return value


def one_name_each(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` with the keys of OTHER_NAMES by their own names.

    Raises ValueError where both names of a key stand there, with different values.
    """
    for other, name in OTHER_NAMES.items():
        if other not in content:
            continue
        value = content[other]
        if name in content and content[name] != value:
            raise ValueError(
                f"{other} and {name} are one key, here with {value!r} and {content[name]!r}; "
                "keep one of them"
            )
        content = {key: found for key, found in content.items() if key != other} | {name: value}
    return content


def problem_of(detail: ErrorDetails) -> str:
    """Return what pydantic found, as the end of a sentence without its full stop."""
    if detail["type"] == "model_type":
        return "must hold keys of its own"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if not message[1:2].isupper() else message
    return message.rstrip(".")


def number_problem(value: Any) -> str:
    """Return why no machine holds this number, or nothing."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "is a number beyond 64 bits; name a smaller one"
    if isinstance(value, float) and math.isfinite(value):
        if abs(value) > FLOAT32_MAX:
            return f"is beyond float32, which ends at {FLOAT32_MAX:g}; name a smaller number"
        if 0 < abs(value) < FLOAT32_MIN:
            return f"is 0 in float32, which begins at {FLOAT32_MIN:g}; name a larger number, or 0"
    return ""


def _check_numbers(content: dict[str, Any], source: str) -> None:
    todo: list[tuple[str, Any]] = [("", content)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{path}.{key}", inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list | tuple):
            todo += [(f"{path}.{index}", inner) for index, inner in enumerate(value)][::-1]
        elif problem := number_problem(value):
            raise UserError(f"{source}: '{path[1:]}': {_shown(value)} {problem}.")


def _sentence(detail: ErrorDetails, model: type[BaseModel], source: str) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path) or "the whole file"
    if detail["type"] == "extra_forbidden":
        allowed = _keys_at(model, path[:-1])
        close = difflib.get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"allowed are {', '.join(allowed)}."
        return f"{source}: unknown key '{key}'; {hint}"
    if detail["type"] == "missing":
        return f"{source}: the key '{key}' is required."
    shown = "" if isinstance(detail["input"], dict) else f" (found {_shown(detail['input'])})"
    return f"{source}: '{key}': {problem_of(detail)}{shown}."


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # of an int with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return list(model.model_fields)


def apply_settings(content: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Return `content` with every `--set key.sub=value` applied (values are YAML)."""
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set {setting}: write it as key=value, for example optimizer=lamb.")
        value = parse_yaml(text, f"--set {key}")
        content = with_key(content, key.strip(), value, f"--set {setting}")
    return content


def with_key(content: dict[str, Any], key: str, value: Any, source: str) -> dict[str, Any]:
    """Return `content` with the value of a key, dotted where it lies deeper."""
    result: dict[str, Any] = _copy(content)
    target = result
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(target.get(parent), str) and parent in SHORT_FORMS:
            target[parent] = {SHORT_FORMS[parent]: target[parent]}
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"{source}: '{parent}' holds no keys of its own.")
    name = OTHER_NAMES.get(last, last)
    for other in [other for other, of in OTHER_NAMES.items() if of == name]:
        target.pop(other, None)  # what a file calls it is overridden too
    target[name] = value
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
