"""Batch normalisation over all workers: two workers are one with twice the batch
(test_two_workers.py); what is refused."""

import numpy as np
import pytest
from local import small_spec

from raybench.spec.run import RunSpec


def spec_of(framework: str, num_workers: int, **changes: object) -> RunSpec:
    content: dict[str, object] = {
        "num_workers": num_workers,
        "batch_size_per_worker": 8 // num_workers,
        "sync_batch_norm": True,
        "gpus_per_worker": 1,
        "learning_rate": 1e-2,
        "optimizer": "sgd",
    }
    return small_spec(framework, **(content | changes))


def check_average_statistics(ranks: list[dict[str, np.ndarray]]) -> None:
    """Each worker has those of its own samples, and both the mean once the model is evaluated;
    of what else forward changes, rank 0's."""
    for name in ("norm.running_mean", "norm.running_var"):
        own = [rank[f"own.{name}"] for rank in ranks]
        assert (abs(own[0] - own[1]) > 1e-4).any()
        for rank in ranks:
            np.testing.assert_allclose(rank[name], (own[0] + own[1]) / 2, rtol=1e-6, atol=1e-7)
    assert (ranks[0]["own.seen"] != ranks[1]["own.seen"]).all()
    for rank in ranks:
        np.testing.assert_array_equal(rank["seen"], ranks[0]["own.seen"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": 2}, "accumulate: 1"),
        ({"strategy": "single_process"}, "strategy: distributed"),
        ({"gpus_per_worker": 0}, "gpus_per_worker: 1"),
    ],
)
def test_what_cannot_be_synchronised_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_of("torch", 2, **changes)


def test_layers_with_an_activation_keep_it_and_their_names() -> None:
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    from raybench.training.torch.layers import synchronize

    ours, theirs = (timm.layers.BatchNormAct2d(3, act_layer=torch.nn.SiLU) for _ in range(2))
    inputs = torch.randn(4, 3, 5, 5)
    ours = synchronize(ours)
    assert isinstance(ours, torch.nn.SyncBatchNorm)
    assert torch.equal(ours(inputs), theirs(inputs)), "of one process"
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
