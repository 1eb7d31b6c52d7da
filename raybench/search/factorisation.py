"""Factorized search spaces: keys that change the learning curve are sampled, while keys that change
only the speed are chosen by the placer (`placement.py`).

The learning curve over samples depends on the optimizer, the learning rate and the *global* batch
size. It does not depend on the worker count, gradient accumulation steps, GPU model or compilation
mode. It does not depend on the framework either, if the workload is the same network in both. So
the sampler proposes a global batch size, and the trial runs on one of the placements (framework,
workers, batch per worker, ...) with this global batch size. Precision changes both the curve and
the speed, so it is sampled, and step times are modeled separately for each precision.
"""

from collections.abc import Iterator
from typing import Any

from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.spec.objective import TIME
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RESOURCES, Placement, RunSpec, is_open
from raybench.spec.space import (
    Cases,
    Choices,
    Powers,
    Space,
    combinations,
    possible_values,
    values_of,
)
from raybench.spec.study import StudySpec

GLOBAL_BATCH = "global_batch_size"
"""Key that is sampled instead of worker count, batch size per worker and accumulation steps. Its
value is the product of these three."""
SPEED_KEYS = (
    "framework",
    "num_workers",
    "batch_size_per_worker",
    "accelerator_type",
    "compile",
    "accumulate",
    "prefetch",
)
NOT_WITH = (
    "bucket_mb",
    "gradient_compression",
    *(key for key in RESOURCES if key not in SPEED_KEYS),
    "strategy",
)
"""Keys whose effect on the step time is not modeled. A space that contains one of them cannot be
factorized."""


class Factors:
    """A factorized space: the sampled keys, and the placements (framework, workers, ...) on which a
    sampled configuration can run."""

    def __init__(self, sampled: Space, placements: list[Placement]) -> None:
        self.sampled = sampled
        """The sampled space: the search space with GLOBAL_BATCH instead of the speed keys."""
        self.all_placements = placements
        """Placements of all global batch sizes."""
        self._sampled_keys = [key for key in ("framework", "precision") if key in sampled]
        """Keys that are part of a placement and are sampled nevertheless."""
        self._placements_by_key: dict[tuple[object, ...], list[Placement]] = {}
        for placement in sorted(placements, key=lambda placement: -placement.num_workers):
            key = placement.samples, *(getattr(placement, name) for name in self._sampled_keys)
            self._placements_by_key.setdefault(key, []).append(placement)

    def placements_for(self, values: dict[str, Any]) -> list[Placement]:
        """Return all placements on which a sampled configuration can run, most workers first.

        Args:
            values: The configuration by sampled key, including GLOBAL_BATCH.
        """
        key = values[GLOBAL_BATCH], *(values[name] for name in self._sampled_keys)
        return list(self._placements_by_key.get(key, []))

    def placements_for_spec(self, spec: RunSpec) -> list[Placement]:
        """Return all placements on which the configuration of a run spec can run, most workers
        first."""
        key = spec.global_batch_size, *(getattr(spec, name) for name in self._sampled_keys)
        return list(self._placements_by_key.get(key, []))


def speed_values(placement: Placement) -> dict[str, Any]:
    """Return the run-spec keys of a placement with their values."""
    return {key: getattr(placement, key) for key in SPEED_KEYS}


def with_placement(spec: RunSpec, placement: Placement) -> RunSpec:
    """Return a copy of a run spec with another placement (framework, workers, ...)."""
    return spec.model_copy(update=speed_values(placement))


def factorise(study: StudySpec, space: Space, *, equal_frameworks: bool) -> Factors | str:
    """Factorize a search space: split it into sampled keys and placements.

    Args:
        study: The study.
        space: Search space of the study.
        equal_frameworks: Whether the workload is the same network in every framework, so that the
            framework changes only speed. Otherwise the framework is sampled.

    Returns:
        The factorized space, or the reason why it cannot be factorized.
    """
    keys = SPEED_KEYS if equal_frameworks else SPEED_KEYS[1:]
    reason = next(_obstacles(study, space, keys), None)
    if reason is not None:
        return reason
    placements = [
        Placement(**combination)
        for combination in combinations(space, study.fixed, {*SPEED_KEYS, "precision"})
    ]
    products = sorted({placement.samples for placement in placements})
    sampled: Space = {}
    for key, dimension in space.items():
        if key not in keys:
            sampled[key] = dimension
        elif GLOBAL_BATCH not in sampled and len(products) > 1:
            powers = Powers(products[0], products[-1])
            # Samplers use the order of powers of two, but treat choices as unordered.
            is_power_range = list(powers.values()) == products
            sampled[GLOBAL_BATCH] = powers if is_power_range else Choices(tuple(products))
    if len(products) == 1:  # all configurations have the same global batch size
        sampled[GLOBAL_BATCH] = Choices((products[0],))
    return Factors(sampled, placements)


SAMPLED_WHOLE = (
    "The model has batch normalization over each worker's own samples, so worker counts are "
    "sampled like every other key and not predicted (search.factorise: false); on GPUs, "
    "sync_batch_norm: true normalizes over the samples of all workers."
)


def study_factors(
    study: StudySpec, space: Space, *, batch_statistics: bool = False
) -> Factors | str:
    """Return the factorized space of a study, or the reason why all keys are sampled.

    Args:
        study: The study.
        space: Search space of the study.
        batch_statistics: Whether the model is known to have batch normalization over each worker's
            own batch, so that the learning curve depends on the worker count. All keys are then
            sampled, unless the user set `search.factorise`.
    """
    if not study.search.factorise:
        return "search.factorise is false"
    has_several = "num_workers" in space and len(possible_values(space["num_workers"])) > 1
    if batch_statistics and has_several and "factorise" not in study.search.model_fields_set:
        return SAMPLED_WHOLE
    if is_own_loop(study.workload):
        return "how a custom training loop uses workers and batch sizes is unknown"
    if any(is_open(key, "model", "data") for key in space):
        return next(_obstacles(study, space, SPEED_KEYS))
    model, data = (study.fixed.get(key) or {} for key in ("model", "data"))
    workload, _ = load_workload_dataset(study.workload, study.dataset, model, data)
    return factorise(study, space, equal_frameworks=isinstance(workload, LayerWorkload))


def _obstacles(study: StudySpec, space: Space, keys: tuple[str, ...]) -> Iterator[str]:
    """Yield each reason why a space cannot be factorized, if `keys` are the speed keys."""
    if study.objective.kind != TIME:
        yield "the value reached within a budget of seconds depends on the speed"
    searched = [key for key in keys if key in space and len(possible_values(space[key])) > 1]
    if not {*searched} - {"batch_size_per_worker"}:
        yield "neither workers nor frameworks of the same network are searched"
    for key in keys:
        dimension = space.get(key, Choices(()))
        if isinstance(dimension, Cases) and dimension.keys() <= {*keys} and key == "compile":
            continue  # each framework has its own compilation modes
        if not isinstance(dimension, Choices | Powers):
            yield f"space.{key} is neither a list nor a range with log2: true"
    for key in space:
        # A numeric option does not change the step time; a switch may select another kernel.
        is_switch = is_open(key, "optimizer_options") and any(
            isinstance(value, bool | str) for value in possible_values(space[key])
        )
        if key in NOT_WITH or is_open(key, "model", "data") or is_switch:
            yield f"space.{key} changes the step time too"
    if values_of("learning_rate_scaling", space, study.fixed) != ["none"]:
        yield "learning_rate_scaling makes the rate depend on the workers"
    if values_of("strategy", space, study.fixed) != ["distributed"]:
        yield "the step-time model requires strategy: distributed, with one process per worker"
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and key not in keys:
            for case in dimension.cases:
                depends = [name for name, _ in case.when if name in keys]
                if depends:
                    yield f"space.{key} depends on {depends[0]}"
