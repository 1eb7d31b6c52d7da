"""The kind of a study, as its `study.yaml` tells it."""

from pathlib import Path
from typing import Any

import pytest

from raybench.results.place import refuse_other_kind
from raybench.results.store import RECORDS_FILE, STUDY_FILE, StudyFiles
from raybench.results.study_kind import StudyKind, study_kind
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

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


def test_only_a_command_of_the_same_kind_continues_in_a_folder(tmp_path: Path) -> None:
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)  # an empty folder
    (tmp_path / RECORDS_FILE).touch()
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)  # a command that was ended early
    StudyFiles(tmp_path).write_yaml(STUDY_FILE, {"study": OBJECTIVE | {"run": True}})
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)
    with refused(ErrorCode.STUDY_CHANGED, "there", "--out"):
        refuse_other_kind("there", tmp_path, StudyKind.SCALING)
    (tmp_path / STUDY_FILE).unlink()
    (tmp_path / RECORDS_FILE).write_text("{}\n")
    with refused(ErrorCode.STUDY_CHANGED, "there", "--out"):
        refuse_other_kind("there", tmp_path, StudyKind.TRAINING)
