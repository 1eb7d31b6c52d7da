"""Published scaling studies: build their cells (run specs), and compare their claims with
measurements.

The file `named/NAME.yaml` defines the cells and claims of a study. A block of `cells` stands for
all combinations of the values in its lists. `batch` is the batch size per worker in weak scaling
and the global batch size in strong scaling. Each item of `together` sets several keys at once. A
claim is about the cells that match `where`; if `where` is a list, they match at least one of its
items:

| key | meaning |
|---|---|
| of | column of the table of cells, or a ratio of two columns; default samples_per_s |
| over | key by which cells are compared, followed by keys that may differ together with it |
| how | how the cells with the least and greatest value of that key are compared: ratio (greatest \
/ least), inverse (least / greatest), share (1 - least / greatest), difference (greatest - least); \
or range: the range over all values of the key |
| first | value of the key with which all other values are compared, instead of least with \
greatest |
| then | second comparison, which compares the results of the first by another key |
| holds | bounds within which the result confirms the claim: above, below, from, to |
| unit, scale | unit and factor with which values are printed |
| judged_at | greatest value of the key in the publication; only cells with the greatest measured \
value count, and the claim is judged only if that value is the one in the publication |
| against | second key; the claim holds if values vary less over it than over the first key |
| best | key with one of its values; the claim holds if this value has the greatest mean |
| most | key, and column with the size of each of its values; the claim holds if the largest value \
has a greater median than the smallest |
"""

import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raybench.spec.documents import read_mapping, validate
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import Scaling, ScalingStudy, study_cells

NOT_MEASURED = "not measured here"
AGREE = 0.75
"""Fraction of the compared pairs that decides a claim. The claim holds if at least this fraction
confirms it, and does not hold if at least this fraction contradicts it."""


@dataclass(frozen=True)
class Claim:
    """A claim of a published study, and whether our measurements confirm it."""

    claim: str
    published: str
    """Numbers in the publication, as text."""
    ours: str
    """Numbers measured in this study, as text."""
    holds: bool | None
    """Whether the claim holds; None if the published conditions were not measured, or if the
    compared pairs of cells contradict each other too often."""


@dataclass(frozen=True)
class MeasuredPoint:
    """A measured cell (run spec) with its kind of scaling, weak or strong."""

    spec: RunSpec
    scaling: Scaling
    row: dict[str, Any]

    def number(self, of: str) -> float:
        """Return the value of a column, or of a ratio `column / column`; NaN if unknown."""
        values = [self.row.get(name.strip()) for name in of.split("/")]
        numbers = [math.nan if pd.isna(value) else float(value) for value in values]
        return numbers[0] if len(numbers) == 1 else _positive_ratio(*numbers)

    def key(self, name: str) -> Any:
        """Return the value of a (dotted) key of the run spec, or else of the column with this name;
        None if neither exists."""
        if name == "scaling":
            return self.scaling
        value: Any = self.spec
        for part in name.split("."):
            if not hasattr(value, part):
                return self.row.get(name)
            value = getattr(value, part)
        return value


Point = tuple[MeasuredPoint, float]
"""Pair of a measured cell and the value by which it is compared with others."""
Judged = tuple[str, bool | None] | None
"""Measured values in words, and whether the claim holds; None if nothing was measured."""


def _positive_ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if numerator > 0 and denominator > 0 else math.nan


COMPARED: dict[str, Callable[[float, float], float]] = {
    "ratio": lambda first, last: _positive_ratio(last, first),
    "inverse": _positive_ratio,
    "share": lambda first, last: 1 - _positive_ratio(first, last),
    "difference": lambda first, last: last - first,
}
BOUNDS = {"above": operator.gt, "below": operator.lt, "from": operator.ge, "to": operator.le}


def measured(study: ScalingStudy, cells: pd.DataFrame) -> list[MeasuredPoint]:
    """Return the measured cells of a study.

    Args:
        cells: Table of cells of the study (`cell_table`).
    """
    specs = {cell.name: cell.spec for cell in study_cells(study)}
    return [
        MeasuredPoint(specs[row["cell"]], row["scaling"], {str(k): v for k, v in row.items()})
        for row in cells.to_dict("records")
        if row["n"]
    ]


def _matches(cell: MeasuredPoint, where: Mapping[str, Any]) -> bool:
    return all(
        within(cell.key(name), wanted) if isinstance(wanted, dict) else cell.key(name) == wanted
        for name, wanted in where.items()
    )


def within(value: Any, bounds: Mapping[str, float]) -> bool:
    """Return whether a value is within all bounds; False for None."""
    return value is not None and all(BOUNDS[name](value, at) for name, at in bounds.items())


def grouped(
    points: Iterable[Point], over: Sequence[str], already_compared: Sequence[str] = ()
) -> list[dict[Any, Point]]:
    """Group the points that are to be compared: the points of a group differ only in certain keys.

    Worker counts are compared at the same batch size per worker in weak scaling, and at the same
    global batch size in strong scaling. Groups of a single point are left out.

    Args:
        points: Cells (run specs) with their values.
        over: Key by which points are compared, followed by keys that may differ together with it.
        already_compared: Keys of an earlier comparison, which may also differ.

    Returns:
        For each group, the points by their value of the first key of `over`.
    """
    groups: dict[str, dict[Any, Point]] = {}
    for cell, value in points:
        spec, is_strong, left_out = cell.spec, cell.scaling == "strong", [*over, *already_compared]
        content = spec.document() | {"scaling": cell.scaling}
        if over[0] == "scaling" or (over[0] == "num_workers" and is_strong):
            content["of"] = spec.global_batch_size if is_strong else spec.batch_size_per_worker
            left_out.append("batch_size_per_worker")
        for name in left_out:
            *parents, last = name.split(".")
            inner = content
            for parent in parents:
                inner = inner.get(parent, {})
            inner.pop(last, None)
        other_keys = json.dumps(content, sort_keys=True)
        groups.setdefault(other_keys, {})[cell.key(over[0])] = cell, value
    return [group for group in groups.values() if len(group) > 1]


def compared(
    points: Iterable[Point],
    over: Sequence[str],
    how: str = "ratio",
    first: Any = None,
    already_compared: Sequence[str] = (),
) -> list[Point]:
    """Compare the values within each group of cells that differ only in the key `over[0]`.

    Args:
        points: Cells with their values.
        over: Key to compare by, followed by keys that may differ together with it.
        how: `ratio`, `inverse`, `share`, `difference` or `range` (see the module docstring).
        first: Reference value of the key, with which all other values are compared; None compares
            the smallest value with the largest.
        already_compared: Keys of an earlier comparison, which may also differ.

    Returns:
        One pair (cell, result) per comparison. The cell is the one compared with the reference or,
        for `range`, any cell of the group.
    """
    results = []
    for group in grouped(points, over, already_compared):
        if how == "range":
            values = finite(value for _, value in group.values())
            if len(values) > 1:
                results.append((next(iter(group.values()))[0], max(values) - min(values)))
            continue
        start = min(group) if first is None else first
        ends = [max(group)] if first is None else [key for key in group if key != first]
        if start in group:
            before = group[start][1]
            results += [(group[end][0], COMPARED[how](before, group[end][1])) for end in ends]
    return results


def points_of(cells: Iterable[MeasuredPoint], entry: Mapping[str, Any]) -> list[Point]:
    """Return the measured values that a published claim is about, or the results of comparing them.

    Args:
        cells: Measured cells.
        entry: Content of the claim in the file of the study.

    Returns:
        Values, each with its cell (run spec).
    """
    where = entry.get("where", {})
    choices = where if isinstance(where, list) else [where]
    of = entry.get("of", "samples_per_s")
    points = [
        (cell, cell.number(of))
        for cell in cells
        if any(_matches(cell, filters) for filters in choices)
    ]
    if "over" in entry:
        points = compared(points, entry["over"], entry.get("how", "ratio"), entry.get("first"))
    if "then" in entry:
        points = compared(
            points, entry["then"]["over"], entry["then"]["how"], already_compared=entry["over"]
        )
    return points


def judged(entry: Mapping[str, Any], cells: Sequence[MeasuredPoint]) -> Claim:
    """Judge a claim by the measured cells.

    Args:
        entry: Content of the claim in the file of the study.
        cells: Measured cells.
    """
    points = points_of(cells, entry)
    judges = {"against": _against, "best": _best, "most": _most}
    judge = next((judges[name] for name in judges if name in entry), _by_pairs)
    ours, holds = judge(entry, cells, points) or (NOT_MEASURED, None)
    return Claim(entry["claim"], entry["published"], ours, holds)


def _by_pairs(
    entry: Mapping[str, Any], cells: Sequence[MeasuredPoint], points: list[Point]
) -> Judged:
    """Judge a claim by the fraction of the known values that lie within its bounds.

    The claim holds if the fraction is at least AGREE, and does not hold if it is at most 1 - AGREE.
    Otherwise it is undecided. It is also undecided if cells at the value `judged_at` were not
    measured.
    """
    unit, at = entry.get("unit", "times"), entry.get("judged_at")
    last = at
    if at is not None:
        last = max((cell.key(entry["over"][0]) for cell, _ in points), default=at)
        points = [(cell, value) for cell, value in points if cell.key(entry["over"][0]) == last]
    values = finite(value for _, value in points)
    if not values:
        return None
    agreeing = sum(within(value, entry["holds"]) for value in values) / len(values)
    is_decided = last == at and (agreeing >= AGREE or agreeing <= 1 - AGREE)
    ours = describe_values(values, unit=unit.format(last=last), scale=entry.get("scale", 1))
    return ours, agreeing >= AGREE if is_decided else None


def _against(
    entry: Mapping[str, Any], cells: Sequence[MeasuredPoint], points: list[Point]
) -> Judged:
    """Judge whether the measured value varies more with the key `over` than with the key `against`.

    The variation with a key is the median, over groups, of maximum minus minimum.
    """
    other = points_of(cells, {**entry, "over": entry["against"]})
    if not points or not other:
        return None
    difference, beside = (
        entry["scale"] * float(np.median([value for _, value in group]))
        for group in (points, other)
    )
    return f"{difference:.1f} {entry['unit']} against {beside:.1f}", difference > beside


def _by_key(points: list[Point], key: str, min_count: int) -> dict[Any, list[float]]:
    """Group the known values of cells by the value of `key`.

    Groups of fewer than `min_count` cells are left out.
    """
    groups: dict[Any, list[float]] = {}
    for cell, value in points:
        groups.setdefault(cell.key(key), []).append(value)
    finite_values = {
        at: finite(values) for at, values in groups.items() if len(values) >= min_count
    }
    return {at: values for at, values in finite_values.items() if values}


def _best(entry: Mapping[str, Any], cells: Sequence[MeasuredPoint], points: list[Point]) -> Judged:
    """Judge whether the value that the claim names has the greatest mean of all values of a key."""
    ((key, expected),) = entry["best"].items()
    means = {at: float(np.mean(values)) for at, values in _by_key(points, key, 2).items()}
    if len(means) < 2:
        return None
    order = sorted(means, key=lambda at: -means[at])
    return ", ".join(f"{at}: {means[at]:.1%}" for at in order), order[0] == expected


def _most(entry: Mapping[str, Any], cells: Sequence[MeasuredPoint], points: list[Point]) -> Judged:
    """Judge whether the median is greater for the largest value of a key than for the smallest.

    The size of a value is that in a column; the size of a workload, for example, is its number of
    parameters.
    """
    ((key, column),) = entry["most"].items()
    sizes = {cell.key(key): cell.number(column) for cell in cells}
    values = _by_key([point for point in points if sizes[point[0].key(key)] > 0], key, 1)
    if len(values) < 2:
        return None
    large, *_, small = sorted(values, key=lambda name: -sizes[name])
    texts = [
        f"{name.rpartition(':')[2]} ({sizes[name]:,.0f}): "
        + describe_values(values[name], unit=entry["unit"], scale=entry["scale"])
        for name in (large, small)
    ]
    return ", ".join(texts), bool(np.median(values[large]) > np.median(values[small]))


def finite(values: Iterable[float]) -> list[float]:
    """Return the values that are finite."""
    return [value for value in values if math.isfinite(value)]


def describe_values(values: Sequence[float], *, unit: str, scale: float) -> str:
    """Return the median and the range of values in words.

    Args:
        unit: Unit to print.
        scale: Factor on the values before they are printed.
    """
    low, middle, high = (scale * float(np.quantile(values, q)) for q in (0.0, 0.5, 1.0))
    text = f"{middle:.3g} {unit}"
    if len(values) == 1:
        return text
    return f"{text} ({low:.3g} to {high:.3g}, {len(values)} pairs)"


@dataclass(frozen=True)
class NamedStudy:
    """A published study, defined by the file `named/NAME.yaml`."""

    name: str

    @property
    def file(self) -> Path:
        """File of the study; comments at the top name the publication and the command."""
        return Path(__file__).parent / "named" / f"{self.name}.yaml"

    def study(self, quick: bool) -> ScalingStudy:
        """Return the study; with `quick`, a version that takes two cores five minutes at most."""
        content = read_mapping(self.file)
        version = content["quick" if quick else "full"]
        study = {**version, "name": self.name, "base": content["base"] | version.get("base", {})}
        if "cells" in version:
            study["cells"] = [cell for block in version["cells"] for cell in _cells(block)]
        return validate(ScalingStudy, study, str(self.file))

    def compare(self, study: ScalingStudy, cells: pd.DataFrame) -> list[Claim]:
        """Judge the claims of the published study by the measured cells of `study`.

        Args:
            study: The study as it was run.
            cells: Table of cells of `study`.
        """
        points = measured(study, cells)
        return [judged(entry, points) for entry in read_mapping(self.file)["claims"]]


def _cells(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the cells of a block, which stands for all combinations of the values in its lists.

    A single worker exchanges no gradients, so its cell without gradient exchange is left out.
    """
    axes = [
        [choice if key == "together" else {key: choice} for choice in choices]
        for key, value in block.items()
        for choices in [value if isinstance(value, list) else [value]]
    ]
    for combination in itertools.product(*axes):
        changes = {key: value for part in combination for key, value in part.items()}
        scaling, batch = changes.pop("scaling", "weak"), changes.pop("batch")
        workers = changes["num_workers"]
        if workers > 1 or changes.get("exchange_gradients", True):
            changes["batch_size_per_worker"] = batch // workers if scaling == "strong" else batch
            yield {"scaling": scaling, "changes": changes}


STUDIES = {
    name: NamedStudy(name)
    for name in (
        *("mnist_data_parallel", "batch_size_vs_workers", "finetune_lr_schedule"),
        *("bottleneck_probe", "synthetic_throughput"),
    )
}
"""Published studies, keyed by name."""
