"""The lines of `records.jsonl`, decoded: any line, and the usual one in a tenth of the time."""

import gc
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from raybench.core.errors import UserError
from raybench.core.record import CURVE_KEYS, Evaluation
from raybench.core.text import clean

MOST_DIGITS = 18
"""Of a whole number that 64 bits hold for certain."""
MOST_WHOLE = 10**MOST_DIGITS
LONG_NUMBER = re.compile(rf"[ \[,:-]\d{{{MOST_DIGITS + 1}}}")
MOST_NAMED = 3
"""Lines that the sentence on unreadable ones names."""
TORN: Any = object()
"""What a line holds that is none."""
USUAL_HEAD = '{"kind": "eval", "trial": "'
USUAL_KEYS = ("kind", "trial", *CURVE_KEYS)
USUAL_TYPES = (str, str, *(int if key in ("index", "samples") else float for key in CURVE_KEYS))
"""An `eval` line, but for those with `record_steps`, without a loss, or of the first versions."""


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and contents of a file's JSON lines; a torn last line is left out.

    NaN and infinity are null, and whole numbers beyond 64 bits are no whole numbers.
    """
    texts = texts_of(path)
    for number, text in enumerate(texts, start=1):
        content = decoded(text, is_last=number == len(texts))
        if content is not TORN:
            yield number, content


def texts_of(path: Path) -> list[str]:
    """Return a file's lines; what is no UTF-8 is replaced."""
    if not path.is_file():
        raise UserError(
            f"{path.parent}: holds no {path.name}, so it is not a results folder; name one."
        )
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def left_out(bad: list[tuple[int, str]]) -> str | None:
    """Return the sentence on lines that are no records: number and why of each; None of none."""
    if not bad:
        return None
    named = ", ".join(f"line {number} ({wrong})" for number, wrong in bad[:MOST_NAMED])
    more = f" and {len(bad) - MOST_NAMED:,} more" if len(bad) > MOST_NAMED else ""
    return (
        f"records.jsonl: {named}{more} could not be read and count for nothing here; restore the "
        "file to have them."
    )


def decoded(text: str, *, is_last: bool) -> Any:
    """Return what a JSON line holds; TORN of an empty one, and of a last one that is torn.

    ValueError where it is no JSON.
    """
    if not text:
        return TORN
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        if is_last:  # no newline behind it: the writer was interrupted
            return TORN
        raise ValueError("it is not JSON") from None


def usual_point(text: str) -> tuple[str, Evaluation] | None:
    """Return trial and evaluation of a line as `Evaluation.line` writes nearly all; else None.

    Its keys and types are looked at here, so nothing else checks them: nine of ten lines are such,
    and a study has hundreds of thousands.
    """
    if not text.startswith(USUAL_HEAD):
        return None
    try:
        line: dict[str, Any] = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if tuple(line) != USUAL_KEYS or tuple(map(type, line.values())) != USUAL_TYPES:
        return None
    if line["index"] >= MOST_WHOLE or line["samples"] >= MOST_WHOLE:
        return None
    del line["kind"]
    name = line.pop("trial")
    if not name.isprintable():
        name = clean(name)
    line["ledger"] = {}
    point = object.__new__(Evaluation)  # ten times as fast as its __init__; the rest is default
    object.__setattr__(point, "__dict__", line)
    return name, point


def plain_line(text: str) -> Any:
    """Return what a line holds of which nothing needs cleaning; None of any other.

    No string with an escape in it or what is not printed, no NaN, no whole number that may be
    beyond 64 bits. Infinite numbers are left for the types to find.
    """
    if "\\" in text or not text.isprintable() or LONG_NUMBER.search(text):
        return None
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the collector of cycles rest: records are none, and it would look at all of them often.

    Half of the time of reading 200,000 lines was its, and a quarter of that of their page.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what somebody else has frozen stays so
                gc.freeze()  # all of them are old at once, without being looked at
                gc.unfreeze()
            gc.enable()


def _whole(digits: str) -> int | float | None:
    """Return a JSON number without a point; a column of numbers takes none beyond 64 bits."""
    if len(digits) <= MOST_DIGITS:
        return int(digits)
    beyond = float(digits)
    return beyond if math.isfinite(beyond) else None


DECODER = json.JSONDecoder(parse_int=_whole, parse_constant=lambda name: None)
