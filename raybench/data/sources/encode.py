"""Columns of a table as numbers, by statistics of the training rows alone."""

import re
from collections import Counter
from typing import Any, Protocol

import numpy as np
import pyarrow.compute as pc

from raybench.core.errors import UserError
from raybench.data.sources.class_columns import is_number
from raybench.data.sources.encoders import NameEncoder, NumberEncoder, Out
from raybench.data.sources.values import as_numbers, as_texts

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


class NotUsed(Exception):  # noqa: N818 (not an error: the column is left out)
    """A column that nothing can be learnt from; the message ends a sentence that names it."""


class Column(Protocol):
    """A column of inputs: first `see` of all training rows, then `finish`, then `write`."""

    name: str
    encoder: NumberEncoder | NameEncoder
    """What was learnt of it; there after `finish`."""

    def see(self, values: Any) -> None:
        """Take the values of some training rows, in order (`pyarrow.Array`)."""
        ...

    def finish(self) -> None:
        """Raise NotUsed, or UserError, or be ready."""
        ...

    @property
    def features(self) -> list[str]:
        """Names of what it becomes."""
        ...

    @property
    def missing_share(self) -> float:
        """Share of the training rows that have no value."""
        ...

    def write(self, values: Any, out: Out) -> None:
        """Write the features of any rows."""
        ...


class Quantity:
    """Numbers, dates, yes and no: less the mean, by the standard deviation.

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
        """See `Column`."""
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

    def finish(self) -> None:
        """See `Column`."""
        if not self._count:
            raise NotUsed("has no values")
        if self._low == self._high and not self._missing:
            raise NotUsed(f"is {self._low:g} in every training row")
        if self._high - self._low < self._counted_rows and not self._missing:
            raise NotUsed("counts the rows; if it is more, name it in dataset.columns")
        deviation = float(np.sqrt(self._squares / self._count))
        self.encoder: NumberEncoder | NameEncoder = NumberEncoder(
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

    @property
    def features(self) -> list[str]:
        """See `Column`."""
        return self.encoder.features

    def write(self, values: Any, out: Out) -> None:
        """See `Column`."""
        self.encoder.write(values, out)


class Names:
    """Texts (and codes named in `dataset.categories`): a feature for each name.

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
        """See `Column`."""
        texts = as_texts(values)
        self._rows += len(texts)
        for count in pc.value_counts(texts).to_pylist():
            if len(self._counts) < MAX_COUNTED or count["values"] in self._counts:
                self._counts[count["values"]] += count["counts"]

    def finish(self) -> None:
        """See `Column`."""
        counts = self._counts
        num_names = len(counts) - (None in counts)
        if num_names == 0:
            raise NotUsed("has no values")
        if len(counts) == 1:
            raise NotUsed(f"is '{next(iter(counts))}' in every training row")
        written = number_as_text([name for name in counts if name is not None])
        if num_names > max(MAX_LEVELS, ID_SHARE * self._rows) and not self._is_asked:
            if written is not None:
                raise NotUsed(f"holds numbers written as texts ('{written}'); write them as 1234.5")
            raise NotUsed(
                f"has a text of its own in most rows ({num_names:,} in {self._rows:,}, such as "
                f"'{str(max(counts, key=str))[:SHOWN]}'); if these are texts to learn from, name "
                "it in dataset.text"
            )
        frequent = sorted(counts, key=lambda name: (-counts[name], name or ""))
        known = [name for name in frequent if name is not None]
        shares = np.array([counts[name] for name in known]) / self._rows
        logs = np.log(shares)
        mean = float((shares * logs).sum() / shares.sum())
        deviation = float(np.sqrt((shares * (logs - mean) ** 2).sum() / shares.sum())) or 1.0
        frequency = np.append((logs - mean) / deviation, (logs.min() - mean) / deviation)
        self.encoder: NumberEncoder | NameEncoder = NameEncoder(
            name=self.name,
            own=frequent[:MAX_LEVELS],
            known=known,
            frequency=frequency.tolist() if len(frequent) > MAX_LEVELS else [],
            has_none=None in counts,
        )

    @property
    def features(self) -> list[str]:
        """See `Column`."""
        return self.encoder.features

    @property
    def missing_share(self) -> float:
        """Share of the training rows that have no name."""
        return self._counts[None] / self._rows

    @property
    def num_names(self) -> int:
        """Different names in the training rows."""
        return len(self._counts) - (None in self._counts)

    def write(self, values: Any, out: Out) -> None:
        """See `Column`."""
        self.encoder.write(values, out)

    def num_not_numbers(self) -> int:
        """Return how many training rows hold no number where nearly all do; else 0."""
        names = {name: count for name, count in self._counts.items() if name is not None}
        wrong = sum(count for name, count in names.items() if not is_number(name))
        total = sum(names.values())
        return wrong if 0 < wrong < (1 - NUMBER_SHARE) * total else 0


def number_as_text(names: list[str]) -> str | None:
    """Return the first of texts that are numbers as people write them: `$1,234.50`, `12.3%`."""
    names = names[:MAX_SHAPES]
    written = [name for name in names if NUMBER_AS_TEXT.match(name)]
    found = next((name for name in written if not is_number(name)), None)
    return found if len(written) >= NUMBER_SHARE * len(names) else None


def require_numbers(column: Names, place: str, value: str) -> None:
    """Raise the UserError for a column of numbers with some texts in it."""
    raise UserError(
        f"{place}: column '{column.name}' holds numbers, and '{value}' there "
        f"({column.num_not_numbers():,} such rows); leave such cells empty where nothing is known, "
        "or list the column in dataset.categories if its values are names."
    )
