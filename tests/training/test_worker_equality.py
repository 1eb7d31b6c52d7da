"""Two workers equal one worker with twice the batch, replicated by DistributedDataParallel or
sharded (`Run.prepare(model, strategy="fsdp")`)."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_runs import single_worker, small_spec
from worker_processes import cached_folder, run_two
from worker_script import train_result

from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.own import PlainWorld, Run, state_of
from tests.refusals import refused

CASES = [("sgd", 1), ("lamb", 2)]
LIBRARY_OPTIMIZERS = {"torch": ("torch:NAdam", 1), "tensorflow": ("keras:Nadam", 1)}
USER_MODELS = {"tensorflow": ("penalised", 2), "torch": ("experts", 2)}
"""Models that add to the loss of a pass, or whose passes use only some parameters."""
SETTINGS = {
    "penalised": {"optimizer": "sgd", "workload": "regularised:Penalised"},
    "experts": {
        **{"optimizer": "adamw", "workload": "regularised:Experts"},
        **{"clip_norm": 0.5, "ema_decay": 0.9, "weight_decay": 0.1},
    },
    "sgd": {"clip_norm": 0.5, "ema_decay": 0.9, "label_smoothing": 0.1},
    "torch:NAdam": {"optimizer_options": {"betas": [0.8, 0.99], "eps": 1e-3}, "weight_decay": 0.01},
    "keras:Nadam": {"optimizer_options": {"beta_1": 0.8, "epsilon": 1e-3}, "weight_decay": 0.01},
}
# With 303 samples the last global batch of an epoch is partial and has uneven shares.
DATASET = DatasetSpec(image_size=8, limit=303)


def spec_of(framework: str, optimizer: str, accumulate: int, num_workers: int) -> RunSpec:
    workers = {"num_workers": num_workers, "batch_size_per_worker": 32 // num_workers}
    settings = {"learning_rate": 0.01, "dataset": DATASET, "accumulate": accumulate}
    settings |= {"optimizer": optimizer} | SETTINGS.get(optimizer, {})
    return small_spec(framework, **workers, **settings)


def cases_of(framework: str) -> list[tuple[str, int]]:
    return [*CASES, LIBRARY_OPTIMIZERS[framework], USER_MODELS[framework]]


def specs_of_two(framework: str) -> list[dict[str, Any]]:
    return [spec_of(framework, *case, num_workers=2).document() for case in cases_of(framework)]


def check_two_are_one(framework: str, folder: Path) -> None:
    """Compare the saved results of a group of two workers with those of one worker."""
    for index, case in enumerate(cases_of(framework)):
        expected = one_worker(spec_of(framework, *case, num_workers=1))
        rank_0, rank_1 = (dict(np.load(folder / f"{index}-{rank}.npz")) for rank in range(2))
        np.testing.assert_equal(rank_0, rank_1)
        assert expected["sums"][3] == 360  # every validation sample, once
        # Float32 sums in another order, over 3 epochs of an adaptive optimizer.
        assert_same_result(rank_0, expected, atol=2e-5, rtol=1e-3)


def assert_same_result(result, expected, *, is_evaluated=True, **tolerance):
    """Compare two results of `train_result`; with `is_evaluated` also those of the evaluation.

    `sums` has the training loss, loss, number of correct answers, and number of samples.
    """
    assert result.keys() == expected.keys()
    assert result["steps"] == expected["steps"]
    sums, expected_sums = result["sums"], expected["sums"]
    last = 2 if is_evaluated else 1
    np.testing.assert_allclose(sums[:last], expected_sums[:last], rtol=1e-4)
    assert not is_evaluated or abs(sums[2] - expected_sums[2]) <= 1
    assert sums[3] == expected_sums[3]
    for name in result.keys() - {"sums", "steps"}:
        np.testing.assert_allclose(result[name], expected[name], **tolerance)


def one_worker(spec: RunSpec) -> dict[str, np.ndarray]:
    return train_result(spec, single_worker(spec.framework))


@pytest.fixture(scope="module")
def torch_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which two workers of torch have saved their results."""
    pytest.importorskip("torch")
    run = partial(run_two, "worker_script.py", "torch", specs_of_two("torch"))
    return cached_folder(tmp_path_factory, "torch_group", run)


def test_two_workers_equal_one_with_twice_the_batch(torch_group):
    """`test_two_workers` compares TensorFlow."""
    check_two_are_one("torch", torch_group)


def test_accumulation_equals_one_large_batch(framework):
    settings = {"workload": "mlp", "optimizer": "sgd", "learning_rate": 0.01, "dataset": DATASET}
    whole, in_three = (
        one_worker(small_spec(framework, batch_size_per_worker=size, accumulate=n, **settings))
        for size, n in ((48, 1), (16, 3))
    )
    assert_same_result(in_three, whole, atol=2e-5, rtol=1e-3)


def unpacked(saved: bytes) -> dict[str, Any]:
    """Return the state that a training loop in torch has saved."""
    from raybench.training.torch.world import Adapter

    kind, content = state_of(saved)
    assert kind == "torch"
    return Adapter(single_worker("torch")).unpack(content)


def assert_same_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
    assert state["model"].keys() == expected["model"].keys()
    for name, array in state["model"].items():
        np.testing.assert_allclose(array, expected["model"][name], rtol=0, atol=1e-5)
    for name, moments in state["optimizer"]["state"].items():
        expected_moments = expected["optimizer"]["state"][name]
        np.testing.assert_allclose(
            moments["exp_avg"], expected_moments["exp_avg"], rtol=0, atol=1e-5
        )


def test_sharded_model_equals_a_replicated_one_with_half_the_memory(torch_group):
    assert_same_state(
        unpacked((torch_group / "fsdp-whole").read_bytes()),
        unpacked((torch_group / "ddp-whole").read_bytes()),
    )
    whole, sharded = (
        json.loads((torch_group / f"{strategy}.json").read_text()) for strategy in ("ddp", "fsdp")
    )
    assert sharded["values"] == whole["values"] / 2
    assert (whole["blocks"], sharded["blocks"]) == (0, 4)
    assert (whole.get("refused"), sharded["refused"]) == (None, ErrorCode.USER_CODE)


def test_state_of_a_sharded_model_resumes_on_two_workers_and_on_one(torch_group):
    from sharded_loop import EPOCHS, MIDDLE, trained

    whole = unpacked((torch_group / "fsdp-whole").read_bytes())
    assert_same_state(unpacked((torch_group / "fsdp-resumed").read_bytes()), whole)
    states, _ = trained(
        single_worker("torch"), "fsdp", 1, (torch_group / "fsdp-middle").read_bytes()
    )
    assert_same_state(unpacked(states[EPOCHS - MIDDLE - 2]), whole)


@pytest.mark.parametrize(("framework", "strategy"), [("python", "fsdp"), ("torch", "zero3")])
def test_unknown_or_unsupported_strategy_is_refused(framework, strategy):
    world = PlainWorld("cpu") if framework == "python" else single_worker(framework)
    run = Run(RunSpec(workload="train.py:train", framework=framework), world, Ledger("setup"))
    with refused(ErrorCode.USER_CODE, strategy, framework):
        run.prepare(None, strategy=strategy)
