"""The space taken apart: what decides the learning curve is sampled, what decides speed is not.

Accuracy depends on optimizer, rate and *global* batch; the same curve is trained by any number
of workers, in any number of passes, on any GPU, compiled or not, and by either framework where the
workload is the same network in both. So the sampler proposes a global batch, and a trial runs on
one of the placements that make it up. Precision decides both: it is sampled, and each has step
times of its own. What does not fit in a worker's memory takes more passes than the space names.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import CUDA_GRAPHS, RESOURCES, Placement, RunSpec, is_open
from raybench.spec.space import (
    Cases,
    Choices,
    Powers,
    Space,
    combinations,
    possible_values,
    values_of,
)
from raybench.spec.study import TIME, StudySpec

GLOBAL_BATCH = "global_batch_size"
"""Key that is sampled in place of workers, batch per worker and passes: their product."""
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
"""Searched keys that change a step's time in ways the step-time model does not know."""
TIMES_PASSES = (2, 4, 8, 16)
"""Factors on the passes that a space names, where memory is short."""


class Factors:
    """The space to sample, and the placements of what was sampled."""

    def __init__(
        self, sampled: Space, placements: list[Placement], *, may_add_passes: bool = True
    ) -> None:
        """`may_add_passes`: whether a step may take more of them than `placements` have."""
        self.sampled = sampled
        """The space without speed keys, with GLOBAL_BATCH."""
        self.all_placements = placements
        """Every placement that makes up some global batch."""
        self.most_passes = max((one.accumulate for one in placements), default=1)
        """Passes of a step at most; more only where memory is short."""
        self._in_less_memory = self._in_more_passes() if may_add_passes else []
        self._given = [key for key in ("framework", "precision") if key in sampled]
        """Keys of a placement that the sampler chooses."""
        self._found: dict[tuple[object, ...], list[Placement]] = {}

    def of_values(self, values: dict[str, Any], *, in_more_passes: bool = False) -> list[Placement]:
        """Return every placement of a proposal, widest first; `in_more_passes`: those too that
        need less memory."""
        given = [values[key] for key in self._given]
        return self._find(values[GLOBAL_BATCH], given, in_more_passes)

    def of_spec(self, spec: RunSpec, *, in_more_passes: bool = False) -> list[Placement]:
        """Return every placement of a run spec's global batch, as of a proposal."""
        given = [getattr(spec, key) for key in self._given]
        return self._find(spec.global_batch_size, given, in_more_passes)

    def _in_more_passes(self) -> list[Placement]:
        """Return what needs less memory for the same step."""
        found = []
        for one in self.all_placements:
            # CUDA graphs write the gradients of a pass over those of the one before.
            is_of_one_pass = one.compile in CUDA_GRAPHS and one.gpus_per_worker
            if is_of_one_pass or one.accumulate < self.most_passes:
                continue
            for times in TIMES_PASSES:
                batch, rest = divmod(one.batch_size_per_worker, times)
                if not rest:
                    passes = one.accumulate * times
                    found.append(replace(one, batch_size_per_worker=batch, accumulate=passes))
        return found

    def _find(self, samples: int, given: list[object], in_more_passes: bool) -> list[Placement]:
        asked = samples, *given, in_more_passes
        if asked not in self._found:
            every = [*self.all_placements, *(self._in_less_memory if in_more_passes else [])]
            found = [
                one
                for one in every
                if one.samples == samples and [getattr(one, key) for key in self._given] == given
            ]
            found.sort(key=lambda placement: -placement.num_workers)
            self._found[asked] = found
        return list(self._found[asked])


def speed_values(placement: Placement) -> dict[str, Any]:
    """Return a placement as the keys of a run spec that a space searches."""
    return {key: getattr(placement, key) for key in SPEED_KEYS}


def placed(spec: RunSpec, placement: Placement) -> RunSpec:
    """Return a run spec on another placement."""
    return spec.model_copy(update=speed_values(placement))


def factorise(study: StudySpec, space: Space, *, equal_frameworks: bool) -> Factors | str:
    """Take a study's space apart, or say in words why that cannot be done.

    `equal_frameworks`: the workload is the same network in every framework, so that framework
    too decides speed alone; otherwise it stays with what is sampled.
    """
    keys = SPEED_KEYS if equal_frameworks else SPEED_KEYS[1:]
    reason = next(_obstacles(study, space, keys), None)
    if reason is not None:
        return reason
    placements = [
        replace(
            Placement(*(one[key] for key in (*SPEED_KEYS[:3], *RESOURCES))),
            **{key: one[key] for key in (*SPEED_KEYS[4:], "precision")},
        )
        for one in combinations(space, study.fixed, {*SPEED_KEYS, *RESOURCES, "precision"})
    ]
    products = sorted({one.samples for one in placements})
    sampled: Space = {}
    for key, dimension in space.items():
        if key not in keys:
            sampled[key] = dimension
        elif GLOBAL_BATCH not in sampled and len(products) > 1:
            powers = Powers(products[0], products[-1])
            # As powers of two the sampler knows their order.
            is_row = list(powers.values()) == products
            sampled[GLOBAL_BATCH] = powers if is_row else Choices(tuple(products))
    if len(products) == 1:  # nothing to sample: every proposal has it
        sampled[GLOBAL_BATCH] = Choices((products[0],))
    normalises_a_step = values_of("sync_batch_norm", space, study.fixed) != [False]
    return Factors(sampled, placements, may_add_passes=not normalises_a_step)


def study_factors(study: StudySpec, space: Space) -> Factors | str:
    """Return the study's space taken apart, or why it is not."""
    if not study.search.factorise:
        return "search.factorise is false"
    if is_own_loop(study.workload):
        return "what a training loop of your own does with workers and batch is not known"
    if any(is_open(key, "model", "data") for key in space):
        return next(_obstacles(study, space, SPEED_KEYS))
    model, data = (study.fixed.get(key) or {} for key in ("model", "data"))
    workload, _ = load_workload_dataset(study.workload, study.dataset, model, data)
    return factorise(study, space, equal_frameworks=isinstance(workload, LayerWorkload))


def _obstacles(study: StudySpec, space: Space, keys: tuple[str, ...]) -> Iterator[str]:
    if study.objective.kind != TIME:
        yield "what a budget of seconds reaches depends on speed"
    searched = [key for key in keys if key in space and len(possible_values(space[key])) > 1]
    if not {*searched} - {"batch_size_per_worker"}:
        yield "neither workers nor frameworks of the same network are searched"
    for key in keys:
        dimension = space.get(key, Choices(()))
        if isinstance(dimension, Cases) and dimension.keys() <= {*keys} and key == "compile":
            continue  # each framework has its own
        if not isinstance(dimension, Choices | Powers):
            yield f"space.{key} is neither a list nor a range with log2: true"
    for key in space:
        # Numbers of an optimizer cost as much as others; a switch may choose other kernels.
        is_switch = is_open(key, "optimizer_options") and any(
            isinstance(one, bool | str) for one in possible_values(space[key])
        )
        if key in NOT_WITH or is_open(key, "model", "data") or is_switch:
            yield f"space.{key} changes the step time too"
    if values_of("learning_rate_scaling", space, study.fixed) != ["none"]:
        yield "learning_rate_scaling makes the rate depend on the workers"
    if values_of("strategy", space, study.fixed) != ["distributed"]:
        yield "the step-time model knows workers that are processes, not strategy single_process"
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and key not in keys:
            for case in dimension.cases:
                depends = [name for name, _ in case.when if name in keys]
                if depends:
                    yield f"space.{key} depends on {depends[0]}"
