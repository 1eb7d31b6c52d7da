import enum
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pydantic import Field

from raybench.spec.documents import (
    Document,
    apply_settings,
    content_of,
    parse_settings,
    parse_yaml,
    plain_data,
    read_mapping,
    to_yaml,
    validate,
)
from raybench.spec.errors import ErrorCode
from raybench.spec.text import identity
from raybench.stats.record import State
from tests.refusals import refused


class Inner(Document):
    width: int = 1


class Outer(Document):
    name: str
    inner: Inner = Inner()
    rates: list[float] = []
    count: int = Field(default=1, gt=0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: 2: 3\n", 2),
        ("a: 1\nb:\n  c: 2\na: 3\n", 4),
        ("b:\n  c: 2\n  c: 3\n", 3),
    ],
)
def test_a_syntax_error_names_file_and_line(text, line):
    with refused(ErrorCode.INVALID_FILE, f"space.yaml, line {line}:") as caught:
        parse_yaml(text, "space.yaml")
    assert "\n" not in str(caught.value)


WORDS = ["yes", "No", "on", "OFF", "y", "1:30", "1_000", "0b11", "2020-01-01", "=", "1e", "1e4x"]
FLOATS = ["1e-4", "1E4", "-3e2", "+3e2", ".5e3", "1.e5", "1.0e-4", "0.1", "-.5", "1.5e3"]
OTHERS = {"0x1F": 31, "0o17": 15, "-12": -12, "0": 0, "-0": 0, "TRUE": True, ".inf": math.inf}


@pytest.mark.parametrize(
    ("text", "value"),
    [*zip(WORDS, WORDS, strict=True), *((text, float(text)) for text in FLOATS), *OTHERS.items()],
)
def test_words_and_numbers_follow_yaml_1_2(text, value):
    for key, parsed in parse_yaml(f"a: {text}\n{text}: b\n", "file").items():
        actual = parsed if key == "a" else key
        assert actual == value
        assert type(actual) is type(value)
    assert parse_yaml(to_yaml({"a": value, "b": text}), "file") == {"a": value, "b": text}


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
    ],
    ids=["windows", "old mac", "mark"],
)
def test_other_line_endings_and_a_byte_order_mark_are_read(tmp_path, encode):
    path = tmp_path / "space.yaml"
    path.write_bytes(encode("# größer\nname: größer\ninner:\n  width: 2\n"))
    assert read_mapping(path) == {"name": "größer", "inner": {"width": 2}}


MULTIPLYING = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
NOT_BUILT = {
    "int": "a: !!int few",
    "float": "a: !!float ''",
    "bool": "a: !!bool maybe",
    "timestamp": "a: !!timestamp x",
    "binary": "a: !!binary ü",
    "mapping": "a: !!map [a]",
    "digits": "a: " + "9" * 5000,
    "open lists": "a: " + "[" * 1000,
    "lists": "a: " + "[" * 400 + "]" * 400,
    "an alias of itself": "a: &a [*a]",
    "aliases that multiply": MULTIPLYING,
}


@pytest.mark.parametrize("name", NOT_BUILT)
def test_values_that_yaml_cannot_build_or_that_are_too_large_are_refused(name):
    with refused(ErrorCode.INVALID_FILE, "space.yaml") as caught:
        parse_yaml(NOT_BUILT[name], "space.yaml")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        ({"nam": "x"}, "UNKNOWN_KEY", ("'nam'", "'name'")),
        ({}, "MISSING", ("'name'",)),
        ({"name": "x", "inner": {"widht": 1}}, "UNKNOWN_KEY", ("widht'", "'width'")),
        ({"name": "x", "count": 0}, "INVALID_VALUE", ("'count'", "0")),
        ({"name": "x", "rates": [1.0, "a"]}, "INVALID_VALUE", ("'rates.1'", "'a'")),
        ({"name": "x", "inner": 3}, "INVALID_VALUE", ("'inner'", "3")),
        ({"name": "x", "a\nb\x1b[31m": 1}, "UNKNOWN_KEY", ("'a b\\x1b[31m'",)),
    ],
)
def test_the_first_invalid_key_is_refused_on_one_line(content, code, names):
    with refused(ErrorCode[code], "f: ", *names) as caught:
        validate(Outer, content, "f")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "result"),
    [
        (["x=2"], {"x": 2, "d": {"k": 1}}),
        (["d.k=[torch]"], {"x": 1, "d": {"k": ["torch"]}}),
        (["d.new.deep=true"], {"x": 1, "d": {"k": 1, "new": {"deep": True}}}),
        (["x=2", "x=3"], {"x": 3, "d": {"k": 1}}),
        (["d.new.deep=1", "d={k: 2}"], {"x": 1, "d": {"k": 2, "new": {"deep": 1}}}),
        (["dataset=mnist"], {"x": 1, "d": {"k": 1}, "dataset": "mnist"}),
        (
            ["dataset=mnist", "dataset.limit=9"],
            {"x": 1, "d": {"k": 1}, "dataset": {"name": "mnist", "limit": 9}},
        ),
    ],
)
def test_settings_change_a_copy(settings, result):
    content = {"x": 1, "d": {"k": 1}}
    assert apply_settings(content, parse_settings(settings)) == result
    assert content == {"x": 1, "d": {"k": 1}}, "the given content is not changed"


class Act(enum.Enum):
    RELU = "relu"


def test_members_of_string_enums_are_written_as_their_values():
    assert to_yaml({"state": State.FAILED}) == to_yaml({"state": "failed"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.logspace(-3, -1, 3), [0.001, 0.01, 0.1]),
        (list(np.arange(1, 4)), [1, 2, 3]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([0.1, 0.2], dtype="float32"), [0.1, 0.2]),
        ((np.bool_(True), np.str_("a"), np.float32(0.1), np.array(3)), [True, "a", 0.1, 3]),
        (pd.Series([1, 2]), [1, 2]),
        (range(4, 8), [4, 5, 6, 7]),
        ({"b", "a"}, ["a", "b"]),
        ([Act.RELU, Path("x/y")], ["relu", "x/y"]),
        ({"low": np.int64(1), "high": np.int64(9)}, {"low": 1, "high": 9}),
    ],
)
def test_python_objects_become_plain_data(value, expected):
    assert identity(plain_data(value, "space")) == identity(expected)


@pytest.mark.parametrize("value", [object(), 1j, b"x", lambda: 1, np.datetime64("2020-01-01")])
def test_unsupported_objects_are_refused_by_key(value):
    with refused(ErrorCode.INVALID_VALUE, "'space.n'"):
        plain_data({"space": {"n": [value]}}, "space")


def test_a_mapping_in_place_of_a_file_becomes_plain_data():
    assert content_of({"n": np.arange(2)}, "space") == ({"n": [0, 1]}, "space")
