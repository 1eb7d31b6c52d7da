"""Settings of the user's model, data and optimizer in spaces, conditions, labels and tables."""

import pytest

from raybench.results.trials import trial_table
from raybench.search.factorisation import factorise
from raybench.search.reference import reference_spec
from raybench.search.sampling.default_rates import initial_configurations
from raybench.search.sampling.feedback import FailurePredictor
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec, describe, label_keys, value_of
from raybench.spec.space import Choices, Range, end_of, num_configurations
from raybench.spec.study import apply_settings_to_study, build_study
from raybench.stats.checkpoint import spec_digest
from tests.refusals import refused

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


def test_each_model_setting_is_its_own_key():
    study, space = built()
    assert list(space)[2:] == list(VALUES)
    assert space["model.hidden_units"] == Choices((64, 128))
    assert space["model.depth"] == Range(1, 4, log=False, is_integer=True)
    assert space["model.dropout"] == Range(0.0, 0.5, log=False, is_integer=False)
    ranges = ("learning_rate", "model.dropout")
    small = {key: dimension for key, dimension in space.items() if key not in ranges}
    assert num_configurations(small, study.fixed) == 2 * 4 * (2 + 1)
    rebuilt, parsed = build_study(
        study.model_dump(mode="json", exclude={"auto", "is_set"}), "study"
    )
    assert (rebuilt.space, parsed) == (study.space, space)


def test_a_run_spec_holds_model_settings_under_model():
    study, _ = built()
    spec = study.run_spec(VALUES)
    searched = {"hidden_units": 64, "dropout": 0.1, "depth": 2, "width": 1}
    assert spec.model == {"norm": "layer"} | searched
    assert RunSpec.model_validate(spec.document()) == spec
    assert value_of(spec, "model.depth") == 2
    assert value_of(spec, "model.unknown") is None
    line = describe(spec, label_keys(study.space))
    assert line.endswith("hidden_units 64 dropout 0.1 depth 2 width 1")
    assert list(trial_table([], study.space)).index("model.width") > 0


def test_command_line_settings_fix_or_search_model_settings():
    changed = apply_settings_to_study(CONTENT, {"model.depth": 3, "space.model.norm": ["a", "b"]})
    study, space = build_study(changed, "s.yaml")
    assert study.fixed == {"model": {"depth": 3}}
    assert "model.depth" not in space
    assert space["model.norm"] == Choices(("a", "b"))
    only = apply_settings_to_study({**CONTENT, "space": {"model": {"x": [1]}}}, {"model.x": 2})
    assert only["space"] == {}


LIBRARY_OPTIMIZERS = CONTENT | {
    "workload": "mnist_small",
    "space": {
        "framework": ["torch", "tensorflow"],
        "num_workers": [1, 2],
        "optimizer": [
            {"when": {"framework": "torch"}, "values": ["torch:SGD", "adam"]},
            {"when": {"framework": "tensorflow"}, "values": ["keras:Nadam"]},
        ],
        "optimizer_options": {
            "momentum": [
                {"when": {"optimizer": "torch:SGD"}, "low": 0.0, "high": 0.99},
                {"when": {"optimizer": ["adam", "keras:Nadam"]}, "values": [None]},
            ]
        },
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    },
    "fixed": {},
}
OF_SGD = {"framework": "torch", "optimizer": "torch:SGD", "optimizer_options.momentum": 0.9}


def test_library_optimizers_are_searched_with_their_options():
    study, space = build_study(LIBRARY_OPTIMIZERS, "s.yaml")
    spec = study.run_spec(OF_SGD | {"learning_rate": 0.01, "num_workers": 1})
    assert spec.optimizer_options == {"momentum": 0.9}
    assert describe(spec, label_keys(study.space)).endswith("1x64 torch:SGD 0.01 momentum 0.9")
    none = study.run_spec(OF_SGD | {"optimizer": "adam", "optimizer_options.momentum": None})
    assert none.optimizer_options == {}
    assert value_of(none, "optimizer_options.momentum") is None
    assert end_of(space["learning_rate"], "learning_rate", spec) == "upper"


def test_library_optimizers_have_no_default_rate_and_the_reference_uses_the_middle():
    study, space = build_study(LIBRARY_OPTIMIZERS, "s.yaml")
    assert {values["optimizer"] for values in initial_configurations(space, study.fixed)} == {
        "adam"
    }
    assert reference_spec(study, space).optimizer == "adam"
    space = {
        key: dimension for key, dimension in space.items() if key in ("framework", "learning_rate")
    }
    study = study.model_copy(update={"fixed": {"optimizer": "torch:SGD"}})
    assert initial_configurations(space, study.fixed) == []
    assert reference_spec(study, space).learning_rate == pytest.approx(1e-3)


SGD = {"optimizer": ["torch:SGD"], "learning_rate": [0.1], "framework": ["torch"]}
SGD |= {"optimizer_options": {"momentum": [0.0, 0.9]}}


@pytest.mark.parametrize(
    ("space", "code", "names"),
    [
        ({"model": {"x": []}}, "INVALID_VALUE", ["'space.model.x'"]),
        ({"model": {"norm": ["a"]}}, "CONFLICT", ["'space.model.norm'", "'fixed'"]),
        ({"model": [1, 2]}, "UNKNOWN_KEY", ["'space.model'"]),
        (
            {"model": {"x": [{"when": {"model.y": 1}, "values": [2]}]}},
            "CONFLICT",
            ["'space.model.x'", "model.y: null"],
        ),
        ({"data": {"noise": {"low": 0.0, "high": 1.0}}}, "INVALID_VALUE", ["'space.data.noise'"]),
        (SGD | {"optimizer": ["adm"]}, "UNKNOWN_NAME", ["'adm'", "'adam'"]),
        (SGD | {"optimizer": ["lion"]}, "UNKNOWN_NAME", ["'lion'", "keras:Lion"]),
        (SGD | {"framework": ["tensorflow"]}, "CONFLICT", ["torch:SGD", "torch"]),
        (SGD | {"optimizer": ["adam"]}, "CONFLICT", ["adam", "beta1", "epsilon"]),
        (
            SGD | {"optimizer_options": {"lr": [0.1]}},
            "CONFLICT",
            ["optimizer_options.lr", "learning_rate"],
        ),
        ({"optimizer": ["torch:SGD"]}, "MISSING", ["torch:SGD", "learning_rate"]),
    ],
)
def test_an_invalid_space_is_refused(space, code, names):
    with refused(ErrorCode[code], "s.yaml: ", *names):
        built(space=space)


def test_numeric_optimizer_options_keep_the_space_factorized_but_switches_do_not():
    def found(options):
        space = {"num_workers": [1, 2], "optimizer_options": options}
        changes = {"space": space, "fixed": {"optimizer": "torch:SGD", "learning_rate": 0.1}}
        study, parsed = build_study(LIBRARY_OPTIMIZERS | changes, "s.yaml")
        return factorise(study, parsed, equal_frameworks=True)

    assert not isinstance(found({"momentum": [0.0, 0.9]}), str)
    assert found({"nesterov": [True, False]}).startswith("space.optimizer_options.nesterov changes")


def test_data_settings_make_different_data():
    study, _ = built(space={"data": {"window": [16, 32]}, "num_workers": [1, 2]}, fixed={})
    small, large = (study.run_spec({"data.window": window}) for window in (16, 32))
    assert small.data == {"window": 16}
    assert describe(small, label_keys(study.space)).endswith("data.window 16")
    assert describe(study.run_spec({}), label_keys(study.space)).endswith("adam 0.001")
    infeasible = FailurePredictor()
    infeasible.add("oom", small)
    assert not infeasible.is_feasible(small)
    assert infeasible.is_feasible(large)


def test_a_spec_with_explicit_defaults_is_the_same_run():
    for name, settings in (("sgd", {"momentum": 0.9}), ("adam", {})):
        spec = RunSpec(optimizer=name)
        complete = spec.complete()
        keys = {"momentum": None, "beta2": None, "epsilon": None}
        explicit = settings or {"beta2": 0.999, "epsilon": 1e-8}
        assert {key: complete.get(key) for key in keys} == keys | explicit
        reread = RunSpec.model_validate(complete)
        assert reread != spec
        assert reread.without_defaults() == spec
        assert reread.complete() == complete
        assert spec_digest(reread) == spec_digest(spec)
    other = RunSpec(optimizer="sgd", momentum=0.8)
    assert spec_digest(other) != spec_digest(RunSpec(optimizer="sgd"))
