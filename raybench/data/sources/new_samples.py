"""New samples, as a user has them, made into inputs as those a model was trained on."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from raybench.data.dataset import Array
from raybench.data.sources.encode import NumberEncoder, encoder_of
from raybench.data.sources.images import ImageError, ImageForm, decode
from raybench.data.sources.table import as_texts, is_number_type
from raybench.data.sources.texts import Kind, Tokenizer, padded_ids, texts_of
from raybench.spec.errors import UserError


def rows_as_inputs(samples: Any, columns: Sequence[Mapping[str, Any]]) -> Array:
    """Return (N, features) float32 of rows, by the `columns` of `Dataset.encoding`.

    `samples`: a data frame, a `pyarrow.Table`, a dict of columns, or a list of dicts; other
    columns than those that were trained on are not looked at. UserError for one that is missing,
    and for a text where numbers are needed.
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
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"The rows are no table ({error}); give a data frame, a dict of columns, or a list of "
            "dicts."
        ) from error
    table = table.rename_columns([name.strip() for name in table.column_names])  # as they were read
    encoders = [encoder_of(one) for one in columns]
    for encoder in encoders:
        number = table.column_names.count(encoder.name)
        if number > 1:
            raise UserError(f"The rows have several columns '{encoder.name}'; leave one.")
        if not number:
            raise UserError(
                f"The rows have no column '{encoder.name}', which the model was trained with; its "
                f"columns are {', '.join(one.name for one in encoders)}."
            )
    out = np.empty((table.num_rows, sum(len(one.features) for one in encoders)), np.float32)
    begin = 0
    for encoder in encoders:
        end = begin + len(encoder.features)
        values = pa.concat_arrays(table.column(encoder.name).chunks or [pa.array([], pa.null())])
        if isinstance(encoder, NumberEncoder) and not is_number_type(values.type):
            try:
                values = as_texts(values).cast(pa.float64())
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"Column '{encoder.name}' of the rows holds texts, and the model was trained "
                    f"with numbers there ({error}); correct it."
                ) from error
        encoder.write(values, out[:, begin:end])
        begin = end
    return out


def texts_as_inputs(
    samples: Iterable[str], kind: Kind, vocabulary: Sequence[str], length: int
) -> Array:
    """Return (N, length) int32 token ids of texts: cut there, padded with 0 at the end."""
    if isinstance(samples, str):
        raise UserError("The texts are one text; give a list of them: [text].")
    tokenizer = Tokenizer.of_vocabulary(kind, vocabulary)
    try:
        column = pa.array(samples, pa.string())
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The samples are no texts ({error}); give a list of texts, or an array of token ids."
        ) from error
    return padded_ids(tokenizer, list(texts_of(pa.record_batch({"text": column}))), length)


def files_as_inputs(
    samples: Sequence[str | Path | bytes],
    shape: tuple[int, ...],
    resize: Literal["stretch", "crop"],
) -> Array:
    """Return (N, H, W, C) uint8 of images: paths of files, or what is in them.

    UserError naming an image that cannot be decoded.
    """
    height, width, channels = shape
    form = ImageForm(
        height=height,
        width=width,
        channels=1 if channels == 1 else 3,
        is_scaled=True,
        is_greyed=True,
        resize=resize,
    )
    out = np.empty((len(samples), *form.shape), np.uint8)
    for row, one in enumerate(samples):
        try:
            out[row] = decode(one if isinstance(one, bytes) else str(one), form)
        except ImageError as error:
            name = f"Image {row}" if isinstance(one, bytes) else str(one)
            raise UserError(f"{name} {error}; mend or leave it out.") from error
    return out
