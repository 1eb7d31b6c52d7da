import json

import pytest
import yaml

from raybench.spec.dataset_spec import with_whole_paths
from raybench.spec.documents import apply_settings, parse_yaml, to_yaml, validate
from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec


def spec(**changes):
    return validate(RunSpec, changes, "spec.yaml")


def test_the_defaults_are_a_whole_spec():
    assert spec().workload == "mnist_small"
    assert spec().dataset.name == "digits"
    assert spec().objective.target == 0.95


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"optimiser": "adam"}, "unknown key 'optimiser'; did you mean 'optimizer'"),
        ({"learning_rates": 0.1}, "did you mean 'learning_rate'"),
        ({"dataset": {"image_sise": 28}}, r"'dataset.image_sise'; did you mean 'image_size'"),
        ({"objective": {"tarjet": 0.9}}, r"'objective.tarjet'; did you mean 'target'"),
        ({"zzz": 1}, "unknown key 'zzz'; there are workload, dataset,"),
    ],
)
def test_unknown_keys_are_refused_with_what_is_allowed(content, hint):
    with pytest.raises(UserError, match=hint):
        spec(**content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_workers", "2"),
        ("num_workers", 2.0),
        ("num_workers", True),
        ("num_workers", 0),
        ("num_workers", -1),
        ("batch_size_per_worker", 0),
        ("accumulate", 0),
        ("prefetch", -1),
        ("gpus_per_worker", 2),
        ("gpus_per_worker", -1),
        ("learning_rate", "0.1"),
        ("learning_rate", 0.0),
        ("learning_rate", -0.1),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("weight_decay", -1e-4),
        ("weight_decay", float("nan")),
        ("momentum", 1.0),
        ("momentum", float("nan")),
        ("beta2", -0.1),
        ("warmup_epochs", -1.0),
        ("epochs", 0.0),
        ("epochs", float("inf")),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", 1.0),
        ("optimizer", "adagrad"),
        ("framework", "jax"),
        ("schedule", None),
        ("precision", "fp16"),
        ("workload", 3),
        ("eval_every_samples", 0),
    ],
)
def test_wrong_values_are_refused_by_name(key, value):
    with pytest.raises(UserError, match=f"^spec.yaml: '{key}': ") as refusal:
        spec(**{key: value})
    assert "\n" not in str(refusal.value)
    assert repr(value) in str(refusal.value), "the message must show what was found"


@pytest.mark.parametrize("target", [float("nan"), float("inf"), True, "0.9"])
def test_a_target_is_a_number(target):
    with pytest.raises(UserError, match=r"'objective\.target': "):
        spec(objective={"target": target})


@pytest.mark.parametrize("metric", ["accuracy", "top5_accuracy"])
@pytest.mark.parametrize("target", [1.01, 98, 0, -0.5])
def test_the_target_of_a_share_is_a_fraction(metric, target):
    with pytest.raises(
        UserError, match=rf"{metric} is a fraction above 0, at most 1: 0.98, not 98"
    ):
        spec(objective={"metric": metric, "target": target})


@pytest.mark.parametrize("target", [1, 1.0, 1e-6])
def test_the_edges_of_a_target_are_allowed(target):
    assert spec(objective={"target": target}).objective.target == target


def test_accuracy_per_second_is_refused_with_the_reason():
    with pytest.raises(UserError, match="40 % in 10 s would beat 93 % in 200 s") as refusal:
        spec(objective={"kind": "accuracy_per_second", "target": 0.9})
    assert "time_to_target" in str(refusal.value)
    assert "best_at_budget" in str(refusal.value)


def test_an_unknown_objective_names_those_on_offer():
    with pytest.raises(UserError, match="must be time_to_target or best_at_budget"):
        spec(objective={"kind": "accuracy", "target": 0.9})


def test_time_to_accuracy_needs_a_target_and_a_budget_does_not():
    with pytest.raises(UserError, match=r"'objective': time_to_target needs a target"):
        spec(objective={"max_train_seconds": 5.0})
    assert spec(objective={"kind": "best_at_budget"}).objective.target is None


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_the_budget_is_a_positive_number_of_seconds(seconds):
    with pytest.raises(UserError, match="max_train_seconds"):
        spec(objective={"target": 0.9, "max_train_seconds": seconds})


@pytest.mark.parametrize(
    "content",
    [
        {"name": "cifar"},
        {"image_size": 0},
        {"repeat": 0},
        {"limit": -1},
        {"split_seed": -1},
        {"shape": [28, 0, 1]},
        {"shape": (28, 28, 1)},
    ],
)
def test_a_dataset_is_checked_too(content):
    key = next(iter(content))
    with pytest.raises(UserError, match=rf"'dataset\.{key}"):
        spec(dataset=content)


@pytest.mark.parametrize(
    ("batch", "workers", "accumulate", "total"), [(64, 4, 2, 512), (1, 1, 1, 1)]
)
def test_global_batch(batch, workers, accumulate, total):
    built = spec(batch_size_per_worker=batch, num_workers=workers, accumulate=accumulate)
    assert built.global_batch_size == total


def test_a_spec_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        spec().seed = 3


def test_the_document_holds_every_key_and_reads_back_equal():
    built = RunSpec(
        workload="my_module:Net",
        dataset=DatasetSpec(name="synthetic", shape=[8, 8, 3], limit=100),
        objective=Objective(target=0.123456789, hold=3, max_train_seconds=1e-4),
        learning_rate=1e-5,
        epsilon=1e-16,
        optimizer="lars",
        seed=2**32 - 1,
    )
    document = built.document()
    assert set(document) == set(RunSpec.model_fields)
    assert set(document["dataset"]) == set(DatasetSpec.model_fields)
    assert validate(RunSpec, parse_yaml(to_yaml(document), "text"), "text") == built
    assert validate(RunSpec, json.loads(json.dumps(document)), "text") == built
    # Other readers of YAML 1.1 must see the numbers too.
    assert yaml.safe_load(to_yaml(document)) == document


def test_every_key_is_documented():
    for model in (RunSpec, DatasetSpec, Objective):
        missing = [name for name, field in model.model_fields.items() if not field.description]
        assert missing == []


def test_exchange_every_is_another_name_of_accumulate():
    assert spec(exchange_every=4) == spec(accumulate=4)
    assert spec(exchange_every=4, accumulate=4).global_batch_size == 4 * 64
    assert "exchange_every" not in spec(exchange_every=4).document()
    with pytest.raises(UserError, match="exchange_every and accumulate are one key, here with 4"):
        spec(exchange_every=4, accumulate=2)
    with pytest.raises(UserError, match="'accumulate'"):
        spec(exchange_every=0)


@pytest.mark.parametrize("key", ["accumulate", "exchange_every"])
@pytest.mark.parametrize("setting", ["accumulate=8", "exchange_every=8"])
def test_a_setting_overrides_both_names(key, setting):
    content = apply_settings({key: 2, "seed": 1}, [setting])
    assert content == {"accumulate": 8, "seed": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gradient_compression", "int8"),
        ("gradient_compression", None),
        ("bucket_mb", 0.0),
        ("bucket_mb", -1.0),
        ("exchange_gradients", 1),
        ("record_steps", "yes"),
    ],
)
def test_how_gradients_are_exchanged_is_checked(key, value):
    with pytest.raises(UserError, match=rf"spec\.yaml: '{key}'"):
        spec(**{key: value})


def test_paths_of_data_are_whole_where_the_data_are_there(tmp_path, monkeypatch):
    (tmp_path / "here.csv").touch()
    monkeypatch.chdir(tmp_path)
    content = {"dataset": {"path": "here.csv"}, "space": {"dataset": [{"path": "here.csv"}]}}
    content["fixed"] = {"weights": "here.csv"}
    content["base"] = {"dataset": {"path": "not_there"}, "weights": ["none", "here.csv"]}
    found = with_whole_paths(content)
    assert found["fixed"]["weights"] == str(tmp_path / "here.csv")
    assert found["base"]["weights"] == ["none", str(tmp_path / "here.csv")]
    assert found["dataset"]["path"] == str(tmp_path / "here.csv")
    assert found["base"]["dataset"]["path"] == "not_there"
    assert with_whole_paths({"dataset": "digits"}) == {"dataset": "digits"}
