"""Several studies side by side."""

import shutil
from pathlib import Path

import pytest

import raybench
from raybench.report.several import Studies
from raybench.results.place import unlike
from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from tests.made_results import curve, results_folder, run_line

FIXTURE = Path(__file__).parents[1] / "fixtures" / "digits_study"


@pytest.fixture
def places(tmp_path):
    for name, seconds in (("a/study", 2.0), ("b/study", 1.0)):
        results_folder(tmp_path / name, [*curve("0000", [0.5, 0.92]), run_line("0000", seconds)])
    return [tmp_path / "a/study", tmp_path / "b/study"]


def test_frames_are_joined_with_the_study_in_front(places):
    studies = raybench.load([*places, FIXTURE])
    assert isinstance(studies, Studies)
    assert studies.names == ("a/study", "b/study", "digits_study")
    assert next(iter(studies.trials.columns)) == "study"
    assert dict(studies.trials["study"].value_counts()) == {
        "digits_study": 33,
        "a/study": 1,
        "b/study": 1,
    }
    assert len(studies.curves) == 206 + 4
    assert set(studies.confirmed["study"]) == {"digits_study"}
    assert studies["b/study"] is studies[1]
    assert studies[:2].names == ("a/study", "b/study")
    with pytest.raises(UserError, match="no study 'c'; there are a/study"):
        studies["c"]


def test_what_each_found_is_compared(places):
    studies = raybench.load([*places, FIXTURE])
    table = studies.winners.set_index("study")
    assert dict(table["seconds"])["b/study"] == 1.0
    assert list(table["is_confirmed"]) == [False, False, True]
    assert (table["ties"]["digits_study"], table["trials"]["digits_study"]) == (2, 24)
    budgets = studies.best_at_every_budget()
    assert list(budgets.columns) == ["study", "train_s", "value", "trial"]
    assert budgets[budgets["study"] == "a/study"]["value"].tolist() == [0.5, 0.92]
    lines = repr(studies).split("\n")
    assert lines[0].startswith("3 studies")
    assert lines[2].startswith("b/study: Nothing is confirmed yet. Best so far, perhaps by luck")
    page = studies._repr_html_()
    assert "<strong>3 studies</strong>" in page
    assert "<td>b/study</td>" in page
    assert "unconfirmed: one run of the search.</td>" in page, "whole"


def test_studies_without_a_result_are_in_the_table(tmp_path, places):
    results_folder(tmp_path / "empty", [])
    studies = raybench.load([tmp_path / "empty", places[0]])
    assert studies.winners["trial"].isna().tolist() == [True, False]
    assert "empty: No run has finished." in repr(studies)


def test_metrics_that_differ_are_not_put_on_one_axis(tmp_path, places):
    loss = Objective(target=0.4, metric="loss", direction="min")
    results_folder(tmp_path / "loss", [run_line("0000", 2.0, objective=loss)], objective=loss)
    studies = raybench.load([tmp_path / "loss", places[0]])
    assert {"best_loss", "best_accuracy"} <= set(studies.trials.columns)
    assert list(studies.winners["metric"]) == ["loss", "accuracy"]
    with pytest.raises(UserError, match="judged by accuracy and loss"):
        studies.best_at_every_budget()


def test_names_tell_studies_apart():
    assert unlike([("s", "/x/a/s"), ("s", "/x/b/s"), ("t", "/x/t")]) == ("a/s", "b/s", "t")
    assert unlike([("s", "s"), ("s", "s")]) == ("s", "s (2)")
    assert unlike([]) == ()


def test_a_folder_of_studies_names_them(tmp_path, places):
    with pytest.raises(UserError, match=r"is no study itself, below it are 1: .*'.*/a/study'"):
        raybench.load(tmp_path / "a")
    with pytest.raises(UserError, match="the list is empty"):
        raybench.load([])
    study = raybench.load(places[0])
    assert (study == study, study == raybench.load(places[1])) == (True, False)
    (places[0] / "records.jsonl").unlink()
    with pytest.raises(UserError, match=r"holds no records\.jsonl"):
        raybench.load(places[0])
    with pytest.raises(UserError, match=r"holds no records\.jsonl"):
        raybench.load(tmp_path / "nowhere")
    shutil.copy(FIXTURE / "records.jsonl", tmp_path / "a" / "some.txt")
    with pytest.raises(UserError, match="is no study of raybench; name a folder"):
        raybench.load(tmp_path / "a" / "some.txt")
