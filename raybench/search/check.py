"""What is checked before anything starts: workload, data, frameworks, room on the cluster."""

import importlib.util

from raybench.cluster.admission import Shape
from raybench.cluster.lease import shape_of
from raybench.cluster.session import Capacity
from raybench.core.errors import UserError
from raybench.core.space import Space, possible_values
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec
from raybench.data.dataset import Dataset
from raybench.workloads.find import load_workload_dataset, require_framework


def check_task(spec: RunSpec, frameworks: list[str]) -> Dataset:
    """Load workload and data here, so that what is missing is said before Ray starts."""
    for framework in frameworks:
        if importlib.util.find_spec(framework) is None:
            raise UserError(
                f"framework {framework} is not installed; run: pip install "
                f"'raybench[{framework}]', or leave it out: --set space.framework=[...]."
            )
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    for framework in frameworks:
        require_framework(workload, framework)
    chance = 1.0 / dataset.num_classes
    target = spec.objective.target
    if target is not None and target <= chance:
        raise UserError(
            f"objective.target: {target} is not above chance ({chance:.3f} with "
            f"{dataset.num_classes} classes); name a higher one."
        )
    return dataset


def searched(study: StudySpec, space: Space, key: str) -> list[object]:
    """Return the values of a run-spec key that trials of a study can have."""
    if key in space:
        return possible_values(space[key])
    return [study.fixed.get(key, RunSpec.model_fields[key].default)]


def shapes(study: StudySpec, space: Space) -> list[Shape]:
    """Return every worker group a study can ask for (bounds only, where a range is searched)."""
    keys = ("framework", "num_workers", "cpus_per_worker", "gpus_per_worker")
    combinations: list[dict[str, object]] = [{}]
    for key in keys:
        values = searched(study, space, key)
        combinations = [one | {key: value} for one in combinations for value in values]
    return [shape_of(RunSpec(**values)) for values in combinations]  # type: ignore[arg-type]


def check_room(study: StudySpec, space: Space, capacity: Capacity) -> None:
    """Raise UserError if a group the study can ask for does not fit the empty cluster."""
    for shape in shapes(study, space):
        capacity.refuse_infeasible(shape)


def first_groups(study: StudySpec, space: Space, capacity: Capacity) -> list[Shape]:
    """Return the groups to start while the search itself starts, as many as fit.

    Those of frameworks that are used in one shape only: of several, the first trials decide,
    and a group nobody asks for yet would keep them waiting.
    """
    chosen: list[Shape] = []
    every = shapes(study, space)
    for shape in every:
        cpus = sum(other.cpus for other in chosen) + shape.cpus
        gpus = sum(other.gpus for other in chosen) + shape.gpus
        is_certain = sum(other.framework == shape.framework for other in every) == 1
        if is_certain and cpus <= capacity.cpus and gpus <= capacity.gpus:
            chosen.append(shape)
    return chosen


def default_concurrency(study: StudySpec, space: Space, capacity: Capacity) -> int:
    """Return how many of the smallest trials the cluster holds at once."""
    smallest = min(shapes(study, space), key=lambda shape: (shape.gpus, shape.cpus))
    rooms = [capacity.cpus // max(smallest.cpus, 1)]
    if smallest.gpus:
        rooms.append(capacity.gpus // smallest.gpus)
    return max(1, min(rooms))
