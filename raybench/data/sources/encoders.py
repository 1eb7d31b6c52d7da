"""Columns of a table as features, by what `encode` has learnt of the training rows: plain data, so
that a model's new rows are made into the same features."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.sources.values import as_numbers, as_texts

Out = npt.NDArray[np.float32]
"""(rows, width) of one column's features, to be written to."""


class Encoder(Protocol):
    """Makes the features of a column."""

    @property
    def name(self) -> str:
        """Of the column."""
        ...

    @property
    def features(self) -> list[str]:
        """Names of what it becomes."""
        ...

    def write(self, values: Any, out: Out) -> None:
        """Write the features of any rows (`pyarrow.Array`)."""
        ...


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
        """See `Encoder`."""
        return [self.name, f"{self.name} missing"] if self.has_missing else [self.name]

    def write(self, values: Any, out: Out) -> None:
        """See `Encoder`."""
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
    def has_rest(self) -> bool:
        """Whether there are names without a feature of their own."""
        return bool(self.frequency)

    @property
    def features(self) -> list[str]:
        """See `Encoder`."""
        own = [f"{self.name}={'' if name is None else name}" for name in self.own]
        more = [f"{self.name}=another", f"{self.name} frequency"]
        return own + more if self.has_rest else own

    def write(self, values: Any, out: Out) -> None:
        """See `Encoder`."""
        texts = as_texts(values)
        found = pc.fill_null(pc.index_in(texts, value_set=self._value_set), len(self.known))
        numbers = np.asarray(found).astype(np.int64)
        places = np.where(np.asarray(texts.is_null()), self._place_of_none, self._places[numbers])
        out[:] = 0
        rows = np.flatnonzero(places >= 0)
        out[rows, places[rows]] = 1
        if self.has_rest:
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


KINDS: dict[str, type[NumberEncoder] | type[NameEncoder]] = {
    "number": NumberEncoder,
    "name": NameEncoder,
}


def document_of(encoder: NumberEncoder | NameEncoder) -> dict[str, Any]:
    """Return an encoder as plain data for JSON."""
    kind = next(kind for kind, one in KINDS.items() if isinstance(encoder, one))
    return {"kind": kind, **asdict(encoder)}


def encoder_of(document: Mapping[str, Any]) -> Encoder:
    """Return the encoder that `document_of` has described."""
    content = dict(document)
    return KINDS[content.pop("kind")](**content)
