"""Datasets that come as arrays, of a library's set or a user's npz: checked, mixed, stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split
from raybench.data.sources.array_inputs import as_inputs, write_inputs
from raybench.data.sources.array_labels import LabelKind, as_labels, kind_of
from raybench.data.sources.cut import cut, held_out_line, mixed_order
from raybench.data.sources.labels import standardise
from raybench.data.store.build import Stored, stored
from raybench.data.store.progress import tell
from raybench.data.store.source import Source
from raybench.data.store.writer import Writer

Array = npt.NDArray[Any]
OPTIONS = ("task", "image_size", "resize", "channels", "split_seed", "columns", "label", "weight")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class RawSplit:
    """Arrays as they were found."""

    inputs: Array | dict[str, Array]
    labels: Array
    weights: Array | None = None


@dataclass(frozen=True)
class RawSet:
    """What a reader returns."""

    splits: Mapping[str, RawSplit]
    """By `train`, `validation`, `test`; `train` is always there."""
    class_names: tuple[str, ...] = ()
    """Of the classes by number, where the files tell them."""
    vocabulary: tuple[str, ...] = field(default=(), repr=False)
    """Of token ids, where the inputs are such."""
    standardise_inputs: bool = False
    """Whether columns of the inputs are scaled to mean 0 and deviation 1 over training."""


def load_arrays(source: Source, read: Callable[[], RawSet], spec: DatasetSpec) -> Dataset:
    """Return the set that `read` reads, from the store where it is there.

    What has no split of its own is cut from the training samples, see `cut.cut`.
    """
    where = str(source.path)
    found = stored(source, lambda writer: _build(writer, read(), spec, where))
    about = found.about
    splits = {part: _split(found, part) for part in about["parts"]}
    parts = cut(splits["train"], splits.get("validation"), splits.get("test"), spec, source=where)
    content: dict[str, Any] = {"task": about["task"]}
    if about["standardise_inputs"]:
        parts, content["encoding"] = _standardise_inputs(parts)
    if about["task"] == "regression":
        (train, validation, test), scale, offset = standardise(parts, where)
        parts = train, validation, test
        content |= {"label_scale": scale, "label_offset": offset}
    train, validation, test = parts
    return Dataset(
        source.name,
        about["num_classes"],
        train,
        validation,
        test,
        class_names=tuple(about["class_names"]),
        vocabulary=tuple(about["vocabulary"]),
        **content,
    )


def _build(writer: Writer, raw: RawSet, spec: DatasetSpec, where: str) -> dict[str, Any]:
    kind = kind_of({part: one.labels for part, one in raw.splits.items()}, spec.task, where)
    if raw.class_names:
        kind = LabelKind("classification", raw.class_names, len(raw.class_names), None)
    if told := held_out_line(len(raw.splits["train"].labels), spec, raw.splits):
        tell(f"{where}: {told}")
    total = sum(len(one.labels) for one in raw.splits.values())
    with writer.progress(f"storing {total:,} samples", total) as progress:
        for part, one in raw.splits.items():
            place = f"{where}, {part} split"
            labels = as_labels(one.labels, kind, place)
            classes = labels if kind.task == "classification" else None
            order = mixed_order(classes, len(labels), seed=spec.split_seed)
            writer.save(f"{part}-labels", labels[order])
            if one.weights is not None:
                writer.save(f"{part}-weights", one.weights[order].astype(np.float32))
            named = one.inputs if isinstance(one.inputs, dict) else {"": one.inputs}
            for name, array in named.items():
                if len(array) != len(labels):
                    raise UserError(
                        f"{place}: {len(array):,} inputs and {len(labels):,} labels; give one "
                        "label for each."
                    )
                inputs = as_inputs(array, f"{place} {name}".rstrip())
                target = f"{part}-input-{name}" if name else f"{part}-inputs"
                write_inputs(writer, target, inputs, order, spec)
            progress.advance(len(labels))
    return {
        "task": kind.task,
        "num_classes": kind.num_classes,
        "class_names": list(kind.names),
        "vocabulary": list(raw.vocabulary),
        "standardise_inputs": raw.standardise_inputs,
        "parts": list(raw.splits),
    }


def _split(found: Stored, part: str) -> Split:
    arrays, begin = found.arrays, f"{part}-input-"
    inputs: Any = arrays.get(f"{part}-inputs")
    if inputs is None:
        inputs = {name[len(begin) :]: arrays[name] for name in arrays if name.startswith(begin)}
    return Split(inputs, arrays[f"{part}-labels"], arrays.get(f"{part}-weights"))


def _standardise_inputs(
    parts: tuple[Split, Split, Split],
) -> tuple[tuple[Split, Split, Split], dict[str, Any]]:
    """Scale the columns by the training split alone; one that is constant becomes 0.

    With them how, as `Dataset.encoding` has it.
    """
    train = parts[0].array.astype(np.float64)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)

    def scaled(split: Split) -> Split:
        inputs = ((split.array - mean) / scale).astype(np.float32)
        return Split(inputs, split.labels, split.weights)

    encoding = {"offset": mean.tolist(), "scale": scale.tolist()}
    return (scaled(parts[0]), scaled(parts[1]), scaled(parts[2])), encoding
