"""YAML as version 1.2 reads it: text into plain data and back, mistakes with their line.

PyYAML reads 1.1, where `yes`, `on` and `no` are booleans, 1:30 is 90, 1_000 is 1000, 010 is 8
and 1e-4 is text.
"""

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from raybench.core.errors import UserError

MAX_DEPTH = 50
"""Levels of nesting that are read; more is a mistake, or meant to do harm."""
MAX_BYTES = 10_000_000
MAX_NODES = 100_000
"""Values that are read, aliases counted as often as they stand for something."""

_LEADING_ZERO = "!leading-zero"
_RESOLVERS: tuple[tuple[str, str, str], ...] = (  # tag, pattern, possible first characters
    (_LEADING_ZERO, r"[-+]?0[0-9]+", "-+0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader that takes plain words for what YAML 1.2 takes them, and for nothing else."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    # Without dates, bytes and sets: nothing here takes them, and PyYAML's own fall over bad ones.
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq")
    }


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which a reader of YAML 1.1 or 1.2 would take for another."""


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _characters = ["" if character == "\0" else character for character in _first]
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _characters)


def _construct_mapping(loader: _Loader, node: yaml.Node) -> dict[Any, Any]:
    keys = set()
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="!!map is not one", problem_mark=node.start_mark)
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in keys:
            raise yaml.MarkedYAMLError(
                problem=f"the key '{key.value}' stands there twice", problem_mark=key.start_mark
            )
        keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
    return loader.construct_mapping(node, deep=True)


def _refuse_leading_zero(loader: _Loader, node: yaml.ScalarNode) -> None:
    plain = node.value.lstrip("+-0") or "0"
    raise yaml.MarkedYAMLError(
        problem=f"{node.value} is octal for some readers and not for others: write {plain}, or "
        f"'{node.value}' in quotes for text",
        problem_mark=node.start_mark,
    )


def _checked(tag: str, pattern: str) -> None:
    """Let `!!int few` be refused with its line, where PyYAML raises whatever it runs into."""
    construct = yaml.SafeLoader.yaml_constructors[tag]

    def build(loader: _Loader, node: yaml.ScalarNode) -> Any:
        if not re.fullmatch(pattern, str(loader.construct_scalar(node))):
            kind = tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"'{node.value}' is no {kind}", problem_mark=node.start_mark
            )
        return construct(loader, node)

    _Loader.add_constructor(tag, build)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor(_LEADING_ZERO, _refuse_leading_zero)
for _tag, _pattern, _ in _RESOLVERS:
    if _tag in _Loader.yaml_constructors and _tag != _LEADING_ZERO:
        _checked(_tag, _pattern)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML; a syntax error becomes a UserError naming `source` and the line."""
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{source}, line {line}: not valid YAML ({error.problem}).") from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: of Python, for a number of 5,000 digits.
        raise UserError(f"{source}: not valid YAML ({' '.join(str(error).split())}).") from None
    except RecursionError:
        raise UserError(f"{source}: is nested too deep; {MAX_DEPTH} levels are read.") from None
    _refuse_too_much(content, source)
    return content


def _refuse_too_much(content: Any, source: str) -> None:
    """Raise for what is nested too deep, for ever (an alias of itself), or grows by aliases."""
    level, count = [content], 1
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        count += len(level)
        if not level:
            return
        if count > MAX_NODES:
            raise UserError(
                f"{source}: holds more than {MAX_NODES:,} values; is it the right file?"
            )
    raise UserError(f"{source}: is nested too deep; {MAX_DEPTH} levels are read.")


def _inside(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return list(content.values())
    return content if isinstance(content, list) else []


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping: UTF-8, or UTF-16 with its mark; any line ends."""
    try:
        with path.open("rb") as file:  # of a device without end, as of a file, no more than that
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: of a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason}).") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: holds more than {MAX_BYTES:,} bytes; is it the right file?")
    content = parse_yaml(_decode(data, path), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold 'key: value' lines, found {_kind(content)}.")
    return content


def _decode(data: bytes, path: Path) -> str:
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: cannot be read (not a text file in UTF-8: byte 0x{data[error.start]:02x} in "
            f"line {line}); save it as UTF-8."
        ) from None


def to_yaml(content: dict[str, Any], *, in_lines: bool = True) -> str:
    """Render a mapping as YAML in the order given; not `in_lines`: all of it in one."""
    return yaml.dump(
        content,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if in_lines else True,
        width=80 if in_lines else math.inf,
    )


def _kind(content: object) -> str:
    names = {list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(content), type(content).__name__)
