"""What torch's optimizers have of their own: other libraries beside them, kernels, buckets."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
from optim_reference import TOLERANCE, gradients, initial_weights
from test_optim import IN_TORCH, InTorch, assert_follows, of_path, run

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from raybench.training.torch import internals, kernels  # noqa: E402
from raybench.training.torch.optim import build_optimizer  # noqa: E402

__all__ = ["of_path"]


@pytest.mark.parametrize(("name", "path"), IN_TORCH)
def test_gradients_are_left_alone_and_freed_once_nobody_else_has_them(name, path):
    mine = InTorch(name, weight_decay=0.05)
    for _, grads in zip(range(7), gradients(), strict=False):
        mine.step(grads, 1e-2)
        pairs = zip(mine.params, grads, strict=True)
        assert all(torch.equal(p.grad, torch.tensor(grad)) for p, grad in pairs)
    held = [weakref.ref(p.grad) for p in mine.params]
    mine.optimizer.zero_grad(set_to_none=True)
    assert [one() for one in held] == [None] * len(held)


@pytest.fixture
def probed_anew():
    internals.fused_kernels_work.cache_clear()
    yield
    internals.fused_kernels_work.cache_clear()


@pytest.mark.parametrize("name", ["adam", "sgd", "lamb"])
@pytest.mark.parametrize("missing", ["_fused_adamw_", "_fused_sgd_"])
def test_works_without_the_fused_kernels(name, missing, probed_anew, monkeypatch):
    monkeypatch.delattr(torch, missing)
    mine = InTorch(name, weight_decay=0.05)
    run(mine, name)
    assert not mine.optimizer.defaults.get("fused")
    assert_follows(mine, "torch", name)


def test_a_changed_kernel_is_not_used(probed_anew, monkeypatch):
    assert internals.fused_kernels_work("cpu")
    internals.fused_kernels_work.cache_clear()
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *args, **kwargs: None)
    assert not internals.fused_kernels_work("cpu")


@pytest.mark.parametrize("path", ["fused", "foreach"])
def test_buckets_are_kept_until_a_layout_or_a_state_is_another(path, monkeypatch):
    built, buckets = [], kernels.buckets
    monkeypatch.setattr(
        kernels, "buckets", lambda *args, **more: built.append(1) or buckets(*args, **more)
    )
    mine = InTorch("lamb")
    run(mine, "lamb", last=5)
    assert len(built) == 1
    mine.optimizer.load_state_dict(copy.deepcopy(mine.optimizer.state_dict()))
    run(mine, "lamb", first=5, last=10)
    assert len(built) == 2
    first = mine.params[0]
    first.grad = first.grad.T.contiguous().T
    mine.optimizer.step()
    first.grad = None
    mine.optimizer.step()
    assert len(built) == 4
    run(mine, "lamb", first=10)
    assert len(built) == 5


@pytest.mark.parametrize("name", ["radam", "lars", "lamb"])
def test_layouts_may_differ(name):
    """The fused kernels pair memory, not indices: a transposed gradient must not reach them."""
    mine, plain = InTorch(name), InTorch(name)
    params = mine.params
    params[1].data = params[1].data.contiguous(memory_format=torch.channels_last)
    for grads in gradients():
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.tensor(grad)
        params[0].grad = torch.tensor(grads[0].T.copy()).T
        params[1].grad = params[1].grad.contiguous(memory_format=torch.channels_last)
        mine.optimizer.step()
        plain.step(grads, 1e-2)
    for one, other in zip(mine.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)


@pytest.fixture
def chosen(monkeypatch):
    """The paths of the buckets that are made."""
    found, buckets = set(), kernels.buckets

    def recording(*args, **kwargs):
        made = buckets(*args, **kwargs)
        found.update(bucket.path for bucket in made)
        return made

    monkeypatch.setattr(kernels, "buckets", recording)
    return found


@pytest.mark.parametrize(
    ("dtype", "path"), [("float32", "fused"), ("float64", "foreach"), ("bfloat16", "foreach")]
)
def test_path_by_type(dtype, path, chosen):
    run(InTorch("lamb", dtype=dtype), "lamb", last=1)
    assert chosen == {path}


@pytest.mark.parametrize(
    ("name", "has_fused", "path"),
    [
        *(("lars", True, "foreach"), ("lamb", True, "foreach")),
        *(("radam", True, "fused"), ("radam", False, "foreach")),
    ],
)
def test_cuda_steps_never_wait_for_the_device(name, has_fused, path, chosen, monkeypatch):
    """Fake tensors need no GPU; reading one's value on the host, which is a sync, raises."""
    monkeypatch.setattr(
        kernels, "fused_kernels_work", lambda device_type: has_fused and device_type == "cuda"
    )
    with FakeTensorMode():
        sizes = [w.shape for w in initial_weights()]
        params = torch.nn.ParameterList(torch.empty(size, device="cuda") for size in sizes)
        optimizer = build_optimizer(name, params, learning_rate=1e-2, weight_decay=0.05)
        for _ in range(7):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
    assert chosen == {path}


def test_frozen_parameters_are_left_out():
    model = torch.nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    optimizer = build_optimizer("lamb", model, learning_rate=0.1)
    assert [p for group in optimizer.param_groups for p in group["params"]] == [model.bias]
