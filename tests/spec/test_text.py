"""Text from outside is cleaned of control characters; values have distinct labels."""

import pickle
import time

import pytest

from raybench.spec.documents import parse_yaml
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec, describe
from raybench.spec.text import clean, identity, seconds_text, short


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain, ü 漢 😀 [/foo] :smile:", "plain, ü 漢 😀 [/foo] :smile:"),
        ("a\nb", "a b"),
        ("a \r\n\n\t b", "a b"),
        ("a\u2028b\u2029c\x85d\x1ce", "a b c d e"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://e\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jx\x9d0;t\x9cy", "xy"),
        ("\x1b]never ends", "never ends"),
        ("nul\x00 bell\x07 del\x7f back\x08", "nul bell del back"),
        ("caf\udce9", "caf\ufffd"),
        ("safe\u202etxt.exe\u2066", "safetxt.exe"),
    ],
)
def test_clean(text, cleaned):
    assert clean(text) == cleaned


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.346, "12.35"),
        (0.1, "0.10"),
        (0.0949, "0.095"),
        (0.01, "0.010"),
        (0.00123, "0.0012"),
        (2e-6, "0.0000020"),
        (0.0, "0.00"),
        (-0.001, "-0.00"),
        (float("inf"), "inf"),
    ],
)
def test_seconds_below_a_tenth_have_two_significant_digits(seconds, text):
    assert seconds_text(seconds) == text


def test_every_character_is_safe_to_print_and_write():
    every = "".join(map(chr, range(0x3000))) + "".join(map(chr, range(0xD7F0, 0xE010)))
    for text in (every, every[::-1], *(f"a\x1b{chr(n)}b" for n in range(256))):
        cleaned = clean(text)
        cleaned.encode()
        assert clean(cleaned) == cleaned
        assert not [c for c in cleaned if ord(c) < 32 or 127 <= ord(c) < 160]
        assert len(cleaned.splitlines()) <= 1


@pytest.mark.parametrize(
    "part", [" ", "\n", "\x1b", "\x1b]", "\x9d", "\x1b[0", "\t", "a \n", "\ud800"]
)
def test_long_texts_are_cleaned_in_linear_time(part):
    began = time.process_time()
    clean(part * 100_000 + "\x00")
    assert time.process_time() - began < 20.0


def test_a_message_is_one_printable_line():
    error = UserError("a\nb\t\x1b[31m \udce9 größer", ErrorCode.CONFLICT)
    assert str(error) == "a b \\x1b[31m \\udce9 größer"
    assert str(error).isprintable()


def test_details_survive_pickling_and_are_optional():
    error = pickle.loads(pickle.dumps(UserError("short", ErrorCode.CONFLICT, "long\ntext")))
    assert (str(error), error.code, error.details) == ("short", ErrorCode.CONFLICT, "long\ntext")
    assert UserError("short", ErrorCode.CONFLICT).details is None


ALIKE = [None, "", "None", "null", "1", 1, 1.0, True, "true", "1.0", [1], "[1]", [], {}, [None]]
ALIKE += [{"a": 1}, {"a": 1.0}, "nan", 1e300, "inf", " ", "a, b", ["a", "b"], "~", "it's"]


def test_values_that_look_alike_stay_distinct():
    assert len({*map(short, ALIKE)}) == len({*map(identity, ALIKE)}) == len(ALIKE)
    specs = [RunSpec(model={"n": value}) for value in ALIKE]
    assert all((a == b) == (a is b) for a in specs for b in specs)
    assert len({describe(spec, ["model.n"]) for spec in specs}) == len(ALIKE)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (None, "null"),
        (True, "true"),
        ("relu", "relu"),
        ("max pool", "max pool"),
        ("1", "'1'"),
        (0.9999, "0.9999"),
        (0.99995, "0.99995"),
        (0.0123456, "0.0123"),
        ({"kernel": 3, "act": None}, "{kernel:3,act:null}"),
    ],
)
def test_labels_are_yaml(value, label):
    assert short(value) == label


def test_labels_are_read_back_as_the_same_value():
    for value in (None, True, 1, 1.0, 0.25, "relu", "1", "null", "", "1e3"):
        assert identity(parse_yaml(short(value), "label")) == identity(value)
