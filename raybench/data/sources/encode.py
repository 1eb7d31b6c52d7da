"""Encoders that convert the columns of a table to numeric features.

Encoders are fitted only to the training rows. They are plain data, which is saved with a model to
encode new rows in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.dataset import Array
from raybench.data.sources.cut import Member
from raybench.data.sources.table import (
    MAX_SHOWN,
    Note,
    as_numbers,
    as_texts,
    is_number_type,
    is_text_type,
)
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError

MAX_LEVELS = 128  # maximum number of names in a column that get their own feature
ID_SHARE = 0.5  # distinct names per row above which a column is assumed to contain ids
MAX_TEXT_SHOWN = 40  # maximum number of characters of a text in a message


@dataclass(frozen=True, kw_only=True)
class NumberEncoder:
    """Encoder of a column of numbers, dates or booleans; the feature is (value - offset) /
    scale."""

    name: str
    mean: float
    """Mean over the training rows, which replaces missing values."""
    offset: float
    scale: float
    missing: float
    """Fraction of missing values in the training rows. If it is above 0, a second feature is 1 for
    missing values."""
    kind: str = "number"

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [self.name, f"{self.name} missing"] if self.missing else [self.name]

    def encode(self, values: Any) -> Array:
        """Return the features of a `pyarrow.Array`, (rows, features) float32."""
        numbers = as_numbers(values)
        is_missing = np.isnan(numbers)
        scaled = (np.where(is_missing, self.mean, numbers) - self.offset) / self.scale
        features = [scaled, is_missing] if self.missing else [scaled]
        return np.stack(features, axis=1).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class NameEncoder:
    """Encoder of a column of names (categories), with one feature for each frequent name.

    If there are rare names, they share a feature, and a further feature is the log frequency of the
    name.
    """

    name: str
    own: list[str | None]
    """Names that have their own feature; None stands for a missing name."""
    known: list[str]
    """All names in the training rows, most frequent first."""
    frequency: list[float]
    """Standardized log frequency of each name in `known`, followed by the value for unknown names;
    empty if every name has its own feature."""
    missing: float
    """Fraction of missing names in the training rows."""
    kind: str = "name"

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        features = [f"{self.name}={'' if name is None else name}" for name in self.own]
        if self.frequency:
            features += [f"{self.name}=another", f"{self.name} frequency"]
        return features

    def encode(self, values: Any) -> Array:
        """Return the features of a `pyarrow.Array`, (rows, features) float32."""
        texts = as_texts(values)
        indices = pc.index_in(texts, value_set=pa.array(self.known, pa.string()))
        numbers = np.asarray(pc.fill_null(indices, len(self.known))).astype(np.int64)
        # Index of the feature of each known name, and -1 for an unknown name, which has no feature.
        # The list `known` begins with the names that have their own feature.
        own_features = [index for index, name in enumerate(self.own) if name is not None]
        feature_of = np.full(len(self.known) + 1, len(self.own))
        feature_of[: len(own_features)], feature_of[-1] = own_features, -1
        missing_feature = len(self.own) if self.missing else -1
        if None in self.own:
            missing_feature = self.own.index(None)
        features = np.where(np.asarray(texts.is_null()), missing_feature, feature_of[numbers])
        out = np.zeros((len(texts), len(self.features)), np.float32)
        rows = np.flatnonzero(features >= 0)
        out[rows, features[rows]] = 1
        if self.frequency:
            out[:, -1] = np.asarray(self.frequency)[numbers]
        return out


Encoder = NumberEncoder | NameEncoder
ENCODERS: dict[str, type[Encoder]] = {"number": NumberEncoder, "name": NameEncoder}


class ColumnLeftOut(Exception):  # noqa: N818 (not an error: the column is left out)
    """Raised for a column from which nothing can be learned. The message is a predicate with the
    column as its subject, such as "has no values"."""


def fit_number_encoder(
    name: str, numbers: Array, *, is_flag: bool, counted_rows: int
) -> NumberEncoder:
    """Fit an encoder that standardizes a column of numbers.

    Args:
        name: Name of the column.
        numbers: Values of the training rows in order, NaN if missing.
        is_flag: Whether the values are booleans, which are not standardized but encoded as 1 and 0.
        counted_rows: Number of rows in the table, to detect and leave out a column that holds only
            row numbers; 0 keeps such a column.

    Raises:
        ColumnLeftOut: The values are all missing, all equal, or row numbers.
    """
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        raise ColumnLeftOut("has no values")
    span, mean, deviation = float(np.ptp(known)), float(known.mean()), float(known.std())
    if len(known) == len(numbers):
        if not span:
            raise ColumnLeftOut(f"is {known[0]:g} in every training row")
        if span < counted_rows and (np.diff(known) > 0).all():
            raise ColumnLeftOut("numbers the rows; to use it anyway, list it in dataset.columns")
    return NumberEncoder(
        name=name,
        mean=mean,
        offset=0.0 if is_flag else mean,
        scale=1.0 if is_flag or not deviation > 0 else deviation,
        missing=1 - len(known) / len(numbers),
    )


def fit_name_encoder(name: str, values: Any, *, keep_ids: bool) -> NameEncoder:
    """Fit an encoder to a column of names, or to a column of codes in `dataset.categories`.

    Each of the MAX_LEVELS most frequent names has its own feature. If there are more names, the
    rare names share a feature, and a further feature is the standardized log frequency of the name.
    If training rows have missing values, "missing" counts as a name. For a name that is not in the
    training rows, all features except the frequency are 0.

    Args:
        name: Name of the column.
        values: The column in the training rows, a `pyarrow.Array`.
        keep_ids: Whether to use the column even if it seems to contain ids, because the user has
            listed it.

    Raises:
        ColumnLeftOut: The values are all missing, all equal, or ids.
    """
    num_rows = len(values)
    counts = {row["values"]: row["counts"] for row in as_texts(values).value_counts().to_pylist()}
    frequent = sorted(counts, key=lambda name: (-counts[name], name or ""))
    known = [name for name in frequent if name is not None]
    if not known:
        raise ColumnLeftOut("has no values")
    if len(counts) == 1:
        raise ColumnLeftOut(f"is '{known[0]}' in every training row")
    if len(known) > max(MAX_LEVELS, ID_SHARE * num_rows) and not keep_ids:
        raise ColumnLeftOut(
            f"has {len(known):,} different texts in {num_rows:,} rows, such as "
            f"'{max(known)[:MAX_TEXT_SHOWN]}'; to learn from its words, name it in dataset.text"
        )
    shares = np.array([counts[name] for name in known]) / num_rows
    logs = np.log(shares)
    mean = float(np.average(logs, weights=shares))
    deviation = float(np.sqrt(np.average((logs - mean) ** 2, weights=shares))) or 1.0
    frequency = (np.append(logs, logs.min()) - mean) / deviation
    return NameEncoder(
        name=name,
        own=frequent[:MAX_LEVELS],
        known=known,
        frequency=frequency.tolist() if len(frequent) > MAX_LEVELS else [],
        missing=counts.get(None, 0) / num_rows,
    )


class Features:
    """Encodes columns of numbers and names as inputs: one float32 vector of features per row."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, inputs: Sequence[str], train: Member, note: Note) -> None:
        """Fit an encoder to each input column, and leave out columns that cannot be learned from.

        Args:
            spec: The dataset spec.
            inputs: Names of the input columns.
            train: The training split.
            note: Function that shows the user a sentence about each column that is left out.

        Raises:
            UserError: All columns are left out.
        """
        self.encoders: list[Encoder] = []
        reasons = []
        for name in inputs:
            try:
                self.encoders.append(_fit_encoder(spec, name, train))
            except ColumnLeftOut as reason:
                reasons.append(f"column '{name}' is left out: it {reason}.")
        if not self.encoders:
            more = f" ({len(reasons) - MAX_SHOWN} more)" if len(reasons) > MAX_SHOWN else ""
            raise UserError(
                f"{train.table.source}: no column is left to learn from: "
                f"{' '.join(reasons[:MAX_SHOWN])}{more}",
                ErrorCode.INVALID_DATA,
            )
        for sentence in reasons:
            note(sentence)
        self.columns = [encoder.name for encoder in self.encoders]
        self.encoding = {"columns": [asdict(encoder) for encoder in self.encoders]}
        """Encoders as plain data; see `Dataset.encoding`."""
        self.shape: tuple[int, ...] = (sum(len(encoder.features) for encoder in self.encoders),)
        """Shape of one sample."""

    def write(self, batch: Any) -> Array:
        """Return the inputs for a batch of rows, (rows, features) float32."""
        return np.hstack([encoder.encode(batch.column(encoder.name)) for encoder in self.encoders])


def _fit_encoder(spec: DatasetSpec, name: str, train: Member) -> Encoder:
    """Fit the encoder of a column to the training rows; raise ColumnLeftOut if nothing can be
    learned from the column."""
    table, kind = train.table, train.table.kind(name)
    is_category = name in (spec.categories or [])
    is_listed = spec.columns is not None
    if is_number_type(kind) and not is_category:
        # Only integers can be mere row numbers; dates in increasing order may be useful.
        counted_rows = table.num_rows if pa.types.is_integer(kind) and not is_listed else 0
        return fit_number_encoder(
            name,
            as_numbers(train.column(name)),
            is_flag=pa.types.is_boolean(kind),
            counted_rows=counted_rows,
        )
    if not is_category:
        table.require_names(name, "list the column in dataset.categories")
    return fit_name_encoder(name, train.column(name), keep_ids=is_listed or is_category)


def rows_as_inputs(samples: Any, columns: Sequence[Mapping[str, Any]]) -> Array:
    """Return new rows of a table as inputs of a trained model: features, (N, features) float32.

    Args:
        samples: A data frame, a `pyarrow.Table`, a dict of columns or a list of dicts. Columns that
            are not inputs are ignored.
        columns: Encoders as plain data: the entry `columns` of `Dataset.encoding`.

    Raises:
        UserError: The samples are not a table, an input column is missing or occurs twice, or a
            column of numbers contains other strings.
    """
    try:
        if isinstance(samples, pa.Table):
            table = samples
        elif isinstance(samples, Mapping):
            table = pa.table({str(name): pa.array(values) for name, values in samples.items()})
        elif isinstance(samples, Sequence):
            table = pa.Table.from_pylist([dict(row) for row in samples])
        else:
            table = pa.Table.from_pandas(samples, preserve_index=False)
    except (AttributeError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise UserError(
            f"The rows are not a table ({error}); pass a data frame, a dict of columns, or a list "
            "of dicts.",
            ErrorCode.INVALID_VALUE,
        ) from error
    # Names are stripped, as in training.
    table = table.rename_columns([name.strip() for name in table.column_names])
    features = []
    for document in columns:
        # `form` is a key of models saved by earlier versions.
        settings = {key: value for key, value in document.items() if key != "form"}
        encoder = ENCODERS[document["kind"]](**settings)
        number = table.column_names.count(encoder.name)
        if number != 1:
            raise UserError(
                f"The rows have {number or 'no'} columns '{encoder.name}'; exactly one is needed.",
                ErrorCode.UNKNOWN_NAME,
            )
        values = pa.concat_arrays(table.column(encoder.name).chunks or [pa.array([], pa.null())])
        try:
            if isinstance(encoder, NumberEncoder) and is_text_type(values.type):
                values = as_texts(values).cast(pa.float64())
            features.append(encoder.encode(values))
        except (ValueError, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"Column '{encoder.name}' of the rows does not hold numbers ({error}); correct it.",
                ErrorCode.INVALID_DATA,
            ) from error
    return np.hstack(features)
