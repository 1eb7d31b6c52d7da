"""All replicas in one process: what its run spec may say, and what its process asks for."""

from typing import Any

import pytest

from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.run import NOT_IN_ONE_PROCESS, Placement, RunSpec


def spec(**changes: Any) -> RunSpec:
    content = {"framework": "tensorflow", "strategy": "single_process", "num_workers": 2}
    return validate(RunSpec, content | changes, "spec.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exchange_gradients": False}, "exchange_gradients: false is of workers in processes"),
        ({"gradient_compression": "bf16"}, "gradient_compression: bf16 is of workers"),
        ({"bucket_mb": 1.0}, r"bucket_mb: 1\.0 is of workers in processes of their own"),
        ({"placement_strategy": "spread"}, "placement_strategy: spread is of .*; leave it out"),
        ({"framework": "torch"}, "strategy single_process of torch needs GPUs .*set gpus_per_wor"),
        ({"gpus_per_worker": 0.5}, "gpus_per_worker 0.5 is for num_workers 1"),
        ({"strategy": "mirrored"}, "'strategy': input should be 'distributed' or 'single_process'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        spec(**changes)
    assert "\n" not in str(refusal.value)


def test_what_is_refused_is_what_differs_from_the_defaults() -> None:
    assert {key: RunSpec.model_fields[key].default for key in NOT_IN_ONE_PROCESS} == (
        NOT_IN_ONE_PROCESS
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 2},
        {"precision": "bf16", "record_steps": True},
        {"framework": "torch", "gpus_per_worker": 1},
        {"framework": "torch", "num_workers": 1},
    ],
)
def test_the_rest_is_allowed(changes: dict[str, Any]) -> None:
    assert spec(**changes).strategy == "single_process"


def test_one_process_has_what_all_its_replicas_need() -> None:
    given = {"cpus_per_worker": 2, "gpus_per_worker": 1, "num_workers": 4}
    placement = spec(**given).placement
    assert placement == Placement("tensorflow", 1, 64, 8, 4, "pack", None, 4)
    assert (placement.cpus, placement.gpus) == (8, 4)
    assert placement.num_fitting(15, 9) == 1
    assert placement.num_fitting(15, 3) == 0
    assert not placement.shares_a_gpu
    assert placement.group.replicas_per_process == 4
    assert placement.group != spec(**given, strategy="distributed").placement.group
    wide = Placement("tensorflow", 1, cpus_per_worker=8, gpus_per_worker=4)
    assert placement.group != wide, "a group of one worker with as much has no such devices"


def test_batches_and_scaling_of_rates_are_those_of_as_many_workers() -> None:
    one, two = spec(), spec(strategy="distributed")
    assert one.global_batch_size == two.global_batch_size == 128
    assert (one.replicas_per_process, two.replicas_per_process) == (2, 1)


def test_with_one_worker_strategies_are_the_same() -> None:
    assert spec(num_workers=1).placement == spec(num_workers=1, strategy="distributed").placement
