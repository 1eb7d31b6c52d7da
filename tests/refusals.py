"""What tests expect of a sentence: its error code, and the names and values that it is about."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raybench.spec.errors import ErrorCode, UserError


@contextmanager
def refused(code: ErrorCode, *names: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with this code, whose sentence has these names and values.

    Args:
        code: The code.
        names: Keys, options, files, columns and values; never words of the sentence.
    """
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.code is code, f"{caught.value.code}: {caught.value}"
    for name in map(str, names):
        assert name in str(caught.value)


def numbers_in(sentence: str) -> list[float]:
    """Return the numbers of a sentence in order, whatever words stand between them."""
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", sentence)]


def shortage_in(sentence: str) -> list[str]:
    """Return counts (with CPU or GPU where it stands there) and hosts of a sentence in order."""
    return re.findall(r"\d+(?: [CG]PUs?)?|host \w+", sentence)
