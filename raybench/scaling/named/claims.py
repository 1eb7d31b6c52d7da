"""What a published study claims, beside what was measured here."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from raybench.core.scaling_study import Scaling, ScalingStudy, study_cells
from raybench.core.spec import RunSpec

NOT_MEASURED = "not measured here"
AGREE = 0.75
"""Share of the pairs that must say so for a claim to hold, or not to."""


@dataclass(frozen=True)
class Claim:
    """One claim of a study."""

    claim: str
    published: str
    """The figures that it was made from."""
    ours: str
    """Those of this study."""
    holds: bool | None
    """Whether it held here; None where it was not measured, not as it was published, or where
    pairs disagree."""


class Results(Protocol):
    """What `raybench.load(DIR)` returns, as far as a comparison reads it."""

    @property
    def scaling(self) -> pd.DataFrame:
        """One row per cell."""
        ...

    @property
    def scaling_study(self) -> ScalingStudy:
        """The study that was run."""
        ...


@dataclass(frozen=True)
class Measured:
    """A cell that was measured, as a point of one kind of scaling."""

    spec: RunSpec
    scaling: Scaling
    row: dict[str, Any]

    def number(self, column: str) -> float:
        """Return a number of the cell's row; NaN where it has none."""
        value = self.row.get(column)
        return math.nan if value is None or pd.isna(value) else float(value)

    def key(self, name: str) -> Any:
        """Return a key of its run spec, dotted where it lies deeper."""
        found: Any = self.spec
        for part in name.split("."):
            found = getattr(found, part)
        return found


def measured(results: Results, scaling: Scaling | None = None, **keys: Any) -> list[Measured]:
    """Return the cells that were measured; of one scaling, with these keys of the run spec.

    A key that lies deeper is written with two underscores: `dataset__repeat=1`.
    """
    specs = {cell.name: cell.spec for cell in study_cells(results.scaling_study)}
    rows = results.scaling.to_dict("records")
    found = [
        Measured(specs[row["cell"]], row["scaling"], {str(k): v for k, v in row.items()})
        for row in rows
        if row["n"]
    ]
    wanted = {name.replace("__", "."): value for name, value in keys.items()}
    return [
        one
        for one in found
        if scaling in (None, one.scaling)
        and all(one.key(name) == value for name, value in wanted.items())
    ]


def pairs(cells: Iterable[Measured], key: str) -> list[tuple[Measured, Measured]]:
    """Return pairs that differ in one key alone: its least value first, then its greatest.

    Numbers of workers are compared within one kind of scaling: the batch of each of them stays the
    same, or that of all.
    """
    groups: dict[str, dict[Any, Measured]] = {}
    for one in cells:
        content = one.spec.document()
        left_out = [key]
        if key == "num_workers" and one.scaling == "strong":
            content["global"] = one.spec.global_batch_size
            left_out.append("batch_size_per_worker")
        for name in left_out:
            *parents, last = name.split(".")
            inner = content
            for parent in parents:
                inner = inner[parent]
            del inner[last]
        rest = json.dumps([one.scaling, content], sort_keys=True)
        groups.setdefault(rest, {})[one.key(key)] = one
    several = [group for group in groups.values() if len(group) > 1]
    return [(group[min(group)], group[max(group)]) for group in several]


def ratios(cells: Iterable[Measured], key: str, column: str = "samples_per_s") -> list[float]:
    """Return a column at the greatest value of a key over that at the least, for each pair."""
    found = [(one.number(column), other.number(column)) for one, other in pairs(cells, key)]
    return [after / before for before, after in found if before > 0 and after == after]


def differences(cells: Iterable[Measured], key: str, column: str) -> list[float]:
    """Return a column at the greatest value of a key less that at the least, for each pair."""
    found = [other.number(column) - one.number(column) for one, other in pairs(cells, key)]
    return [value for value in found if value == value]


def claim(
    words: str,
    published: str,
    values: Sequence[float],
    holds: Callable[[float], bool],
    *,
    unit: str = "times",
    scale: float = 1.0,
) -> Claim:
    """Return a claim that holds where AGREE of some values say so; unknown ones are left out.

    Where that many say neither yes nor no, it is not told.
    """
    known = finite(values)
    if not known:
        return Claim(words, published, NOT_MEASURED, None)
    agreeing = sum(map(holds, known)) / len(known)
    verdict = agreeing >= AGREE if agreeing >= AGREE or agreeing <= 1 - AGREE else None
    return Claim(words, published, shown(known, unit=unit, scale=scale), verdict)


def finite(values: Iterable[float]) -> list[float]:
    """Return the values that are known: a cell without a figure of a kind has NaN in its place."""
    return [value for value in values if math.isfinite(value)]


def shown(values: Sequence[float], *, unit: str = "times", scale: float = 1.0) -> str:
    """Return a median and the range, for people."""
    low, middle, high = (scale * float(np.quantile(values, q)) for q in (0.0, 0.5, 1.0))
    text = f"{middle:.3g} {unit}"
    if len(values) == 1:
        return text
    return f"{text} ({low:.3g} to {high:.3g}, {len(values)} pairs)"
