"""What the searcher proposes, without training: scores are made up."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from raybench.core.study import build_study
from raybench.search.control import Control
from raybench.search.opaque import wrap
from raybench.search.priors import priors, usual_rate
from raybench.search.propose import encode
from raybench.search.searcher import NOT_RUN, StudySearcher

STUDY: dict[str, Any] = {
    "dataset": {"name": "digits", "image_size": 28},
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "search": {"trials": 60, "seed": 0},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
        ],
    },
}


def searcher(folder: Path, **changes: Any) -> StudySearcher:
    study, space = build_study(STUDY | changes, "test")
    return StudySearcher(study, space, folder, Control(None, began=time.perf_counter()))


def result(**changes: Any) -> dict[str, Any]:
    return wrap({"train_s": 1.0, "score": 1.0, "stop": "target", "failure": None} | changes)


def search(one: StudySearcher, judge: Any) -> list[dict[str, Any]]:
    """Run a whole search; `judge` gives the result of a spec."""
    specs = []
    while isinstance(config := one.suggest(str(len(specs))), dict):
        specs.append(config["spec"])
        one.on_trial_complete(str(len(specs) - 1), judge(config["spec"]))
    return specs


def test_every_other_start_up_trial_has_its_optimizer_s_usual_rate(tmp_path: Path) -> None:
    specs = search(searcher(tmp_path, search={"trials": 10}), lambda _: result())
    for spec in specs[0:8:2]:
        batch = spec["batch_size_per_worker"] * spec["num_workers"]
        assert spec["learning_rate"] == pytest.approx(usual_rate(spec["optimizer"], batch))
    assert {spec["optimizer"] for spec in specs[0:8:2]} == {"adam", "lars"}


def test_priors_that_do_badly_are_dropped(tmp_path: Path) -> None:
    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        batch = spec["batch_size_per_worker"] * spec["num_workers"]
        usual = usual_rate(spec["optimizer"], batch)
        return result(score=9.0 if math.isclose(spec["learning_rate"], usual) else 1.0)

    one = searcher(tmp_path, search={"trials": 20})
    search(one, judge)
    used = [t for t in one.optuna_study.get_trials() if "prior" in t.user_attrs]
    assert 1 <= len(used) <= 3


def test_priors_can_be_switched_off(tmp_path: Path) -> None:
    one = searcher(tmp_path, search={"trials": 10, "priors": False})
    search(one, lambda _: result())
    assert not [t for t in one.optuna_study.get_trials() if "prior" in t.user_attrs]


def test_priors_stay_inside_the_space() -> None:
    narrow = {"optimizer": ["adam"], "learning_rate": {"low": 0.01, "high": 0.02, "log": True}}
    _, space = build_study(STUDY | {"space": narrow}, "test")
    assert [values["learning_rate"] for values in priors(space, {})] == [0.01]


def test_encode_names_parameters_as_the_sampler_does(tmp_path: Path) -> None:
    one = searcher(tmp_path)
    one.suggest("a")
    asked = one.optuna_study.get_trials()[-1].params
    known = priors(one._space, {})[0]
    assert set(encode(one._space, {}, known)) == set(asked)


def test_regions_that_fail_are_left(tmp_path: Path) -> None:
    """Memory ends at 128 samples, adam diverges from 0.01 up: under a tenth fails after 20."""

    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["batch_size_per_worker"] >= 128:
            return result(failure="oom", stop=None)
        if spec["optimizer"] == "adam" and spec["learning_rate"] >= 0.01:
            return result(failure="nan", stop=None)
        return result(score=abs(math.log(spec["learning_rate"])))

    late: list[str] = []
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        specs = search(searcher(folder, search={"trials": 60, "seed": seed}), judge)
        outcomes = [judge(spec)["rest"].content["failure"] for spec in specs]
        late += [outcome for outcome in outcomes[20:] if outcome]
    assert len(late) < 0.1 * 5 * 40, late


def test_a_small_space_repeats_itself_without_redraws(tmp_path: Path) -> None:
    space = {"num_workers": [1, 2], "optimizer": ["adam", "lars"]}
    one = searcher(tmp_path, space=space, search={"trials": 8})
    specs = search(one, lambda _: result())
    assert len(specs) == 8
    assert len({(s["num_workers"], s["optimizer"]) for s in specs[:4]}) == 4
    redrawn = [t for t in one.optuna_study.get_trials() if t.user_attrs.get(NOT_RUN)]
    assert len(redrawn) <= 40


def test_a_new_session_knows_the_failures_of_the_one_before(tmp_path: Path) -> None:
    one = searcher(tmp_path)
    config = one.suggest("a")
    assert isinstance(config, dict)
    one.on_trial_complete("a", result(failure="oom", stop=None))
    again = searcher(tmp_path)
    assert again._failures.forbid(config["spec"])
    assert again.num_finished == 1
