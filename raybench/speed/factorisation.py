"""The space taken apart: what decides the learning curve is sampled, what decides speed is not.

Accuracy depends on optimizer, rate and *global* batch; the same curve is trained by any number
of workers, and by either framework where the workload is the same network in both. So the
sampler proposes a global batch, and a trial runs on one of the splits that make it up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raybench.core.space import Cases, Choices, Dimension, Powers, Space, possible_values
from raybench.core.spec import RunSpec
from raybench.core.study import TIME, StudySpec
from raybench.workloads.base import LayerWorkload
from raybench.workloads.find import load_workload_dataset

GLOBAL_BATCH = "global_batch_size"
"""What is sampled in place of workers and batch per worker: their product."""
SPEED_KEYS = ("framework", "num_workers", "batch_size_per_worker")
NOT_WITH = ("accumulate", "cpus_per_worker", "gpus_per_worker", "precision")
"""Searched keys that change a step's time in ways the step-time model does not know."""


@dataclass(frozen=True, order=True)
class Split:
    """One way to run a configuration: the part of a run spec that decides speed alone."""

    framework: str
    num_workers: int
    batch_size_per_worker: int

    @property
    def group(self) -> tuple[str, int]:
        """The kind of worker group it runs in."""
        return self.framework, self.num_workers

    def values(self) -> dict[str, Any]:
        """Return it as keys of a run spec."""
        return {key: getattr(self, key) for key in SPEED_KEYS}


def split_of(spec: dict[str, Any]) -> Split:
    """Return the split a run spec has."""
    return Split(**{key: spec[key] for key in SPEED_KEYS})


class Factors:
    """The space to sample, and the splits of what was sampled."""

    def __init__(self, sampled: Space, splits: list[Split]) -> None:
        self.sampled = sampled
        """The space without speed keys, with GLOBAL_BATCH."""
        self.all_splits = splits
        """Every split that makes up some global batch."""
        self._frameworks_differ = "framework" in sampled

    def splits(self, values: dict[str, Any]) -> list[Split]:
        """Return every split of a proposal, or of a run spec, widest first."""
        batch = values.get(GLOBAL_BATCH) or (
            values["num_workers"] * values["batch_size_per_worker"]
        )
        found = [
            split
            for split in self.all_splits
            if split.num_workers * split.batch_size_per_worker == batch
            and not (self._frameworks_differ and split.framework != values["framework"])
        ]
        return sorted(found, key=lambda split: -split.num_workers)

    def specify(self, values: dict[str, Any], split: Split) -> dict[str, Any]:
        """Return a proposal as run-spec keys, run in one of its splits."""
        rest = {key: value for key, value in values.items() if key != GLOBAL_BATCH}
        return rest | split.values()


def factorise(study: StudySpec, space: Space, *, equal_frameworks: bool) -> Factors | str:
    """Take a study's space apart, or say in words why that cannot be done.

    `equal_frameworks`: the workload is the same network in every framework, so that framework
    too decides speed alone; otherwise it stays with what is sampled.
    """
    keys = SPEED_KEYS if equal_frameworks else SPEED_KEYS[1:]
    reason = next(_obstacles(study, space, keys), None)
    if reason is not None:
        return reason
    splits = [
        Split(framework, workers, batch)
        for framework in _values(study, space, "framework")
        for workers in _values(study, space, "num_workers")
        for batch in _values(study, space, "batch_size_per_worker")
    ]
    products = sorted({split.num_workers * split.batch_size_per_worker for split in splits})
    sampled: Space = {}
    for key, dimension in space.items():
        if key not in keys:
            sampled[key] = dimension
        elif GLOBAL_BATCH not in sampled and len(products) > 1:
            sampled[GLOBAL_BATCH] = _batches(products)
    if len(products) == 1:  # nothing to sample: every proposal has it
        sampled[GLOBAL_BATCH] = Choices((products[0],))
    return Factors(sampled, splits)


def study_factors(study: StudySpec, space: Space) -> Factors | str:
    """Return the study's space taken apart, or why it is not."""
    if not study.search.factorise:
        return "search.factorise is false"
    workload, _ = load_workload_dataset(study.workload, study.dataset)
    return factorise(study, space, equal_frameworks=isinstance(workload, LayerWorkload))


def _obstacles(study: StudySpec, space: Space, keys: tuple[str, ...]) -> Iterator[str]:
    if study.objective.kind != TIME:
        yield "what a budget of seconds reaches depends on speed"
    searched = [key for key in keys if key in space and len(possible_values(space[key])) > 1]
    if not set(searched) & {"framework", "num_workers"}:
        yield "neither workers nor frameworks of the same network are searched"
    for key in keys:
        if key in space and not isinstance(space[key], Choices | Powers):
            yield f"space.{key} is neither a list nor a range with log2: true"
    for key in NOT_WITH:
        if key in space:
            yield f"space.{key} changes the step time too"
    if _values(study, space, "learning_rate_scaling") != ["none"]:
        yield "learning_rate_scaling makes the rate depend on the workers"
    for key, dimension in space.items():
        if isinstance(dimension, Cases):
            for case in dimension.cases:
                depends = [name for name, _ in case.when if name in keys]
                if depends:
                    yield f"space.{key} depends on {depends[0]}"


def _values(study: StudySpec, space: Space, key: str) -> list[Any]:
    if key in space:
        return possible_values(space[key])
    return [study.fixed.get(key, RunSpec.model_fields[key].default)]


def _batches(products: list[int]) -> Dimension:
    powers = Powers(products[0], products[-1])
    # As powers of two the sampler knows their order.
    return powers if list(powers.values()) == products else Choices(tuple(products))
