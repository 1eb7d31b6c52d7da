"""Folders of versions that knew no metric but accuracy: read, and gone on with."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from raybench.core.checkpoint import spec_digest
from raybench.core.documents import read_mapping, to_yaml
from raybench.core.errors import UserError
from raybench.core.objective import Objective, chance_of
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec, build_study
from raybench.results.load import load
from raybench.results.place import refuse_other_study
from raybench.results.records import read_records
from raybench.results.store import STUDY_FILE
from raybench.search.ask_tell import Search
from raybench.search.pipeline.reference import earlier_settings

FIXTURE = Path(__file__).parents[1] / "fixtures" / "digits_study"
RESOLVED = {"metric": "accuracy", "direction": "max", "chance": 0.1}
DIGESTS = {
    "6339ed893e524f8ffc1b98f7f4efa8626a23bef2f6a9559d11bf99151be9c20e": {"learning_rate": 0.25},
    "c90180ed8b87b6be7902250b4b8d0dd91a289ef845ddba1c4018af411175d96a": {
        "objective": {"kind": "accuracy_at_budget", "max_train_seconds": 7.0},
        "optimizer": "lamb",
    },
    "e2a120c549f2d6ebab3c3f3d7c41e9d7d5b82c96bb9bb7b274031f49ec34e4dc": {
        "objective": {"target": 0.9, "hold": 2}
    },
}
"""Run specs, and what the last version before metrics had names made of them."""
STUDY: dict[str, Any] = {
    "objective": {"kind": "accuracy_at_budget", "max_train_seconds": 7.0},
    "space": {"optimizer": ["adam", "lamb"]},
}
ITS_FILE = """
study:
  workload: mnist_small
  dataset: {name: digits, image_size: 28, repeat: 1, limit: null, validation_size: null,
    split_seed: 0, shape: [28, 28, 1], num_classes: 10, num_samples: 4096}
  objective: {kind: accuracy_at_budget, target: null, hold: 1, max_train_seconds: 7.0}
  search: {trials: 120, seed: 0, time_budget_s: null, concurrency: null, sampler: tpe,
    early_stopping: true, priors: true, factorise: true, cap_factor: 1.5}
  confirm: {top: 3, repeats: 3}
  auto: [eval_every_samples]
  is_set: false
  price: null
  space: {optimizer: [adam, lamb]}
  fixed: {}
"""
"""The study.yaml of the study above, by that version."""


def resolved(study: StudySpec, **changes: object) -> StudySpec:
    """The study with its metric and chance level named, as the checks before a search do."""
    objective = study.objective.model_copy(update=RESOLVED | changes)
    return study.model_copy(update={"objective": objective})


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_run_is_the_same_run_whatever_names_its_metric(digest):
    spec = RunSpec.model_validate(DIGESTS[digest])
    named = spec.model_copy(update={"objective": spec.objective.model_copy(update=RESOLVED)})
    assert spec_digest(spec) == spec_digest(named) == digest
    other = named.objective.model_copy(update={"metric": "loss", "direction": "min"})
    assert spec_digest(named.model_copy(update={"objective": other})) != digest


def test_a_study_of_then_goes_on_with_the_chance_level_it_had(tmp_path):
    file = tmp_path / STUDY_FILE
    file.write_text(ITS_FILE)
    study = earlier_settings(resolved(build_study(STUDY, "test")[0]), read_mapping(file))
    refuse_other_study("here", file, study)
    assert (study.objective.metric, study.objective.chance) == ("accuracy", None)
    assert chance_of(study.objective, 10) == 0.1
    # The session writes the study as it is now; the next one goes on too.
    file.write_text(to_yaml({"study": study.document()}))
    again = earlier_settings(resolved(build_study(STUDY, "test")[0]), read_mapping(file))
    refuse_other_study("here", file, again)
    assert again == study


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"metric": "loss", "direction": "min"}, "objective.metric was accuracy, is loss"),
        ({"max_train_seconds": 8.0}, "objective.max_train_seconds was 7.0, is 8.0"),
        ({"chance": 0.2}, "objective.chance was not set, is 0.2"),
    ],
)
def test_another_objective_is_another_study(tmp_path, changes, difference):
    file = tmp_path / STUDY_FILE
    file.write_text(ITS_FILE)
    study = resolved(build_study(STUDY, "test")[0], **changes)
    study = earlier_settings(study, read_mapping(file), is_chance_asked="chance" in changes)
    with pytest.raises(UserError, match=difference):
        refuse_other_study("here", file, study)


def test_the_oldest_folder_is_searched_on(tmp_path):
    """The stored study is older than `auto`, `priors` and the cap."""
    folder = shutil.copytree(FIXTURE, tmp_path / "study")
    before = load(folder)
    assert before.metric.name == "accuracy"
    assert before.is_timed
    stored = before.study["study"]
    content = {key: stored[key] for key in ("objective", "space", "fixed")} | {
        "search": {"trials": 30}
    }
    study, space = build_study(content, "test")
    study = earlier_settings(resolved(study), before.study)
    refuse_other_study("here", folder / STUDY_FILE, study)
    records = read_records(folder)
    search = Search(study, space, folder, runs=records.runs, curves=records.curves)
    asked = search.ask()
    assert asked is not None
    assert asked[1].objective == Objective(
        **stored["objective"] | {"metric": "accuracy", "direction": "max"}
    )
