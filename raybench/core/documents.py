"""YAML files into validated models, and validation errors into one sentence."""

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from raybench.core.errors import UserError

Model = TypeVar("Model", bound="Document")


class Document(BaseModel):
    """Base of everything that is read from a file: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True
    )


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-4` as a number (YAML 1.2), where PyYAML reads a string."""


def _mapping_without_duplicates(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.MarkedYAMLError(
                problem=f"the key '{key}' stands there twice", problem_mark=node.start_mark
            )
    return loader.construct_mapping(node, deep=True)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which `_Loader` would read as a number."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)$"),
        list("-+0123456789."),
    )
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML; a syntax error becomes a UserError naming `source` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{source}, line {line}: not valid YAML ({error.problem}).") from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: PyYAML's own, for a date such as 2020-13-45.
        raise UserError(f"{source}: not valid YAML ({' '.join(str(error).split())}).") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(f"{path}: cannot be read ({reason}).") from None
    content = parse_yaml(text, str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold 'key: value' lines, found {_kind(content)}.")
    return content


def to_yaml(content: dict[str, Any]) -> str:
    """Render a mapping as YAML in the order given."""
    return yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
    )


def validate(model: type[Model], content: dict[str, Any], source: str) -> Model:
    """Build `model` from parsed YAML; the first problem becomes a one-sentence UserError."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(_sentence(error.errors()[0], model, content, source)) from None


def _sentence(
    detail: ErrorDetails, model: type[BaseModel], content: dict[str, Any], source: str
) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path) or "the whole file"
    if detail["type"] == "extra_forbidden":
        allowed = _keys_at(model, path[:-1])
        close = difflib.get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"allowed are {', '.join(allowed)}."
        return f"{source}: unknown key '{key}'; {hint}"
    if detail["type"] == "missing":
        return f"{source}: the key '{key}' is required."
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if not message[1:2].isupper() else message
    shown = "" if isinstance(detail["input"], dict) else f" (found {detail['input']!r})"
    return f"{source}: '{key}': {message.rstrip('.')}{shown}."


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return list(model.model_fields)


def _kind(content: object) -> str:
    names = {list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(content), type(content).__name__)


def apply_settings(content: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Return `content` with every `--set key.sub=value` applied (values are YAML)."""
    result: dict[str, Any] = _copy(content)
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set {setting}: write it as key=value, for example optimizer=lamb.")
        target = result
        *parents, last = key.strip().split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UserError(f"--set {setting}: '{parent}' holds no keys of its own.")
        target[last] = parse_yaml(text, f"--set {key}")
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
