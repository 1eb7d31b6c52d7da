"""`--seed-from`: trials of an earlier study are learned by the sampler, or refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raybench.results.store import STUDY_FILE, Store, machine
from raybench.search.curve_search import Decision
from raybench.search.sampling.default_rates import HASTE, default_rate
from raybench.search.sampling.earlier import load_earlier, settings_of
from raybench.search.search import Search
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.spec.study import StudySpec, build_study
from raybench.stats.record import Prediction
from tests.refusals import refused
from tests.search.made_up import ask, evaluation, journal_of, make_search, outcome, record

STUDY: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10.0},
    "search": {"trials": 40},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": [32, 64],
        "optimizer": ["adam", "lars"],
        "learning_rate": {"low": 1e-4, "high": 1.0, "log": True},
    },
}
RATE = 0.01


def build(**changes: Any) -> StudySpec:
    return build_study(STUDY | changes, "test")[0]


def earlier_folder(folder: Path, **changes: Any) -> Path:
    """Write a study of six trials: reached in 4 s, stopped, failed, outside of STUDY's space."""
    study = build(**changes)
    set_to = {"objective": study.objective.model_copy(update={"max_train_seconds": 3.2})}
    study = study.model_copy(update={"is_set": True} | (set_to if "objective" in changes else {}))
    if "eval_every_samples" not in study.fixed and "eval_every_samples" in study.auto:
        study = study.model_copy(update={"fixed": study.fixed | {"eval_every_samples": 100}})
    common = {"num_workers": 1, "batch_size_per_worker": 64, "optimizer": "adam"}

    def add(name: str, values: dict[str, Any], seconds: float = 3.0, **ended: Any) -> None:
        spec = study.run_spec(common | {"learning_rate": RATE} | values)
        ended_run = record(name, spec, seconds, samples=100, **ended)
        store.append(replace(ended_run, ledger=ended_run.ledger | {"train": 3.0}).line())

    with Store(folder) as store:
        store.write_yaml(STUDY_FILE, {"study": study.document(), "machine": machine()})
        add("0000", {}, 4.0)
        add("0001", {"learning_rate": 0.5}, stop=None, score=2.5)
        add("0002", {"optimizer": "lars"}, failure="oom")
        add("0003", {"learning_rate": 0.02}, failure="worker_lost")
        add("0004", {"batch_size_per_worker": 128}, 4.0)
        add("0005", {"learning_rate": 3.0}, stop="epochs", score=2.4)
        narrow = {"framework": "torch", "num_workers": 2, "batch_size_per_worker": 32}
        store.append(Prediction(trial="0000", time_to_target_s=2.0, **narrow).line())
    return folder


def search_in(folder: Path, *, apart: bool = True, **changes: Any) -> Search:
    return make_search(folder, STUDY | changes, apart=apart)


ADAM_ALONE = STUDY["space"] | {
    "optimizer": ["adam"],
    "learning_rate": [{"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1.0, "log": True}],
}
"""A range for Adam alone: the learning rate of other optimizers has no range."""


@pytest.mark.parametrize(
    ("earlier", "space", "apart", "states"),
    [
        # The factorized space also has the global batch size 128.
        ({}, STUDY["space"], True, "complete pruned fail complete"),
        ({}, STUDY["space"], False, "complete pruned pruned"),
        ({"eval_every_samples": 77}, STUDY["space"], False, "complete pruned pruned"),
        ({}, ADAM_ALONE, True, "complete pruned complete"),
        ({"weight_decay": 0.1}, STUDY["space"], True, ""),
    ],
)
def test_earlier_trials_inside_the_space_are_learned(earlier, space, apart, states, tmp_path):
    folder = earlier_folder(tmp_path / "earlier", fixed=earlier)
    fixed = {"eval_every_samples": 500}
    search = search_in(tmp_path / "new", apart=apart, space=space, fixed=fixed)
    search.learn_from(load_earlier(folder, build()))
    learned = [trial.state.name.lower() for trial in journal_of(search).get_trials()]
    assert learned == states.split()
    assert search.num_finished == 0


def test_curves_of_an_earlier_study_propose_from_the_first_trial_on(tmp_path):
    """Earlier curves are observations of the model. They are not trials and stop no trial."""
    folder, study = tmp_path / "earlier", build()
    common = {"num_workers": 1, "batch_size_per_worker": 32, "optimizer": "adam"}
    with Store(folder) as store:
        store.write_yaml(STUDY_FILE, {"study": study.document(), "machine": machine()})
        for number, rate in enumerate((1e-3, 3e-3, 1e-2, 3e-2, 1e-1)):
            spec = study.run_spec(common | {"learning_rate": rate})
            end_s, name = 2.0 * (1 + abs(math.log(rate / 1e-2))), f"{number:04d}"
            for index, share in enumerate((0.25, 0.5, 0.75, 1.0)):
                reached = {"value": 0.1 + 0.85 * share, "samples": int(1000 * end_s * share)}
                at = evaluation(end_s * share, index=index, **reached)
                store.append(at.line(name, role="trial", spec=spec))
            store.append(record(name, spec, end_s, samples=int(1000 * end_s)).line())
    search = search_in(tmp_path / "new")
    search.learn_from(load_earlier(folder, study))
    name, spec = ask(search)
    assert spec.learning_rate == pytest.approx(1e-2, rel=1e-6)
    assert search.on_result(name, outcome(9.0, value=0.2)) is Decision.CONTINUE
    rates = [ask(search)[1].learning_rate for _ in range(7)]
    assert {round(rate, 9) for rate in rates[1:4:2]} == {3e-3, 3e-2}
    assert search.curves.ranked() == []
    assert search.num_finished == 0


def test_scores_are_of_the_fastest_placement_and_default_rates_are_left_out(tmp_path):
    folder = earlier_folder(tmp_path / "earlier")
    rates = []
    for name in ("new", "without"):
        search = search_in(tmp_path / name, search={"trials": 40, "sampler": "tpe"})
        if name == "new":
            search.learn_from(load_earlier(folder, build()))
            assert journal_of(search).best_value == pytest.approx(math.log(2.0))
        spec = ask(search)[1]
        rates.append(spec.learning_rate / default_rate(spec.optimizer, spec.global_batch_size))
    assert rates[0] != pytest.approx(HASTE)
    assert rates[1] == pytest.approx(HASTE)


AUTO = {"objective": {"target": 0.95, "max_train_seconds": "auto"}}


def test_auto_settings_are_taken_from_the_earlier_study(tmp_path):
    folder = earlier_folder(tmp_path / "earlier", **AUTO)
    earlier = load_earlier(folder, build(**AUTO))
    study, words = settings_of(earlier, build(**AUTO))
    assert study.objective.max_train_seconds == 3.2
    assert study.fixed == {"eval_every_samples": 100}
    assert not study.needs_reference
    assert all(name in words[0] for name in ("max_train_seconds 3.2", str(folder)))
    assert settings_of(earlier, study) == (study, [])
    target = build(objective={"target": "auto", "max_train_seconds": 3.2})
    assert settings_of(load_earlier(folder, target), target)[0].objective.target == 0.95
    file = folder / STUDY_FILE
    file.write_text(file.read_text().replace("is_set: true", "is_set: false"))
    with refused(ErrorCode.NO_RESULT, "max_train_seconds"):
        load_earlier(folder, build(**AUTO))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"objective": {"target": 0.9, "max_train_seconds": 10.0}}, ("objective.target", 0.95)),
        ({"workload": "deep_mlp"}, ("workload", "mnist_small", "deep_mlp")),
        ({"search": {"sampler": "nsga2"}}, ("search.sampler", "nsga2")),
    ],
)
def test_a_study_of_another_task_is_refused(changes, names, tmp_path):
    folder = earlier_folder(tmp_path)
    with refused(ErrorCode.CONFLICT, *names):
        load_earlier(folder, build(**changes))


def learned_trials(folder: Path, source: Path | str, **changes: Any) -> list[Any]:
    """Return the trials in Optuna's study of a new search that learns from a source."""
    study = build(**changes)
    search = search_in(folder, apart=False, **changes)
    search.learn_from(load_earlier(source, study))
    return journal_of(search).get_trials()


OWN = {
    "workload": "loop.py:train",
    "objective": {"target": 0.9, "max_train_seconds": 10.0},
    "fixed": {"framework": "python"},
    "space": {
        "learning_rate": {"low": 1e-4, "high": 1.0, "log": True},
        "model": {"n": [1, 2, 3], "act": [None, "relu"]},
    },
}
NEW = OWN | {"space": {"learning_rate": OWN["space"]["learning_rate"], "model": {"n": [1, 2, 3]}}}


def test_a_training_is_judged_by_the_target_of_the_new_study(tmp_path):
    objective = Objective(target=0.99, max_train_seconds=60.0)
    own = {"workload": "loop.py:train", "framework": "python", "model": {"n": 2}}
    spec = RunSpec(**own, learning_rate=0.02, objective=objective)
    folder = tmp_path / "mine"
    with Store(folder) as store:
        content = {"objective": spec.objective.model_dump(mode="json"), "run": True}
        store.write_yaml(STUDY_FILE, {"study": content})
        for index, value in enumerate((0.5, 0.91, 0.95)):
            point = evaluation(2.0 * (index + 1), index=index, value=value)
            store.append(point.line("0000", role="trial", spec=spec))
        store.append(record("0000", spec, stop="epochs", best_value=0.95).line())
    (trial,) = learned_trials(tmp_path / "new", folder, **NEW)
    assert trial.params == {"learning_rate": 0.02, "model.n": 2}
    assert trial.value == pytest.approx(math.log(4.0))
    # A training that ended below the target may have been shorter than a trial: no miss.
    higher = NEW | {"objective": {"target": 0.97, "max_train_seconds": 100.0}}
    (run,) = load_earlier(folder, build_study(higher, "test")[0]).runs
    assert run.record is not None
    assert run.record.state == "stopped"
    # A training is kept although the old value of a new key is unknown.
    (trial,) = learned_trials(tmp_path / "newer", folder, **OWN)
    assert trial.params == {"learning_rate": 0.02, "model.n": 2}
    with refused(ErrorCode.CONFLICT, "workload", "other.py:train"):
        learned_trials(tmp_path / "other", folder, **OWN | {"workload": "other.py:train"})


def test_a_new_key_keeps_earlier_trials_with_its_old_default(tmp_path):
    folder = earlier_folder(tmp_path / "earlier")
    decay = {"low": 1e-5, "high": 0.1, "log": True}
    narrow = STUDY["space"] | {"weight_decay": decay}
    wide = STUDY["space"] | {"weight_decay": {"low": 0.0, "high": 0.1}}
    for name, space, old in (("wide", wide, 0.0), ("narrow", narrow, None)):
        trials = learned_trials(tmp_path / name, folder, space=space)
        assert [trial.params.get("weight_decay") for trial in trials] == [old] * 3
    searched = STUDY["space"] | {"weight_decay": [0.0, 0.5]}
    folder = earlier_folder(tmp_path / "searched", space=searched)
    trials = learned_trials(tmp_path / "narrower", folder, space=narrow)
    assert trials == [], "which was searched, and 0 lies outside now"


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("x.csv", ErrorCode.INVALID_FILE),
        ("sqlite:////nowhere/x.db", ErrorCode.INVALID_FILE),
        ("nowhere.csv", ErrorCode.NOT_FOUND),
    ],
)
def test_other_sources_are_refused(place, code, tmp_path):
    (tmp_path / "x.csv").write_text("learning_rate,accuracy\n0.1,0.9\n")
    with refused(code, place):
        learned_trials(tmp_path / "new", place if "://" in place else tmp_path / place, **OWN)


def test_another_machine_is_reported(tmp_path):
    folder, sentences = earlier_folder(tmp_path / "earlier"), []
    for name in ("same", "other"):
        sentences.append(search_in(tmp_path / name).learn_from(load_earlier(folder, build())))
        elsewhere = {"study": build().document(), "machine": machine() | {"processor": "other"}}
        (folder / STUDY_FILE).write_text(to_yaml(elsewhere))
    assert sentences[1].startswith(sentences[0][:-1])
    assert len(sentences[1]) > len(sentences[0])
