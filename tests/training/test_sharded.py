"""`Run.prepare(model, strategy="fsdp")` on two workers equals DistributedDataParallel."""

import json
from pathlib import Path
from typing import Any

import pytest
from group import run_two
from local import alone

from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.own import PlainWorld, Run, state_of
from tests.refusals import refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sharded")
    run_two("sharded.py", "torch", ["ddp", "fsdp"], found)
    return found


def state(folder: Path, name: str) -> dict[str, Any]:
    return unpacked((folder / name).read_bytes())


def unpacked(saved: bytes) -> dict[str, Any]:
    from raybench.training.torch.own import Adapter

    kind, content = state_of(saved)
    assert kind == "torch"
    found: dict[str, Any] = Adapter(alone("torch")).unpack(content)
    return found


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["model"].keys() == other["model"].keys()
    for name, value in one["model"].items():
        torch.testing.assert_close(value, other["model"][name], rtol=0, atol=1e-5)
    for name, values in one["optimizer"]["state"].items():
        moments = other["optimizer"]["state"][name]
        torch.testing.assert_close(values["exp_avg"], moments["exp_avg"], rtol=0, atol=1e-5)


def test_a_sharded_model_trains_like_a_whole_one_on_half_of_the_memory(folder: Path) -> None:
    assert_equal(state(folder, "fsdp-whole"), state(folder, "ddp-whole"))
    whole, sharded = (json.loads((folder / f"{one}.json").read_text()) for one in ("ddp", "fsdp"))
    assert sharded["values"] == whole["values"] / 2
    assert (whole["blocks"], sharded["blocks"]) == (0, 4)
    assert (whole.get("refused"), sharded["refused"]) == (None, ErrorCode.USER_CODE)


def test_the_state_of_a_sharded_model_continues_on_as_many_workers_and_on_one(folder: Path) -> None:
    from sharded import EPOCHS, MIDDLE, trained

    whole = state(folder, "fsdp-whole")
    assert_equal(state(folder, "fsdp-again"), whole)
    states, _ = trained(alone("torch"), "fsdp", 1, (folder / "fsdp-middle").read_bytes())
    assert_equal(unpacked(states[EPOCHS - MIDDLE - 2]), whole)


@pytest.mark.parametrize(("framework", "strategy"), [("python", "fsdp"), ("torch", "zero3")])
def test_another_strategy_is_refused(framework: str, strategy: Any) -> None:
    world = PlainWorld("cpu") if framework == "python" else alone(framework)
    run = Run(RunSpec(workload="train.py:train", framework=framework), world, Ledger("setup"))
    with refused(ErrorCode.USER_CODE, strategy, framework):
        run.prepare(None, strategy=strategy)
