"""Checks of messages by error code, names and values, independent of their wording."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raybench.spec.errors import ErrorCode, UserError


@contextmanager
def refused(code: ErrorCode, *names: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with a code, whose message contains names and values.

    Args:
        code: The expected code.
        names: Keys, options, files, columns and values; never other words of the message.
    """
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.code is code, f"{caught.value.code}: {caught.value}"
    for name in map(str, names):
        assert name in str(caught.value)


def numbers_in(sentence: str) -> list[float]:
    """Return the numbers of a sentence in order."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", sentence)]


def shortage_in(sentence: str) -> list[str]:
    """Return the counts (with CPU or GPU if given) and hosts of a sentence in order."""
    return re.findall(r"\d+(?: [CG]PUs?)?|host \w+", sentence)
