"""Kinds of studies, and the keys of `study.yaml` by which they are distinguished."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

SCALING = "scaling_study"
"""Key of `study.yaml` that contains a scaling study."""
COMPARISON = "compare"
"""Key of `study.yaml` that contains the two sides, A and B, of a comparison."""
IMPORTED = "imported"
"""Key of `study.yaml` that names the source of runs imported from another tool; also the name of
the workload of such runs."""
TRAINING = "run"
"""Key in the section `study` of `study.yaml` that is true for a single training run."""
PROBED = "diagnosis"
"""Key in the section `study` of `study.yaml` that contains the run spec of a diagnosis."""


class StudyKind(Enum):
    """Kind of a study. The value is the name of the command that creates such a study."""

    SEARCH = "tune"
    TRAINING = "train"
    SCALING = "scale"
    COMPARISON = "compare"
    DIAGNOSIS = "diagnose"
    IMPORTED = "import"


def study_kind(content: Mapping[str, Any]) -> StudyKind:
    """Return the kind of a study, given the content of its `study.yaml`."""
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
