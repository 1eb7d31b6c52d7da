"""What of nn.DataParallel can be tested without two GPUs: what surrounds it."""

import threading

import pytest

torch = pytest.importorskip("torch")

from raybench.spec.errors import UserError  # noqa: E402
from raybench.training.torch.state import (  # noqa: E402
    random_state,
    seed_replicas,
    set_random_state,
)
from raybench.training.torch.world import Replica, join  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("gpus", [0, 1])
def test_fewer_gpus_than_replicas_are_refused(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError, match=f"2 replicas need as many GPUs, .* process sees {gpus};"):
        join(rank=0, num_workers=1, device="cpu", num_threads=1, num_replicas=2)


def test_a_replica_keeps_its_precision_in_another_thread() -> None:
    """torch's own autocast does not: in a new thread its type is what it was at the start."""
    replica = Replica(torch.nn.Linear(2, 2), lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    found = []

    def forward() -> None:
        with torch.autocast("cpu", dtype=torch.float16):  # as DataParallel has it
            found.append(replica(torch.ones(1, 2)).dtype)

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]


def test_a_replica_adds_no_parameters_and_changes_no_names() -> None:
    model = torch.nn.Linear(2, 2)
    replica = Replica(model, torch.no_grad)
    assert [id(one) for one in replica.parameters()] == [id(one) for one in model.parameters()]
    assert list(model.state_dict()) == ["weight", "bias"]


def test_random_numbers_go_on_where_they_were() -> None:
    with torch.random.fork_rng():
        seed_replicas([CPU], 7)
        state = random_state([CPU])
        drawn = torch.rand(3)
        set_random_state(state, [CPU])
        assert torch.equal(torch.rand(3), drawn)
        torch.manual_seed(7)
        assert torch.equal(torch.rand(3), drawn), "one device is seeded as it always was"
