"""Columns of a table as features, by statistics of the training rows alone.

What is learnt of a column is an encoder, plain data: a saved model makes new rows into the same
features by it.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.sources.table import as_numbers, as_texts, is_number

Out = npt.NDArray[np.float32]
"""(rows, width) of one column's features, to be written to."""
MAX_LEVELS = 128
"""Names of a column that get a feature each, the most frequent ones."""
MAX_COUNTED = 1_000_000
"""Different names of a column that are counted; beyond, others are as names that are unseen."""
ID_SHARE = 0.5
"""Different names to rows beyond which a column says who, not what."""
NUMBER_SHARE = 0.9
"""Rows of a column of texts that are numbers beyond which the others are taken for mistakes."""
NUMBER_AS_TEXT = re.compile(r"[-+(]?\s*[$€£¥]?\s*\d[\d,. ]*\s*[%$€£¥)]*$")
MAX_SHAPES = 20_000
"""Names of a column that are looked at for numbers."""
SHOWN = 40
"""Characters of a text that a sentence shows."""


@dataclass(frozen=True, kw_only=True)
class NumberEncoder:
    """Numbers, dates, yes and no: (value - offset) / scale."""

    name: str
    mean: float
    """Of the training rows: what is missing is taken for it."""
    offset: float
    scale: float
    has_missing: bool
    """Whether training rows lacked some, so that a second feature says so."""

    @property
    def features(self) -> list[str]:
        """Names of what the column becomes."""
        return [self.name, f"{self.name} missing"] if self.has_missing else [self.name]

    def write(self, values: Any, out: Out) -> None:
        """Write the features of any rows (`pyarrow.Array`)."""
        numbers = as_numbers(values)
        is_missing = np.isnan(numbers)
        out[:, 0] = (np.where(is_missing, self.mean, numbers) - self.offset) / self.scale
        if self.has_missing:
            out[:, 1] = is_missing


@dataclass(frozen=True, kw_only=True)
class NameEncoder:
    """Names: a feature for each of `own`; where there are others one for these, and the frequency
    of all."""

    name: str
    own: list[str | None]
    """Names with a feature each; None is no name."""
    known: list[str]
    """All names of the training rows, the most frequent first."""
    frequency: list[float]
    """Of each known name, and of one that is unknown; empty where `own` are all."""
    has_none: bool
    """Whether training rows lacked a name."""

    @property
    def features(self) -> list[str]:
        """Names of what the column becomes."""
        own = [f"{self.name}={'' if name is None else name}" for name in self.own]
        return own + [f"{self.name}=another", f"{self.name} frequency"] * bool(self.frequency)

    def write(self, values: Any, out: Out) -> None:
        """Write the features of any rows (`pyarrow.Array`)."""
        texts = as_texts(values)
        found = pc.fill_null(pc.index_in(texts, value_set=self._value_set), len(self.known))
        numbers = np.asarray(found).astype(np.int64)
        places = np.where(np.asarray(texts.is_null()), self._place_of_none, self._places[numbers])
        out[:] = 0
        rows = np.flatnonzero(places >= 0)
        out[rows, places[rows]] = 1
        if self.frequency:
            out[:, len(self.own) + 1] = np.asarray(self.frequency)[numbers]

    @cached_property
    def _value_set(self) -> Any:
        return pa.array(self.known, pa.string())

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        place = {name: number for number, name in enumerate(self.own)}
        places = [place.get(name, len(self.own)) for name in self.known]
        # Last, for what no training row has: no feature of its own.
        return np.array([*places, -1], np.int64)

    @property
    def _place_of_none(self) -> int:
        if None in self.own:
            return self.own.index(None)
        return len(self.own) if self.has_none else -1


Encoder = NumberEncoder | NameEncoder
KINDS: dict[str, type[NumberEncoder] | type[NameEncoder]] = {
    "number": NumberEncoder,
    "name": NameEncoder,
}


def document_of(encoder: Encoder) -> dict[str, Any]:
    """Return an encoder as plain data for JSON."""
    kind = next(kind for kind, one in KINDS.items() if isinstance(encoder, one))
    return {"kind": kind, **asdict(encoder)}


def encoder_of(document: Mapping[str, Any]) -> Encoder:
    """Return the encoder that `document_of` has described."""
    content = dict(document)
    return KINDS[content.pop("kind")](**content)


class NotUsed(Exception):  # noqa: N818 (not an error: the column is left out)
    """A column that nothing can be learnt from; the message ends a sentence that names it."""


class Quantity:
    """Learns a column of numbers, dates, yes and no: less the mean, by the standard deviation.

    What is missing is the mean, and a second feature says so where training rows lack any. Yes
    and no stay 1 and 0.
    """

    def __init__(self, name: str, *, is_flag: bool = False, counted_rows: int = 0) -> None:
        """`counted_rows`: of the table, where whole numbers may only count them; else 0."""
        self.name, self._is_flag = name, is_flag
        self._counted_rows, self._last = counted_rows, -np.inf
        self._count, self._missing = 0, 0
        self._mean, self._squares = 0.0, 0.0
        self._low, self._high = np.inf, -np.inf

    def see(self, values: Any) -> None:
        """Take the values of some training rows, in order (`pyarrow.Array`)."""
        numbers = as_numbers(values)
        known = numbers[~np.isnan(numbers)]
        self._missing += len(numbers) - len(known)
        if not len(known):
            return
        if self._counted_rows:
            steps = np.diff(known, prepend=self._last)
            self._counted_rows *= bool((steps > 0).all())  # 0 as soon as one does not go up
            self._last = float(known[-1])
        # Chan's way to join the moments of parts: no square of a large mean is taken.
        mean = float(known.mean())
        gap, total = mean - self._mean, self._count + len(known)
        self._squares += float(((known - mean) ** 2).sum())
        self._squares += gap * gap * self._count * len(known) / total
        self._mean += gap * len(known) / total
        self._count = total
        self._low = min(self._low, float(known.min()))
        self._high = max(self._high, float(known.max()))

    def finish(self) -> NumberEncoder:
        """Return the encoder; NotUsed for a column that says nothing."""
        if not self._count:
            raise NotUsed("has no values")
        if self._low == self._high and not self._missing:
            raise NotUsed(f"is {self._low:g} in every training row")
        if self._high - self._low < self._counted_rows and not self._missing:
            raise NotUsed("counts the rows; if it is more, name it in dataset.columns")
        deviation = float(np.sqrt(self._squares / self._count))
        return NumberEncoder(
            name=self.name,
            mean=self._mean,
            offset=0.0 if self._is_flag else self._mean,
            scale=1.0 if self._is_flag or not deviation > 0 else deviation,
            has_missing=bool(self._missing),
        )

    @property
    def missing_share(self) -> float:
        """Share of the training rows that have no value."""
        return self._missing / (self._missing + self._count)


class Names:
    """Learns a column of texts (or codes named in `dataset.categories`): a feature for each name.

    Of more than MAX_LEVELS names the most frequent have their own, all others share one, and
    another feature says how frequent a name is: log of its share, standardised. A name that no
    training row has is none of them; nothing is a name of its own where training rows have it.
    """

    def __init__(self, name: str, *, is_asked: bool = False) -> None:
        """`is_asked`: the user has named the column, so that it cannot be left out."""
        self.name, self._is_asked = name, is_asked
        self._counts: Counter[str | None] = Counter()
        self._rows = 0

    def see(self, values: Any) -> None:
        """Take the values of some training rows (`pyarrow.Array`)."""
        texts = as_texts(values)
        self._rows += len(texts)
        for count in pc.value_counts(texts).to_pylist():
            if len(self._counts) < MAX_COUNTED or count["values"] in self._counts:
                self._counts[count["values"]] += count["counts"]

    def finish(self) -> NameEncoder:
        """Return the encoder; NotUsed for a column that says nothing."""
        counts = self._counts
        frequent = sorted(counts, key=lambda name: (-counts[name], name or ""))
        known = [name for name in frequent if name is not None]
        if not known:
            raise NotUsed("has no values")
        if len(counts) == 1:
            raise NotUsed(f"is '{known[0]}' in every training row")
        if len(known) > max(MAX_LEVELS, ID_SHARE * self._rows) and not self._is_asked:
            written = number_as_text(known)
            if written is not None:
                raise NotUsed(f"holds numbers written as texts ('{written}'); write them as 1234.5")
            raise NotUsed(
                f"has a text of its own in most rows ({len(known):,} in {self._rows:,}, such as "
                f"'{max(known)[:SHOWN]}'); if these are texts to learn from, name it in "
                "dataset.text"
            )
        shares = np.array([counts[name] for name in known]) / self._rows
        logs = np.log(shares)
        mean = float((shares * logs).sum() / shares.sum())
        deviation = float(np.sqrt((shares * (logs - mean) ** 2).sum() / shares.sum())) or 1.0
        frequency = np.append((logs - mean) / deviation, (logs.min() - mean) / deviation)
        return NameEncoder(
            name=self.name,
            own=frequent[:MAX_LEVELS],
            known=known,
            frequency=frequency.tolist() if len(frequent) > MAX_LEVELS else [],
            has_none=None in counts,
        )

    @property
    def missing_share(self) -> float:
        """Share of the training rows that have no name."""
        return self._counts[None] / self._rows

    @property
    def num_names(self) -> int:
        """Different names in the training rows."""
        return len(self._counts) - (None in self._counts)

    def num_not_numbers(self) -> int:
        """Return how many training rows hold no number where nearly all do; else 0."""
        names = {name: count for name, count in self._counts.items() if name is not None}
        wrong = sum(count for name, count in names.items() if not is_number(name))
        return wrong if 0 < wrong < (1 - NUMBER_SHARE) * sum(names.values()) else 0


def number_as_text(names: list[str]) -> str | None:
    """Return the first of texts that are numbers as people write them: `$1,234.50`, `12.3%`."""
    names = names[:MAX_SHAPES]
    written = [name for name in names if NUMBER_AS_TEXT.match(name)]
    found = next((name for name in written if not is_number(name)), None)
    return found if len(written) >= NUMBER_SHARE * len(names) else None
