"""The kind of a study, as its `study.yaml` tells it."""

from typing import Any

import pytest

from raybench.results.study_kind import StudyKind, study_kind

OBJECTIVE: dict[str, Any] = {"objective": {"target": 0.95}}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"study": OBJECTIVE | {"space": {"num_workers": [1, 2]}}}, StudyKind.SEARCH),
        ({"study": OBJECTIVE | {"run": True}}, StudyKind.TRAINING),
        ({"study": OBJECTIVE | {"diagnosis": {"num_workers": 2}}}, StudyKind.DIAGNOSIS),
        ({"study": OBJECTIVE, "scaling_study": {}}, StudyKind.SCALING),
        ({"study": OBJECTIVE, "compare": {"sides": []}}, StudyKind.COMPARISON),
        ({"study": OBJECTIVE, "imported": {"from": "runs.csv"}}, StudyKind.IMPORTED),
        ({}, StudyKind.SEARCH),
        ({"study": "not a study"}, StudyKind.SEARCH),
    ],
)
def test_the_kind_follows_from_the_keys(content: dict[str, Any], kind: StudyKind) -> None:
    assert study_kind(content) is kind
