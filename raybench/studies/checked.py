"""What the cells of a scaling study train, looked at before Ray starts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raybench.backends.check_model import check_models
from raybench.core.errors import UserError
from raybench.core.metric import ACCURACY, Metric
from raybench.core.objective import naming
from raybench.core.scaling_study import ScalingStudy, StudyCell
from raybench.data.dataset import Dataset
from raybench.data.shared import shared_key
from raybench.search.pipeline.preflight import check_task


@dataclass(frozen=True)
class Checked:
    """What a study trains, looked at before Ray starts."""

    datasets: dict[str, Dataset]
    """By the name of the folder that they are shared in."""
    warnings: list[str]
    metric: Metric
    """What all of its cells are judged by."""


def check_cells(cells: Sequence[StudyCell]) -> Checked:
    """Load every workload and dataset once, in all frameworks it runs in."""
    tasks: dict[str, list[StudyCell]] = {}
    for cell in cells:
        key = json.dumps([cell.spec.workload, cell.spec.dataset.model_dump(mode="json")])
        tasks.setdefault(key, []).append(cell)
    checked, metrics = Checked({}, [], ACCURACY), dict[str, Metric]()
    for alike in tasks.values():
        spec = alike[0].spec
        frameworks = sorted({cell.spec.framework for cell in alike})
        objective, dataset = check_task(spec, list(frameworks))
        metrics[objective.judged_by.name] = objective.judged_by
        checked.datasets[shared_key(spec.workload, spec.dataset)] = dataset
        checked.warnings.extend(
            one
            for one in check_models(spec, list(frameworks)).warnings
            if one not in checked.warnings
        )
    names = list(dict.fromkeys([*metrics, *(cell.spec.objective.metric for cell in cells)]))
    named = [name for name in names if name is not None]
    if len(named) > 1:
        raise UserError(
            "The cells of a scaling study are judged by one metric, here by "
            f"{' and '.join(named)}; set base.objective.metric to one that all of them have."
        )
    return replace(checked, metric=metrics[named[0]])


def with_metric(study: ScalingStudy, metric: Metric) -> ScalingStudy:
    """Return the study with the metric of its runs named, as results are read by it."""
    objective = study.base.objective.model_copy(update=naming(metric))
    return study.model_copy(update={"base": study.base.model_copy(update={"objective": objective})})
