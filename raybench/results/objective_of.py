"""What a `study.yaml` says its runs are judged by; it may be of an earlier version."""

from collections.abc import Mapping
from typing import Any

from raybench.core.metric import ACCURACY, Metric, named_metric


def metric_of(study: Mapping[str, Any]) -> Metric:
    """Return the metric of a `study.yaml`; accuracy where it is of a version that had no other."""
    objective = study["study"]["objective"]
    if objective.get("metric") is None:
        return ACCURACY
    return named_metric(
        objective["metric"],
        objective.get("direction") or "max",
        is_share=bool(objective.get("is_share")),
    )


def value_at_start(study: Mapping[str, Any], metric: Metric) -> float | None:
    """Return what the metric is before a run has begun; see `StudyResults.value_at_start`."""
    content = study["study"]
    chance = content["objective"].get("chance")
    if chance is not None or metric != ACCURACY:
        return None if chance is None else float(chance)
    dataset = content.get("dataset")
    num_classes = dataset.get("num_classes") if isinstance(dataset, dict) else None
    return 1.0 / num_classes if isinstance(num_classes, int) and num_classes > 0 else None
