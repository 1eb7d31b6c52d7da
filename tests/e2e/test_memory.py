"""Many runs in one group: resident memory of its workers stays flat."""

import importlib.util
from collections.abc import Iterator

import psutil
import pytest

from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.core.objective import Objective
from raybench.core.spec import DatasetSpec, RunSpec

pytestmark = pytest.mark.ray
NUM_RUNS = 30
SETTLED = 10
"""Runs after which allocators have reached their size."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def spec_of(framework: str, number: int) -> RunSpec:
    return RunSpec(
        framework=framework,
        dataset=DatasetSpec(image_size=28, limit=256),
        batch_size_per_worker=(32, 128)[number % 2],
        optimizer=("adam", "lamb", "lars")[number % 3],
        epochs=1.0,
        objective=Objective(kind="accuracy_at_budget", max_train_seconds=30),
        seed=number,
    )


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_resident_memory_is_flat(session: Session, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"no {framework}")
    import ray

    sizes = []
    for number in range(NUM_RUNS):
        lease = RunClient(session.hub, f"{framework}{number}", spec_of(framework, number))
        lease.acquire()
        assert lease.start().stop == "epochs"
        lease.finish()
        lease.close()
        groups = ray.get(session.hub.groups.remote()).values()
        pids = next(g["pids"] for g in groups if g["shape"].framework == framework)
        sizes.append(psutil.Process(pids[0]).memory_info().rss / 2**20)
    settled, last = sorted(sizes[SETTLED - 3 : SETTLED])[1], sorted(sizes[-3:])[1]
    # A run that kept its model and optimizer would add 5 MB each, 100 MB in all.
    assert last - settled < 40, [round(size) for size in sizes]
