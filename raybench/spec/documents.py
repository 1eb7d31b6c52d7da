"""Reads YAML files and Python values into validated pydantic models; every problem becomes a
one-sentence `UserError`.

YAML is read by the rules of version 1.2. PyYAML itself follows 1.1, where `yes`, `on` and `no` are
booleans, 1:30 is 90, 1_000 is 1000, 010 is 8 and 1e-4 is a string.
"""

import contextlib
import copy
import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from raybench.spec.errors import ErrorCode, UserError, did_you_mean, removed
from raybench.spec.text import identity

MAX_DEPTH, MAX_BYTES, MAX_NODES = 50, 10_000_000, 100_000
"""Limits on a file: levels of nesting, bytes, and values (every use of a YAML alias counts). They
are needed because a path may name an endless device or a file of weights, and because nested
aliases may fill the memory."""
_PLAIN = (str, int, float, type(None))

_RESOLVERS: tuple[tuple[str, str, str], ...] = (  # tag, pattern, possible first characters
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader that resolves plain scalars by the rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes strings which YAML 1.1 or 1.2 would read as another type."""


_Dumper.add_multi_representer(StrEnum, lambda dumper, member: dumper.represent_str(member.value))
for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _characters = ["" if character == "\0" else character for character in _first]
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _characters)


def _construct_mapping(loader: _Loader, node: yaml.Node) -> dict[Any, Any]:
    keys = set()
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(
            problem="!!map on a value that is not a mapping", problem_mark=node.start_mark
        )
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in keys:
            raise yaml.MarkedYAMLError(
                problem=f"duplicate key '{key.value}'", problem_mark=key.start_mark
            )
        keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text.

    Args:
        text: The text.
        source: Name of the file or option that the text comes from, for error messages.

    Raises:
        UserError: The text has a syntax error (the message names the line), or exceeds MAX_DEPTH or
            MAX_NODES.
    """
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(
            f"{source}, line {line}: not valid YAML ({error.problem}).", ErrorCode.INVALID_FILE
        ) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # `!!int few`
        raise UserError(
            f"{source}: not valid YAML ({' '.join(str(error).split())}).", ErrorCode.INVALID_FILE
        ) from None
    except RecursionError:
        raise _too_deep(source) from None
    _refuse_too_much(content, source)
    return content


def _too_deep(source: str) -> UserError:
    return UserError(f"{source}: is nested deeper than {MAX_DEPTH} levels.", ErrorCode.INVALID_FILE)


def _refuse_too_much(content: Any, source: str) -> None:
    """Raise UserError if parsed YAML has too many values, or is nested too deeply because, for
    example, an alias contains itself."""
    level, count = [content], 1
    for _ in range(MAX_DEPTH):
        containers = [item.values() if isinstance(item, dict) else item for item in level]
        level = [inner for item in containers if not isinstance(item, _PLAIN) for inner in item]
        count += len(level)
        if count > MAX_NODES:
            raise UserError(
                f"{source}: holds more than {MAX_NODES:,} values; is it the right file?",
                ErrorCode.INVALID_FILE,
            )
    if level:
        raise _too_deep(source)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file in UTF-8 that contains a mapping.

    Raises:
        UserError: The file cannot be read, is too large, or contains no mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: the path has a null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason}).", ErrorCode.NOT_FOUND) from None
    if len(data) > MAX_BYTES:
        raise UserError(
            f"{path}: holds more than {MAX_BYTES:,} bytes; is it the right file?",
            ErrorCode.INVALID_FILE,
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: cannot be read (not a text file in UTF-8: byte 0x{data[error.start]:02x} in "
            f"line {line}); save it as UTF-8.",
            ErrorCode.INVALID_FILE,
        ) from None
    content = parse_yaml(text, str(path))
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: must contain 'key: value' lines, found {content!r:.40}.",
            ErrorCode.INVALID_FILE,
        )
    return content


def content_of(
    document: "str | Path | dict[str, Any] | Document", name: str
) -> tuple[dict[str, Any], str]:
    """Return the content of a file or document as plain data.

    Args:
        document: Path of a file, path of a results folder (whose best.yaml is read), or the content
            itself.
        name: Name for error messages if `document` is not a path.

    Returns:
        The content, and the name to use in error messages: the path of the file, or `name`.
    """
    if isinstance(document, Document):
        return document.model_dump(mode="json", exclude_unset=True), name
    if isinstance(document, dict):
        return plain_data(document, name), name
    path = Path(document)
    path = best if (best := path / "best.yaml").is_file() else path
    return read_mapping(path), str(path)


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


def to_yaml(content: dict[str, Any], *, in_lines: bool = True) -> str:
    """Return a mapping as YAML text that keeps the order of the keys.

    Args:
        content: The mapping.
        in_lines: Whether to write each key on its own line; otherwise, all on a single line.
    """
    return yaml.dump(
        content,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if in_lines else True,
        width=80 if in_lines else math.inf,
    )


Model = TypeVar("Model", bound="Document")

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Document(BaseModel):
    """Base class of the pydantic models of files and options.

    Models are frozen and strict, and do not allow unknown keys or NaN.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def document(self) -> dict[str, Any]:
        """Return the model as plain data with all keys, including keys that have their default."""
        return self.model_dump(mode="json")


def validate(model: type[Model], content: dict[str, Any], source: str) -> Model:
    """Build `model` from parsed YAML; raise a one-sentence UserError for the first problem.

    Unknown keys are reported before missing keys, because an unknown key may be a missing key that
    is misspelled. If a key accepts a number or a mapping, and its value is an invalid mapping, the
    error names the problem inside the mapping and does not ask for a number. A UserError that a
    validator raises is passed on unchanged.

    Args:
        model: Model to build.
        content: Parsed YAML.
        source: Name of the file, for error messages.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        detail = min(
            error.errors(),
            key=lambda item: (item["type"] != "extra_forbidden", item["type"] == "float_type"),
        )
        if isinstance(problem := detail.get("ctx", {}).get("error"), UserError):
            raise problem from None
        raise _refusal(detail, model, source) from None


def validate_key(model: type[Model], key: str, value: Any, source: str) -> Any:
    """Return the validated value of a single key of `model`, without validating other keys.

    Args:
        model: Model that has the key.
        key: The key, which may be dotted: `model.width`.
        value: Value to validate. It is returned unchanged if only its combination with the defaults
            of other keys is invalid.
        source: Name of the file, for error messages.

    Raises:
        UserError: The value is invalid.
    """
    parent, _, name = key.partition(".")
    try:
        validated = getattr(
            model.model_validate({parent: {name: value} if name else value}), parent
        )
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"][:1] == (parent,):
                raise _refusal(detail, model, source) from None
        return value
    return validated.get(name) if name else validated


def flat_keys(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as a single mapping with dotted keys such as `objective.target`."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= flat_keys(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def problem_of(detail: ErrorDetails) -> str:
    """Return pydantic's message about a problem as the end of a sentence, without a period."""
    if detail["type"] == "model_type":
        return "must be a mapping of keys to values"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if not message[1:2].isupper() else message
    return message.rstrip(".")


def _refusal(detail: ErrorDetails, model: type[BaseModel], source: str) -> UserError:
    """Return the UserError for an error of pydantic."""
    # For unions, pydantic puts the type into the path as if it were a key.
    kinds = re.compile(r"constrained-.*|dict\[.*|float|list|dict")
    path = [part for part in map(str, detail["loc"]) if not kinds.fullmatch(part)]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        if (problem := removed(f"key {key}") or removed(f"key {path[-1]}")) is not None:
            return UserError(f"{source}: '{key}' {problem}.", ErrorCode.REMOVED)
        full_key = key_in_section(model, key)
        hint = (
            f"did you mean '{full_key}'?"
            if full_key
            else did_you_mean(path[-1], _keys_at(model, path[:-1]))
        )
        return UserError(f"{source}: unknown key '{key}'; {hint}", ErrorCode.UNKNOWN_KEY)
    if detail["type"] == "missing":
        return UserError(f"{source}: the key '{key}' is required.", ErrorCode.MISSING)
    found_text = "" if isinstance(detail["input"], dict) else f" (found {detail['input']!r:.80})"
    where = f"{source}: '{key}'" if key else source
    # raybench's validators raise PydanticCustomError with an ErrorCode as its type.
    code = next(
        (known_code for known_code in ErrorCode if known_code == detail["type"]),
        ErrorCode.INVALID_VALUE,
    )
    return UserError(f"{where}: {problem_of(detail)}{found_text}.", code)


def key_in_section(model: type[BaseModel], key: str) -> str | None:
    """Return the dotted form of a key that was given without its section of the file.

    Args:
        model: Model of the file.
        key: Key without its section, such as `target`.

    Returns:
        The key with its section, such as `objective.target`; None if no section has this key.
    """
    for name, field in model.model_fields.items():
        section = field.annotation
        if (
            isinstance(section, type)
            and issubclass(section, BaseModel)
            and key in section.model_fields
        ):
            return f"{name}.{key}"
    return None


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return list(model.model_fields)


def parse_settings(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Parse `KEY=VALUE` strings, whose values are YAML, into a dict.

    The order of the keys matters: if a key occurs twice, its last value and last position are used.

    Args:
        texts: The strings, as given to an option.
        option: Name of the option, for error messages.

    Raises:
        UserError: A string has no `=`, no key, or a value that is not YAML.
    """
    settings: dict[str, Any] = {}
    for setting in texts:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            raise UserError(
                f"{option} {setting}: write it as key=value, for example optimizer=lamb.",
                ErrorCode.INVALID_OPTION,
            )
        name = key.strip()
        settings.pop(name, None)
        settings[name] = parse_yaml(text, f"{option} {key}")
    return settings


def apply_settings(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a file's content with `settings` (values by dotted key) applied."""
    for key, value in sections_first(settings):
        content = with_key(content, key, value, f"--set {key}")
    return content


def sections_first(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the keys and values with whole sections (`objective`) before single keys
    (`objective.target`).

    Otherwise, a section given by `--set` would overwrite keys set by options such as `--target`.
    """

    def is_section(key: str) -> bool:
        return any(other.startswith(f"{key}.") for other in settings)

    return sorted(settings.items(), key=lambda item: not is_section(item[0]))


def with_key(content: dict[str, Any], key: str, value: Any, source: str) -> dict[str, Any]:
    """Return a copy of `content` with the dotted key `key` set to `value`.

    Args:
        content: Nested mappings; mappings that are missing on the path to the key are created.
        key: Dotted key, such as `objective.target`.
        value: Value of the key.
        source: Start of error messages, such as the option that sets the key.

    Raises:
        UserError: The key names an entry inside a value that is not a mapping.
    """
    result = copy.deepcopy(content)
    target = result
    *parents, last_part = key.split(".")
    for parent in parents:
        if parent == "dataset" and isinstance(target.get(parent), str):
            target[parent] = {"name": target[parent]}  # `dataset: mnist` is short for its name
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(
                f"{source}: '{parent}' is a single value and has no keys.", ErrorCode.UNKNOWN_KEY
            )
    target[last_part] = value
    return result
