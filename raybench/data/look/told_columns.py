"""Which columns of a table are its label, its texts, its images, told from what is in them."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.dataset_spec import Task
from raybench.core.errors import UserError
from raybench.data.sources.image_column import require_image_column
from raybench.data.sources.images import ImageError, is_image, read_head
from raybench.data.sources.label_columns import MAX_NUMBERED_CLASSES, told_task
from raybench.data.sources.table import Table, column_of, is_text, require_columns
from raybench.data.sources.values import as_texts, is_number_type

USUAL_LABELS = ("label", "labels", "class", "target", "y")
USUAL_TEXTS = ("text", "review", "sentence", "comment", "content", "body", "document", "message")
LONG = 40
"""Characters of a text, on average, that is more than a name."""
FEW = 50
"""Different texts of a column that may be classes."""
SEEN_ROWS = 2000
"""First rows that say what a column may be."""


def tell_columns(table: Table, label: str | None, task: Task | None) -> dict[str, Any]:
    """Return the columns of label, text and image, told where they are not given."""
    names = table.schema.names
    images = [name for name in names if _is_image(table, name)]
    if label is None and task != "language_modelling":
        usual = [name for name in names if name.lower() in USUAL_LABELS]
        if len(usual) != 1:
            raise UserError(_candidates(table, images))
        label = usual[0]
    if label is not None:
        require_columns(table, [label], "label")
    found: dict[str, Any] = {} if label is None else {"label": label}
    texts = [name for name in texts_of(table) if name != label]
    others = [name for name in names if name not in (label, *texts)]
    if images and images[0] != label:
        found["image"] = images[0]
    elif texts and (not others or any(name.lower() in USUAL_TEXTS for name in texts)):
        usual = [name for name in texts if name.lower() in USUAL_TEXTS]
        found["text"] = (usual or texts)[0]
    return found


def _candidates(table: Table, images: list[str]) -> str:
    """Return the sentence that asks for the label, with the columns that may be it."""
    shown = []
    texts = texts_of(table)
    for name in table.schema.names:
        kind = table.schema.field(name).type
        if name in images or name in texts or not (is_text(table, name) or is_number_type(kind)):
            continue
        if told_task(table, [name], MAX_NUMBERED_CLASSES) == "regression":
            shown.append(f"{name} (numbers)")
            continue
        number = len(pc.unique(as_texts(column_of(table, name)).drop_null()))
        if 1 < number <= FEW:
            shown.append(f"{name} ({number} classes)")
    listed = ", ".join(shown) or "none of its columns looks like one"
    return f"{table.source}: name the column to learn by --label: {listed}."


def texts_of(table: Table) -> list[str]:
    """Return the columns of texts that are more than names."""
    found = []
    for name in table.schema.names:
        if is_text(table, name) and not _is_image(table, name):
            values = _some(table, name)
            lengths = pc.mean(pc.utf8_length(values.cast(pa.string()))).as_py()
            if lengths is not None and lengths >= LONG:
                found.append(name)
    return found


def _is_image(table: Table, name: str) -> bool:
    if not is_text(table, name):
        if is_number_type(table.schema.field(name).type):
            return False
        try:
            require_image_column(table, name)
            first = next((value for value in _some(table, name).to_pylist() if value), None)
            if isinstance(first, bytes):  # or a hash, or an array
                read_head(first, name)
        except (UserError, ImageError):
            return False
        return True
    values = [value for value in _some(table, name).to_pylist() if value]
    return bool(values) and all(map(is_image, values))


def _some(table: Table, name: str) -> Any:
    return next(iter(table.batches([name]))).column(0).slice(0, SEEN_ROWS)
