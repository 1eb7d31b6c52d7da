"""Files of the scaling commands: the scaling study, and the prices of machines.

A scaling study (`raybench scale`) trains run specs on a grid of worker counts and batch sizes, each
several times. A cell is one run spec of the study:

    name: my_training
    base: {workload: mnist_small, dataset: mnist, epochs: 3}
    scaling: [weak, strong]
    num_workers: [1, 2, 4]
    batch_sizes: [64, 256]
    axes: {framework: [torch, tensorflow]}
    repeats: 3

`prices.yaml` lists the machines that can be rented, for `raybench plan`:

    p4d.24xlarge: {accelerator: A100, workers: 8, price: 32.77, startup_s: 240}
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raybench.spec.documents import (
    Document,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    content_of,
    validate,
    with_key,
)
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.run import RunSpec

Scaling = Literal["weak", "strong"]
OWN_KEYS = {"num_workers": "num_workers", "batch_size_per_worker": "batch_sizes"}
"""Run-spec keys that the grid sets, each with the key of the scaling study that lists its
values."""
NO_AXES = (*OWN_KEYS, "seed", "record_steps")
"""Run-spec keys that cannot be axes of the grid."""
ALWAYS = {"record_steps": True}
"""Run-spec keys whose value is the same in all runs of all scaling studies."""


def _as_list(value: Any) -> Any:
    """Return a single value as a list, to accept `scaling: weak` for `scaling: [weak]`."""
    return value if value is None or isinstance(value, list) else [value]


class WrittenCell(Document):
    """Cell (one run spec of the study) that is listed explicitly instead of by a grid."""

    scaling: Scaling = "weak"
    """Speed-up curve to which the cell belongs: weak or strong scaling."""
    changes: dict[str, Any]
    """Values of the run-spec keys (dotted) that differ from `base`."""


class ScalingStudy(Document):
    """Validated content of a scaling-study file; `study_cells` returns its cells (run specs)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,60}$")]
    """Name of the results folder: letters, digits, _ and -."""
    base: RunSpec
    """Run-spec keys that all cells share; the grid sets worker count and batch size."""
    scaling: Annotated[list[Scaling], BeforeValidator(_as_list), Field(min_length=1)] = [
        "weak",
        "strong",
    ]
    """`weak` keeps the batch size per worker constant as workers are added, `strong` the global
    batch size."""
    num_workers: Annotated[
        Annotated[list[PositiveInt], Field(min_length=1)] | None, BeforeValidator(_as_list)
    ] = None
    """Worker counts; by default 1, 2, 4, ... up to the largest number of workers that fits on the
    cluster."""
    batch_sizes: Annotated[list[PositiveInt], BeforeValidator(_as_list), Field(min_length=1)] = [64]
    """Batch sizes: per worker in weak scaling, global in strong scaling."""
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Further run-spec keys (dotted), each with a list of values; all combinations are run."""
    cells: Annotated[list[WrittenCell], Field(min_length=1)] | None = None
    """Explicit cells (run specs) instead of a grid; `base` then also sets worker count and batch
    size."""
    more: list[WrittenCell] = []
    """Further cells (run specs) that the option `--until` has added."""
    repeats: PositiveInt = 3
    """Runs per cell (run spec), with the seeds `base.seed`, `base.seed` + 1, ..."""
    seed: Seed = 0
    """Seed of the random order in which cells are run."""
    price: PositiveFloat | None = None
    """Price of a worker-hour. If given, plans state costs in money; see also `raybench plan`."""
    budget: PositiveFloat | None = None
    """Maximum cost of a training job, in money if there is a price, else in worker-seconds. The
    plan names the fastest configuration within this budget."""

    @field_validator("axes")
    @classmethod
    def _check_axes(cls, axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key in axes:
            if key in NO_AXES:
                study_key = OWN_KEYS.get(key)
                raise ValueError(
                    f"'{key}' cannot be an axis; "
                    + (f"write {study_key}: [...]" if study_key else "leave it out")
                )
        return axes

    @model_validator(mode="after")
    def _grid_or_cells(self) -> "ScalingStudy":
        for key in ("num_workers", "batch_sizes", "scaling", "axes"):
            values = getattr(self, key)
            if self.cells is not None and values and values != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key} belongs to a grid, and this study lists its cells; remove one of them"
                )
        return self

    def with_workers(self, num_workers: list[int]) -> "ScalingStudy":
        """Return the study with the given worker counts; a study that already sets worker counts or
        lists its cells is returned unchanged."""
        if self.num_workers is not None or self.cells is not None:
            return self
        return self.model_copy(update={"num_workers": num_workers})

    @property
    def counts(self) -> list[int]:
        """Worker counts of all cells (run specs), ascending; [1] if they are not set yet."""
        if self.cells is None:
            return sorted(self.num_workers or [1])
        return sorted({self._count(cell) for cell in self.cells})

    def only_workers(self, num_workers: list[int]) -> "ScalingStudy":
        """Return the study reduced to cells (run specs) with the given worker counts."""
        if self.cells is None:
            return self.model_copy(update={"num_workers": num_workers})
        cells = [cell for cell in self.cells if self._count(cell) in num_workers]
        return self.model_copy(update={"cells": cells})

    def _count(self, cell: WrittenCell) -> int:
        return int(cell.changes.get("num_workers", self.base.num_workers))


@dataclass(frozen=True)
class StudyCell:
    """Cell: a run spec of a scaling study, repeated with different seeds.

    A cell that belongs to both weak and strong scaling is not run twice.
    """

    name: str
    """Number of the cell as text, `0000`, `0001`, ... in the order of the grid; the records of the
    cell's runs name it in `source`."""
    spec: RunSpec
    scalings: tuple[Scaling, ...]
    """Speed-up curves (weak, strong) to which the cell belongs."""

    def repeat(self, number: int) -> tuple[str, RunSpec]:
        """Return the name and the run spec of one repeat; repeats are numbered from 0."""
        seed = (self.spec.seed + number) % 2**32
        return f"{self.name}-r{number}", self.spec.model_copy(update={"seed": seed})


def study_cells(study: ScalingStudy, source: str | None = None) -> list[StudyCell]:
    """Return the cells (run specs) of a study, without duplicates.

    Args:
        study: Study with worker counts or explicit cells.
        source: Name of the study in error messages.

    Raises:
        UserError: A run spec is invalid, or a global batch size is not a multiple of the worker
            count.
    """
    source = source or f"study {study.name}"
    pairs = list(_grid(study, source)) if study.cells is None else []
    for cell in [*(study.cells or []), *study.more]:
        pairs.append((cell.scaling, _spec(study, cell.changes, source)))
    by_document: dict[str, tuple[RunSpec, list[Scaling]]] = {}
    for scaling, spec in pairs:
        _, scalings = by_document.setdefault(spec.model_dump_json(), (spec, []))
        if scaling not in scalings:
            scalings.append(scaling)
    return [
        StudyCell(f"{number:04}", spec, tuple(scalings))
        for number, (spec, scalings) in enumerate(by_document.values())
    ]


def _grid(study: ScalingStudy, source: str) -> Iterator[tuple[Scaling, RunSpec]]:
    assert study.num_workers is not None, "numbers of workers are set by the machines"
    keys = list(study.axes)
    for values in itertools.product(*study.axes.values()):
        for scaling, batch, workers in itertools.product(
            study.scaling, study.batch_sizes, study.num_workers
        ):
            changes = dict(zip(keys, values, strict=True)) | {"num_workers": workers}
            spec = _spec(study, changes | {"batch_size_per_worker": batch}, source)
            yield scaling, spec if scaling == "weak" else _divided(spec, batch, study, source)


def _spec(study: ScalingStudy, changes: dict[str, Any], source: str) -> RunSpec:
    content = study.base.document()
    changes_text = ", ".join(f"{key} {value}" for key, value in changes.items())
    where = f"{source}, cell {changes_text}"
    for key, value in (changes | ALWAYS).items():
        content = with_key(content, key, value, where)
    objective = content["objective"]
    if isinstance(objective, dict) and objective.get("metric") is None:
        base = study.base.objective
        objective |= {key: getattr(base, key) for key in ("metric", "direction", "is_share")}
    return validate(RunSpec, content, where)


def _divided(spec: RunSpec, batch: int, study: ScalingStudy, source: str) -> RunSpec:
    """Return a run spec with the global batch size `batch`; raise UserError if the workers cannot
    share it equally."""
    per_worker, remainder = divmod(batch, spec.num_workers * spec.accumulate)
    if remainder or not per_worker:
        times = f" x accumulate {spec.accumulate}" if spec.accumulate > 1 else ""
        multiple = math.lcm(*(n * spec.accumulate for n in study.num_workers or [1]))
        raise UserError(
            f"{source}: 'batch_sizes': in strong scaling {batch} is the global batch size, "
            f"which is not divisible by {spec.num_workers} workers{times}; write multiples of "
            f"{multiple}, or scaling: weak.",
            ErrorCode.INVALID_VALUE,
        )
    return spec.model_copy(update={"batch_size_per_worker": per_worker})


BASE: dict[str, Any] = {
    "epochs": 3.0,
    "objective": {"kind": "best_at_budget", "max_train_seconds": 600.0},
}
"""Defaults for `base`: three epochs (two of them in steady state) and no target, so that all cells
train for the same number of epochs."""


def set_in_scaling(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a scaling study with the settings of `--set` applied.

    Keys of a scaling study are set directly, run-spec keys are set in `base`: `epochs: 5` sets
    `base.epochs`. A key that is set is removed from the axes and from explicit cells (run specs),
    which would override it: `framework: torch` removes the axis `framework`.

    Raises:
        UserError: A key is unknown or cannot be set, or axes or cells set the section that contains
            the key.
    """
    known_keys = (*ScalingStudy.model_fields, *RunSpec.model_fields)
    for key, value in settings.items():
        section, _, axis = key.partition(".")
        axes = content.get("axes") or {}
        if section == "axes" and axis and isinstance(axes, dict):
            content = content | {"axes": axes | {axis: value}}  # `axis` may be dotted
            continue
        if section not in known_keys:
            raise UserError(
                f"--set {key}: unknown key; {did_you_mean(section, known_keys)}",
                ErrorCode.UNKNOWN_KEY,
            )
        is_run_key = section not in ScalingStudy.model_fields
        if is_run_key and (key not in OWN_KEYS or content.get("cells")):
            key = f"base.{key}"
        if key.partition(".")[0] == "base":
            base_settings = value if key == "base" and isinstance(value, dict) else {}
            for name, setting in (base_settings or {key.removeprefix("base."): value}).items():
                content = _without_changes(content, str(name), setting)
        content = with_key(content, key, value, f"--set {key}")
    return content


def _without_changes(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the content with a run-spec key and its subkeys removed from axes and cells.

    Raises:
        UserError: The grid or the cells set the key in a way that cannot be removed, or the key has
            a fixed value in all scaling studies (ALWAYS).
    """
    axes, cells = content.get("axes"), content.get("cells")
    if ALWAYS.get(key, value) != value:
        raise UserError(
            f"--set {key}: every scaling study sets this key itself; leave it out.",
            ErrorCode.CONFLICT,
        )
    if key in OWN_KEYS and not cells:
        raise UserError(
            f"--set {key}: is set by the grid; write --set '{OWN_KEYS[key]}=[{value}]'.",
            ErrorCode.CONFLICT,
        )
    if isinstance(axes, dict):
        content = content | {"axes": _without_key(axes, key)}
    if isinstance(cells, list):
        cells_left = [
            cell | {"changes": _without_key(cell["changes"], key)}
            if isinstance(cell, dict) and isinstance(cell.get("changes"), dict)
            else cell  # invalid; validation reports the problem
            for cell in cells
        ]
        content = content | {"cells": cells_left}
    return content


def _without_key(changes: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the changes of a cell, or the axes, without `key` and its subkeys; raise UserError if
    they set a section that contains `key`."""
    for name in changes:
        if key.startswith(f"{name}.") or key == name in NO_AXES:
            raise UserError(
                f"--set {key}: the cells of this study set {name}; leave it out, or write your own "
                "study file.",
                ErrorCode.CONFLICT,
            )
    return {name: value for name, value in changes.items() if not f"{name}.".startswith(f"{key}.")}


def build_scaling_study(content: dict[str, Any], source: str, *, name: str) -> ScalingStudy:
    """Validate the content of a scaling-study file.

    Args:
        content: Content of the file.
        source: Name of the file in error messages.
        name: Name of the study if the content has none.

    Raises:
        UserError: The content is invalid.
    """
    base = content.get("base", {})
    if isinstance(base, dict):
        for key, study_key in OWN_KEYS.items():
            if key in base and not content.get("cells"):
                raise UserError(
                    f"{source}: 'base.{key}': is set by the grid; write {study_key}: [{base[key]}] "
                    "at the top level.",
                    ErrorCode.CONFLICT,
                )
        objective = base.get("objective")  # may only name a metric
        if isinstance(objective, dict) and not {"kind", "target"} & objective.keys():
            base = base | {"objective": BASE["objective"] | objective}
        validate(RunSpec, BASE | base, f"{source}: base")
        content = content | {"base": BASE | base}
    return validate(ScalingStudy, {"name": name} | content, source)


CPU = "cpu"
MONEY, WORKER_SECONDS = "money", "worker-seconds"
"""Units of cost. Without prices, a worker costs 1 per second, so the cost is in worker-seconds."""


class MachinePrice(Document):
    """A type of machine that can be rented, and its price."""

    accelerator: str = CPU
    """Ray's name for the GPU model, such as `A100` (see `accelerators` in `trials.csv`), or
    `cpu`."""
    workers: PositiveInt
    """Maximum number of workers on one machine, such as its number of GPUs."""
    price: PositiveFloat
    """Price of one machine per hour, however many workers it runs."""
    billing_step_s: NonNegativeFloat = 1.0
    """Billing increment in seconds: 3600 bills every started hour, 0 bills exact seconds."""
    startup_s: NonNegativeFloat = 0.0
    """Seconds from ordering a machine until workers can start on it; they are billed too."""


def read_prices(prices: str | Path | dict[str, Any]) -> dict[str, MachinePrice]:
    """Return the rentable machines by name.

    Args:
        prices: Path of a prices file, or its content.

    Raises:
        UserError: The file cannot be read, is invalid, or lists no machines.
    """
    content, source = content_of(prices, "prices")
    if not content:
        raise UserError(
            f"{source}: lists no machines; add one, such as p4d: {{workers: 8, price: 33}}.",
            ErrorCode.MISSING,
        )
    machines = {}
    for name, machine in content.items():
        if not isinstance(machine, dict):
            raise UserError(
                f"{source}: '{name}': must be a mapping with the keys workers, price, ...",
                ErrorCode.INVALID_VALUE,
            )
        machines[str(name)] = validate(MachinePrice, machine, f"{source}, {name}")
    return machines
