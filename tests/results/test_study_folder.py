import pytest

from raybench.results.place import check_folder, refuse_other_study, unused_folder
from raybench.results.store import STUDY_FILE
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.study import build_study
from tests.refusals import refused


def study(**changes):
    content = {
        "objective": {"target": 0.9},
        "space": {"optimizer": ["adam", "lamb"], "learning_rate": {"low": 1e-5, "high": 0.1}},
    }
    return build_study(content | changes, "s.yaml")[0]


@pytest.fixture
def study_folder(tmp_path):
    """A results folder with a study file."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / STUDY_FILE).write_text(to_yaml({"study": study().document(), "command": "x"}))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"search": {"time_budget_s": 60.0, "concurrency": 2}},
        {"confirm": {"race": 0}},
    ],
)
def test_the_same_study_resumes_with_other_budgets(study_folder, changes):
    refuse_other_study("here", study_folder / STUDY_FILE, study(**changes))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"objective": {"target": 0.8}}, "objective.target was 0.9, is 0.8"),
        ({"workload": "cnn7"}, "workload was mnist_small"),
        ({"dataset": {"limit": 10}}, "dataset.limit"),
        ({"fixed": {"epochs": 3.0}}, "fixed.epochs"),
        (
            {"space": {"optimizer": ["adam", "lars"]}},
            "space.optimizer was [adam, lamb], is [adam, lars]",
        ),
        (
            {"space": {"optimizer": ["adam", "lamb"]}},
            "space.learning_rate was {low: 1.0e-05, high: 0.1}",
        ),
        ({"objective": {"target": "auto"}}, "(objective.target was 0.9, is auto)"),
        ({"space": {"optimizer": ["lamb", "adam"]}}, "space.optimizer was"),
    ],
)
def test_another_study_is_refused_with_the_difference(study_folder, changes, difference):
    names = "s3://a/b", difference, "--fresh", "--out"
    with refused(ErrorCode.STUDY_CHANGED, *names) as refusal:
        refuse_other_study("s3://a/b", study_folder / STUDY_FILE, study(**changes))
    assert "\n" not in str(refusal.value)
    # Scores of another task are not suggested.
    is_other_task = not {"workload", "dataset", "objective"}.isdisjoint(changes)
    assert ("--seed-from s3://a/b" in str(refusal.value)) != is_other_task


def test_fresh_uses_the_next_free_folder(study_folder):
    second = study_folder.with_name("results-2")
    assert unused_folder(study_folder) == second
    second.mkdir()
    assert unused_folder(study_folder) == study_folder.with_name("results-3")
    assert unused_folder(study_folder.with_name("free")) == study_folder.with_name("free")
    assert not study_folder.with_name("free").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(ErrorCode.NOT_WRITABLE, f"--out {tmp_path / 'file'}"):
        check_folder(tmp_path / "file")
    with refused(ErrorCode.NOT_WRITABLE, f"--out {tmp_path / 'file' / 'below'}"):
        check_folder(tmp_path / "file" / "below")
    check_folder(tmp_path / "new" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
