"""Keys of the user's own model: in spaces, conditions, command lines, labels and tables."""

import pytest

from raybench.results.trials import trial_table
from raybench.runs.preflight import first_values, other_starts
from raybench.search.factorisation import factorise
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec, describe, label_keys, value_of
from raybench.spec.space import Choices, Range, num_configurations
from raybench.spec.study import apply_settings_to_study, build_study

CONTENT = {
    "workload": "my:Net",
    "dataset": {"name": "digits"},
    "objective": {"target": 0.9},
    "space": {
        "num_workers": [1, 2],
        "learning_rate": {"low": 0.001, "high": 0.1, "log": True},
        "model": {
            "hidden_units": [64, 128],
            "dropout": {"low": 0.0, "high": 0.5},
            "depth": {"low": 1, "high": 4},
            "width": [
                {"when": {"model.hidden_units": 64}, "values": [1, 2]},
                {"when": {"model.hidden_units": 128}, "values": [3]},
            ],
        },
    },
    "fixed": {"model": {"norm": "layer"}},
}
VALUES = {"model.hidden_units": 64, "model.dropout": 0.1, "model.depth": 2, "model.width": 1}


def built(**changes):
    return build_study(CONTENT | changes, "s.yaml")


def test_each_setting_is_a_key_of_its_own():
    study, space = built()
    assert list(space)[2:] == list(VALUES)
    assert space["model.hidden_units"] == Choices((64, 128))
    assert space["model.depth"] == Range(1, 4, log=False, is_integer=True)
    assert space["model.dropout"] == Range(0.0, 0.5, log=False, is_integer=False)
    ranges = ("learning_rate", "model.dropout")
    small = {key: one for key, one in space.items() if key not in ranges}
    assert num_configurations(small, study.fixed) == 2 * 4 * (2 + 1)
    again, parsed = build_study(study.model_dump(mode="json", exclude={"auto", "is_set"}), "study")
    assert (again.space, parsed) == (study.space, space)


def test_a_run_spec_has_them_below_model():
    study, _ = built()
    spec = study.run_spec(VALUES)
    own = {"hidden_units": 64, "dropout": 0.1, "depth": 2, "width": 1}
    assert spec.model == {"norm": "layer"} | own
    assert RunSpec.model_validate(spec.document()) == spec
    assert value_of(spec, "model.depth") == 2
    assert value_of(spec, "model.unknown") is None
    line = describe(spec, label_keys(study.space))
    assert line.endswith("hidden_units 64 dropout 0.1 depth 2 width 1")
    assert list(trial_table([], study.space)).index("model.width") > 0


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"model": {"x": []}}, "'space.model.x': the list is empty"),
        ({"model": {"x": {"low": 2, "high": 1}}}, "the range is empty"),
        ({"model": {"norm": ["a"]}}, "'space.model.norm': also stands under 'fixed'"),
        ({"model": {"1x": [1]}}, "model"),
        ({"model": [1, 2]}, "'space.model': cannot be searched"),
        ({"modle": {"x": [1]}}, "cannot be searched"),
        ({"model": {"x": [{"when": {"model.y": 1}, "values": [2]}]}}, "no case for model.y: None"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(space, says):
    with pytest.raises(UserError, match=says):
        built(space=space)


def test_command_lines_set_and_search_them():
    changed = apply_settings_to_study(CONTENT, ["model.depth=3", "space.model.norm=[a, b]"])
    study, space = build_study(changed, "s.yaml")
    assert study.fixed == {"model": {"depth": 3}}
    assert "model.depth" not in space
    assert space["model.norm"] == Choices(("a", "b"))
    only = apply_settings_to_study({**CONTENT, "space": {"model": {"x": [1]}}}, ["model.x=2"])
    assert only["space"] == {}


def test_each_value_is_tried_before_anything_starts():
    study, space = built()
    first = study.run_spec(first_values(study, space))
    found = [one.model for one in other_starts(study, space, first)]
    assert {one["hidden_units"] for one in found} | {first.model["hidden_units"]} == {64, 128}
    assert {one["dropout"] for one in found} | {first.model["dropout"]} == {0.0, 0.5}
    assert all(one["norm"] == "layer" for one in found)


def test_what_a_model_is_changes_how_fast_it_trains():
    study, space = built()
    found = factorise(study, space, equal_frameworks=True)
    assert found == "space.model.hidden_units changes the step time too"
