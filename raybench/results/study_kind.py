"""The kinds of studies, and how `study.yaml` tells them apart."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

SCALING = "scaling_study"
"""Key of `study.yaml` that holds a scaling study."""
COMPARISON = "compare"
"""Key of `study.yaml` that holds the sides of a comparison."""
IMPORTED = "imported"
"""Key of `study.yaml` that names the source of runs of another tool; also their workload."""
TRAINING = "run"
"""Key below `study` that is true for a single training."""
PROBED = "diagnosis"
"""Key below `study` that holds the run spec of a diagnosis."""


class StudyKind(Enum):
    """Kind of a study; the value names the command that makes it."""

    SEARCH = "tune"
    TRAINING = "train"
    SCALING = "scale"
    COMPARISON = "compare"
    DIAGNOSIS = "diagnose"
    IMPORTED = "import"


def study_kind(content: Mapping[str, Any]) -> StudyKind:
    """Return the kind of the study with this content of `study.yaml`."""
    study = content.get("study")
    if isinstance(content.get(COMPARISON), Mapping):
        return StudyKind.COMPARISON
    if SCALING in content:
        return StudyKind.SCALING
    if IMPORTED in content:
        return StudyKind.IMPORTED
    if isinstance(study, Mapping) and study.get(TRAINING):
        return StudyKind.TRAINING
    if isinstance(study, Mapping) and study.get(PROBED):
        return StudyKind.DIAGNOSIS
    return StudyKind.SEARCH
