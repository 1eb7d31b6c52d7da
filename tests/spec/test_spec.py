import json
from typing import Any

import pytest
import yaml

from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import parse_yaml, to_yaml, validate
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, ResourceRequest, RunSpec
from tests.refusals import refused


def spec(**changes):
    return validate(RunSpec, changes, "spec.yaml")


WRONG = {
    "num_workers": ["2", True, -1],
    "learning_rate": ["0.1", -0.1, float("nan")],
    "momentum": [1.0],
    "seed": [2**32],
    "optimizer": ["adagrad"],
    "gradient_compression": ["int8"],
    "record_steps": ["yes"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in WRONG for value in WRONG[key]])
def test_invalid_values_are_refused(key, value):
    code = ErrorCode.UNKNOWN_NAME if key == "optimizer" else ErrorCode.INVALID_VALUE
    with refused(code, f"spec.yaml: '{key}'", repr(value)) as caught:
        spec(**{key: value})
    assert "\n" not in str(caught.value)


IN_ONE_PROCESS = {"framework": "tensorflow", "strategy": "single_process", "num_workers": 2}
XLA = {"compile": "xla", "framework": "tensorflow"}
CUDA_GRAPHS = {"compile": "reduce-overhead", "gpus_per_worker": 1}
SYNCHRONIZED = {"sync_batch_norm": True, "num_workers": 2, "gpus_per_worker": 1}
BF16 = {"gradient_compression": "bf16", "framework": "tensorflow", "num_workers": 2}


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        ({"target": float("nan")}, ["'objective.target'"]),
        ({"kind": "accuracy"}, ["'objective.kind'", "time_to_target", "best_at_budget"]),
        ({}, ["'objective'", "target"]),
        ({"kind": "accuracy_per_second", "target": 0.9}, ["time_to_target", "best_at_budget"]),
    ],
)
def test_an_invalid_objective_is_refused(objective, names):
    with refused(ErrorCode.INVALID_VALUE, *names):
        spec(objective=objective)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (BF16 | {"gpus_per_worker": 1}, ["gradient_compression: bf16", "fp16"]),
        ({"compile": "xla"}, ["compile: xla", "none, default"]),
        (CUDA_GRAPHS | {"accumulate": 2}, ["accumulate: 1", "compile: default"]),
        (XLA | {"sync_batch_norm": True}, ["compile: xla", "sync_batch_norm"]),
        (SYNCHRONIZED | {"accumulate": 2}, ["accumulate: 1"]),
        (SYNCHRONIZED | {"strategy": "single_process"}, ["strategy: distributed"]),
        (SYNCHRONIZED | {"gpus_per_worker": 0}, ["gpus_per_worker: 1"]),
        (IN_ONE_PROCESS | XLA, ["compile: xla", "single_process"]),
        (IN_ONE_PROCESS | {"exchange_gradients": False}, ["exchange_gradients: false"]),
        (IN_ONE_PROCESS | {"bucket_mb": 1.0}, ["bucket_mb: 1.0"]),
        (IN_ONE_PROCESS | {"placement_strategy": "spread"}, ["placement_strategy: spread"]),
        (IN_ONE_PROCESS | {"framework": "torch"}, ["single_process", "gpus_per_worker: 1"]),
        ({"gpus_per_worker": 0.5, "num_workers": 2}, ["gpus_per_worker 0.5", "num_workers 1"]),
        ({"accelerator_type": "H100"}, ["accelerator_type", "gpus_per_worker: 1"]),
    ],
)
def test_conflicting_keys_are_refused(changes, names):
    with refused(ErrorCode.CONFLICT, *names) as caught:
        spec(**changes)
    assert "\n" not in str(caught.value)


def test_a_document_holds_every_key_and_reads_back_equal():
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
    # Other readers of YAML 1.1 must read equal numbers.
    assert yaml.safe_load(to_yaml(document)) == document


def test_paths_of_existing_files_become_absolute(tmp_path, monkeypatch):
    (tmp_path / "here.csv").touch()
    monkeypatch.chdir(tmp_path)
    content = {"dataset": {"path": "here.csv"}, "fixed": {"weights": "here.csv"}}
    content["base"] = {"dataset": {"path": "not_there"}, "weights": ["none", "here.csv"]}
    absolute = with_absolute_paths(content)
    assert absolute["fixed"]["weights"] == str(tmp_path / "here.csv")
    assert absolute["base"]["weights"] == ["none", str(tmp_path / "here.csv")]
    assert absolute["dataset"]["path"] == str(tmp_path / "here.csv")
    assert absolute["base"]["dataset"]["path"] == "not_there"
    assert with_absolute_paths({"dataset": "digits"}) == {"dataset": "digits"}


def test_bfloat16_gradients_are_allowed_except_between_tensorflow_gpus():
    for fine in ({}, {"gpus_per_worker": 1, "framework": "torch"}):
        assert spec(**(BF16 | fine)).gradient_compression == "bf16"


def of_replicas(**changes: Any) -> RunSpec:
    return spec(**(IN_ONE_PROCESS | changes))


def test_a_single_process_has_the_resources_of_all_replicas():
    resources = {"cpus_per_worker": 2, "gpus_per_worker": 1, "num_workers": 4}
    request = of_replicas(**resources).resources
    assert request == ResourceRequest("tensorflow", 1, 8, 4, "pack", None, 4)
    assert (request.cpus, request.gpus) == (8, 4)
    assert request.num_fitting(15, 9) == 1
    assert request.num_fitting(15, 3) == 0
    assert not request.shares_a_gpu
    assert request.num_replicas == 4
    assert request != of_replicas(**resources, strategy="distributed").resources
    wide = ResourceRequest("tensorflow", 1, cpus_per_worker=8, gpus_per_worker=4)
    assert request != wide, "a worker with equal resources has other devices"
    alone = of_replicas(num_workers=1)
    assert alone.resources == of_replicas(num_workers=1, strategy="distributed").resources
    in_process, distributed = of_replicas(), of_replicas(strategy="distributed")
    assert in_process.global_batch_size == distributed.global_batch_size == 128
    assert (in_process.replicas_per_process, distributed.replicas_per_process) == (2, 1)


def test_a_run_requests_its_gpus():
    assert RunSpec(gpus_per_worker=0.5).resources.gpus == 0.5
    spec = RunSpec(gpus_per_worker=1, accelerator_type="H100", placement_strategy="spread")
    assert (spec.resources.accelerator_type, spec.resources.packing) == ("H100", "spread")
