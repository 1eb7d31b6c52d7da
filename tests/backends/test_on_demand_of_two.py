"""Two workers that read their shares on demand train as two that have them in memory."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from continued import spec_of
from group import run_group
from test_worker_equality import SCRIPT, free_port

from raybench.core.spec import DatasetSpec

FRAMEWORKS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"),
        ],
    )
    for name in ("torch", "tensorflow")
]
LAZY = {
    "workload": "on_demand_data:DigitsOnDemand",
    "dataset": DatasetSpec(name="workload", limit=90),
}


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_workers_on_demand_are_two_in_memory(framework: str, tmp_path: Path) -> None:
    common = {"num_workers": 2, "batch_size_per_worker": 8, "accumulate": 2}
    specs = [
        spec_of(framework, "adam", **common, **changes)
        for changes in ({}, LAZY, LAZY | {"prefetch": 2})
    ]
    arguments = json.dumps([spec.document() for spec in specs])
    ports = [str(free_port()) for _ in range(2)]
    run_group(
        [
            [sys.executable, str(SCRIPT), arguments, str(rank), str(tmp_path), *ports]
            for rank in range(2)
        ],
        [tmp_path / f"done-{rank}" for rank in range(2)],
    )
    for rank in range(2):
        memory, *others = (dict(np.load(tmp_path / f"{index}-{rank}.npz")) for index in range(3))
        assert memory["sums"][3] == 360
        for lazy in others:
            assert len(lazy) == len(memory) == 8
            # TensorFlow adds up losses in float32 where a call of it takes many steps.
            np.testing.assert_allclose(lazy.pop("sums"), memory["sums"], rtol=1e-6)
            for name, values in lazy.items():
                np.testing.assert_array_equal(values, memory[name])
