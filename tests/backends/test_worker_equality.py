"""Data parallelism changes who computes, not what: 2 workers x B is 1 worker x 2B."""

import importlib.util
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from group import run_group

from raybench.core.spec import DatasetSpec, RunSpec

SCRIPT = Path(__file__).with_name("one_worker.py")
FRAMEWORKS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"),
    )
    for name in ("torch", "tensorflow")
]


def train(spec: RunSpec, folder: Path) -> dict[str, np.ndarray]:
    ports = [free_port() for _ in range(spec.num_workers)]
    outs = [folder / f"{spec.num_workers}-{rank}.npz" for rank in range(spec.num_workers)]
    commands = [
        [sys.executable, str(SCRIPT), spec.model_dump_json(), str(rank), str(out), *map(str, ports)]
        for rank, out in enumerate(outs)
    ]
    run_group(commands, outs)
    results = [dict(np.load(out)) for out in outs]
    for other in results[1:]:
        for name in other:
            np.testing.assert_array_equal(other[name], results[0][name])
    return results[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# 301 samples: the last global batch of an epoch is partial and does not split evenly.
# Tolerances: float32 sums in another order, through 3 epochs of an adaptive optimizer.
@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("optimizer", "accumulate"), [("sgd", 1), ("lamb", 2)])
def test_two_workers_equal_one_with_twice_the_batch(
    framework: str, optimizer: str, accumulate: int, tmp_path: Path
) -> None:
    def spec(num_workers: int, batch_size: int) -> RunSpec:
        return RunSpec(
            framework=framework,
            num_workers=num_workers,
            batch_size_per_worker=batch_size,
            accumulate=accumulate,
            optimizer=optimizer,
            learning_rate=0.01,
            dataset=DatasetSpec(image_size=28, limit=301),
        )

    one, two = train(spec(1, 32), tmp_path), train(spec(2, 16), tmp_path)
    assert one["steps"] == two["steps"]
    np.testing.assert_allclose(one["sums"][:2], two["sums"][:2], rtol=1e-4)
    assert one["sums"][3] == two["sums"][3] == 360  # every validation sample, once
    assert abs(one["sums"][2] - two["sums"][2]) <= 1
    arrays = [name for name in one if name.startswith("arr_")]
    assert len(arrays) == 6
    for name in arrays:
        np.testing.assert_allclose(one[name], two[name], atol=2e-5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_accumulation_equals_one_large_batch(framework: str, tmp_path: Path) -> None:
    def spec(accumulate: int) -> RunSpec:
        return RunSpec(
            framework=framework,
            batch_size_per_worker=48 // accumulate,
            accumulate=accumulate,
            optimizer="sgd",
            learning_rate=0.01,
            dataset=DatasetSpec(image_size=28, limit=301),
        )

    whole, parts = train(spec(1), tmp_path), train(spec(3), tmp_path)
    assert whole["steps"] == parts["steps"]
    np.testing.assert_allclose(whole["sums"], parts["sums"], rtol=1e-4, atol=1)
    np.testing.assert_allclose(whole["arr_0"], parts["arr_0"], atol=2e-5, rtol=1e-3)
