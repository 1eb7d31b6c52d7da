"""Columns of any type as numbers or texts."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.float64]
US_PER_DAY = 86.4e9
LARGEST = 1e100
"""Numbers beyond are mistakes, or codes for something else: their squares are beyond floats."""


def is_number_type(kind: Any) -> bool:
    """Whether values of a type of pyarrow are numbers, or as good as: dates, yes and no."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_temporal(kind)
        or types.is_null(kind)
    )


def as_numbers(values: Any) -> Numbers:
    """Return a `pyarrow.Array` of such a type as float64: NaN where a value is missing or infinite.

    Dates are days since 1970, times of day and durations days; yes is 1, no is 0.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_temporal(kind):
        values = pc.divide(_microseconds(values).cast(pa.float64()), US_PER_DAY)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    is_finite = np.isfinite(numbers)
    return numbers if is_finite.all() else np.where(is_finite, numbers, np.nan)


def _microseconds(values: Any) -> Any:
    kind = values.type
    if pa.types.is_duration(kind):
        return values.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if pa.types.is_time(kind):
        return values.cast(pa.time64("us"), safe=False).cast(pa.int64())
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    return values.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())


def is_too_large(values: Any) -> npt.NDArray[np.bool_]:
    """Return which values of a `pyarrow.Array` of numbers are infinite, or nearly."""
    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), np.bool_)
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.abs(numbers) > LARGEST  # type: ignore[no-any-return]


def as_texts(values: Any) -> Any:
    """Return a `pyarrow.Array` as texts without spaces at their ends, null where there is none."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # pyarrow compares none of 16 bits
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        whole = values.cast(pa.int64(), safe=False)
        # 3, not 3.0: what a missing value makes of whole numbers. Each by itself: another part of
        # the column, or another split, may have no fraction.
        is_whole = pc.equal(whole.cast(values.type), values)
        values = pc.if_else(is_whole, whole.cast(pa.string()), values.cast(pa.string()))
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
