import json
from typing import Any

import pytest
import yaml

from raybench.spec.dataset_spec import with_whole_paths
from raybench.spec.documents import parse_yaml, to_yaml, validate
from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, Placement, RunSpec


def spec(**changes):
    return validate(RunSpec, changes, "spec.yaml")


WRONG: dict[str, list[object]] = {
    "num_workers": ["2", True, -1],
    "learning_rate": ["0.1", -0.1, float("nan")],
    "momentum": [1.0],
    "seed": [2**32],
    "optimizer": ["adagrad"],
    "gradient_compression": ["int8"],
    "record_steps": ["yes"],
}


@pytest.mark.parametrize(("key", "value"), [(key, one) for key in WRONG for one in WRONG[key]])
def test_wrong_values_are_refused_by_name(key, value):
    with pytest.raises(UserError, match=f"^spec.yaml: '{key}': ") as refusal:
        spec(**{key: value})
    assert "\n" not in str(refusal.value)
    assert repr(value) in str(refusal.value), "the message must show what was found"


IN_ONE_PROCESS = {"framework": "tensorflow", "strategy": "single_process", "num_workers": 2}
XLA = {"compile": "xla", "framework": "tensorflow"}
CUDA_GRAPHS = {"compile": "reduce-overhead", "gpus_per_worker": 1}
BF16 = {"gradient_compression": "bf16", "framework": "tensorflow", "num_workers": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": {"target": float("nan")}}, r"'objective\.target': "),
        ({"objective": {"kind": "accuracy"}}, "must be time_to_target or best_at_budget"),
        ({"objective": {}}, "'objective': time_to_target needs a target"),
        (
            {"objective": {"kind": "accuracy_per_second", "target": 0.9}},
            "40 % in 10 s would beat 93 % in 200 s; use time_to_target .* or best_at_budget",
        ),
        (BF16 | {"gpus_per_worker": 1}, "gradient_compression: fp16 or none"),
        (
            {"compile": "xla"},
            "compile: xla is not of torch; set it to one of none, default",
        ),
        (CUDA_GRAPHS | {"accumulate": 2}, "set accumulate: 1 or compile: default"),
        (XLA | {"sync_batch_norm": True}, "xla sums nothing over workers"),
        (IN_ONE_PROCESS | XLA, "compile: xla is of workers in processes of their own"),
        (IN_ONE_PROCESS | {"exchange_gradients": False}, "exchange_gradients: false is of workers"),
        (IN_ONE_PROCESS | {"bucket_mb": 1.0}, r"bucket_mb: 1\.0 is of workers in processes of the"),
        (IN_ONE_PROCESS | {"placement_strategy": "spread"}, "spread is of .*; leave it out"),
        (IN_ONE_PROCESS | {"framework": "torch"}, "torch needs GPUs .*set gpus_per_worker: 1"),
        ({"gpus_per_worker": 0.5, "num_workers": 2}, "NCCL refuses two on one"),
        ({"accelerator_type": "H100"}, "accelerator_type is of GPUs"),
        ({"exchange_every": 4, "accumulate": 2}, "are one key, here with 4 and 2; keep one"),
        ({"exchange_every": 0}, "'accumulate'"),
    ],
)
def test_what_cannot_be_is_one_sentence(changes, words):
    with pytest.raises(UserError, match=words) as refusal:
        spec(**changes)
    assert "\n" not in str(refusal.value)


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


def test_exchange_every_is_another_name_of_accumulate():
    assert spec(exchange_every=4) == spec(accumulate=4)
    assert spec(exchange_every=4, accumulate=4).global_batch_size == 4 * 64
    assert "exchange_every" not in spec(exchange_every=4).document()


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


def test_bfloat16_is_added_up_but_between_gpus_of_tensorflow():
    for fine in ({}, {"gpus_per_worker": 1, "framework": "torch"}):
        assert spec(**(BF16 | fine)).gradient_compression == "bf16"


def of_replicas(**changes: Any) -> RunSpec:
    return spec(**(IN_ONE_PROCESS | changes))


def test_one_process_has_what_all_its_replicas_need() -> None:
    given = {"cpus_per_worker": 2, "gpus_per_worker": 1, "num_workers": 4}
    placement = of_replicas(**given).placement
    assert placement == Placement("tensorflow", 1, 64, 8, 4, "pack", None, 4)
    assert (placement.cpus, placement.gpus) == (8, 4)
    assert placement.num_fitting(15, 9) == 1
    assert placement.num_fitting(15, 3) == 0
    assert not placement.shares_a_gpu
    assert placement.group.replicas_per_process == 4
    assert placement.group != of_replicas(**given, strategy="distributed").placement.group
    wide = Placement("tensorflow", 1, cpus_per_worker=8, gpus_per_worker=4)
    assert placement.group != wide, "a group of one worker with as much has no such devices"
    alone = of_replicas(num_workers=1)
    assert alone.placement == of_replicas(num_workers=1, strategy="distributed").placement
    one, two = of_replicas(), of_replicas(strategy="distributed")
    assert one.global_batch_size == two.global_batch_size == 128
    assert (one.replicas_per_process, two.replicas_per_process) == (2, 1)


def test_a_placement_has_the_gpus_that_a_run_names():
    assert RunSpec(gpus_per_worker=0.5).placement.gpus == 0.5
    chosen = RunSpec(gpus_per_worker=1, accelerator_type="H100", placement_strategy="spread")
    assert (chosen.placement.accelerator_type, chosen.placement.strategy) == ("H100", "spread")
