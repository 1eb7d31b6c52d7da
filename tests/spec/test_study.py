import json
from pathlib import Path

import pytest

from raybench.runs.preflight import first_values
from raybench.spec.errors import ErrorCode
from raybench.spec.run import OPEN, RunSpec
from raybench.spec.space import NOT_SEARCHED, possible_values
from raybench.spec.study import apply_settings_to_study, build_study, load_content
from tests.factories import options_given
from tests.refusals import refused

SPACES = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))


def content(**changes):
    return {
        "objective": {"target": 0.9},
        "space": {"optimizer": ["adam", "lamb"], "num_workers": [1, 2]},
    } | changes


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_shipped_spaces_are_valid_and_yield_run_specs(path):
    study, space = build_study(load_content(path, {}), str(path))
    spec = study.run_spec(first_values(study, space))
    assert spec.objective == study.objective
    assert spec.dataset == study.dataset
    assert {"torch", "tensorflow"} == set(possible_values(space["framework"]))


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"space": {}}, "MISSING", ["'space'"]),
        ({"space": 5, "workload": "$ python train.py"}, "INVALID_VALUE", ["'space'", 5]),
        ({"fixed": 5}, "INVALID_VALUE", ["'fixed'", 5]),
        ({"spaces": {}}, "UNKNOWN_KEY", ["'spaces'", "'space'"]),
        ({"auto": []}, "UNKNOWN_KEY", ["'auto'"]),
        ({"trials": 3}, "UNKNOWN_KEY", ["'trials'", "'search.trials'"]),
        ({"fixed": {"workload": "mnist_small"}}, "CONFLICT", ["'fixed.workload'"]),
        ({"fixed": {"presicion": "fp32"}}, "UNKNOWN_KEY", ["'presicion'", "'precision'"]),
        ({"fixed": {"exchange_gradients": False}}, "CONFLICT", ["'fixed.exchange_gradients'"]),
        ({"space": {"exchange_gradients": [True]}}, "UNKNOWN_KEY", ["'space.exchange_gradients'"]),
        ({"confirm": {"race": 201}}, "INVALID_VALUE", ["'confirm.race'", 200, 201]),
        ({"confirm": {"rase": 3}}, "UNKNOWN_KEY", ["'confirm.rase'", "'race'"]),
        ({"dataset": "cifar"}, "INVALID_VALUE", ["'dataset.name'", "'digits'", "'cifar'"]),
    ],
)
def test_invalid_studies_are_refused(changes, code, names):
    with refused(ErrorCode[code], "s.yaml: ", *names):
        build_study(content(**changes), "s.yaml")


def test_a_dataset_may_be_given_by_name():
    study, _ = build_study(content(dataset="mnist"), "s.yaml")
    assert study.document()["dataset"]["name"] == "mnist"
    assert RunSpec.model_validate({"dataset": "mnist"}).dataset.name == "mnist"


def test_the_published_schema_describes_every_key():
    published = json.loads((SPACES[0].parent / "schema.json").read_text())
    space = published["properties"]["space"]["properties"]
    assert set(space) == {*RunSpec.model_fields} - set(NOT_SEARCHED) | set(OPEN)
    assert all(entry["description"] for entry in space.values())
    dataset = published["properties"]["dataset"]
    assert dataset["anyOf"][0] == {"$ref": "#/$defs/DatasetSpec"}
    assert {"mnist", "digits"} <= set(dataset["anyOf"][1]["enum"])


def test_a_run_spec_combines_fixed_searched_and_study_keys():
    common = content(workload="cnn7", dataset={"name": "synthetic"}, search={"seed": 7})
    study, _ = build_study(common | {"fixed": {"epochs": 3.0, "learning_rate": 0.5}}, "s.yaml")
    spec = study.run_spec({"optimizer": "lamb", "num_workers": 2})
    assert (spec.workload, spec.dataset.name, spec.seed) == ("cnn7", "synthetic", 7)
    assert (spec.epochs, spec.learning_rate, spec.num_workers) == (3.0, 0.5, 2)
    assert study.run_spec({"optimizer": "lamb"}, seed=1).seed == 1


def test_set_moves_a_key_between_space_and_fixed():
    words = ["--set", "accumulate=4", "--set", "space.accumulate=[1,8]"]
    fixed, searched = options_given("tune", words).settings.items()
    changed = apply_settings_to_study(content(space={"accumulate": [1, 2]}), dict([fixed]))
    assert changed["fixed"] == {"accumulate": 4}
    assert "accumulate" not in changed["space"]
    changed = apply_settings_to_study(changed, dict([searched]))
    assert changed["space"]["accumulate"] == [1, 8]
    assert changed["fixed"] == {}


def test_objective_options_override_an_objective_given_by_set():
    words = ["--target", "0.7", "--set", "objective={metric: loss, direction: min, target: 9}"]
    words += ["--command", "python train.py", "--metric-pattern", "loss ([0-9.]+)"]
    settings = options_given("tune", words).study_settings()
    objective = apply_settings_to_study(content(), settings)["objective"]
    assert (objective["target"], objective["metric_pattern"]) == (0.7, "loss ([0-9.]+)")
    assert objective["metric"] == "loss"


def test_an_unknown_key_that_a_section_has_is_named_in_full():
    with refused(ErrorCode.UNKNOWN_KEY, "'objective.max_train_seconds'"):
        apply_settings_to_study(content(), {"max_train_seconds": 20})
