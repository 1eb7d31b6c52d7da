"""What torch's optimizers have of their own: other libraries beside them, kernels, buckets."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
from optim_reference import (
    NAMES,
    TOLERANCE,
    Reference,
    gradients,
    initial_weights,
    rates,
)

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from raybench.training.torch import internals  # noqa: E402
from raybench.training.torch.optim import build_optimizer, kernels  # noqa: E402
from raybench.training.torch.optim.methods import Lamb, Lars, RAdam  # noqa: E402

OURS = [name for name in NAMES if name not in ("adam", "sgd")]
NAMES_AND_PATHS = [(name, None) for name in NAMES]
NAMES_AND_PATHS += [(name, path) for name in OURS for path in ("fused", "foreach")]


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.tensor(w).to(dtype)) for w in initial_weights()]


def build(name, params, *, path=None, **settings):
    named = [(str(i), p) for i, p in enumerate(params)]
    settings.setdefault("learning_rate", 1e-2)
    optimizer = build_optimizer(name, named, **settings)
    if path:
        force(optimizer, path=path)
    return optimizer


def force(optimizer, **options):
    for group in optimizer.param_groups:
        group.update(options)


def run(optimizer, params, name, *, first=0, last=40, scale=1.0):
    for i, (grads, rate) in enumerate(zip(gradients(scale), rates(name), strict=True)):
        if first <= i < last:
            force(optimizer, lr=rate)
            for p, grad in zip(params, grads, strict=True):
                p.grad = torch.tensor(grad).to(p.dtype)
            optimizer.step()


def assert_follows(params, reference, name, **tolerance):
    for grads, rate in zip(gradients(), rates(name), strict=True):
        expected = reference.step(grads, rate)
    for p, e in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().double().numpy(), e, **(tolerance or TOLERANCE))


def test_radam_is_torch_radam():
    ours, theirs = parameters(), parameters()
    run(build("radam", ours), ours, "radam")
    run(torch.optim.RAdam(theirs, decoupled_weight_decay=True), theirs, "radam")
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach(), q.detach(), **TOLERANCE)


@pytest.mark.parametrize("name", ["nadamw", "lion"])
def test_what_timm_has_is_the_same(name):
    timm = pytest.importorskip("timm.optim")
    kind = {"nadamw": timm.NAdamW, "lion": timm.Lion}[name]
    ours, theirs = parameters(), parameters()
    run(build(name, ours, weight_decay=0.05), ours, name)
    groups = [
        {"params": theirs[:3], "weight_decay": 0.05},
        {"params": theirs[3:], "weight_decay": 0.0},
    ]
    run(kind(groups), theirs, name)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach(), q.detach(), **TOLERANCE)


def test_muon_takes_matrices_as_torch_does():
    """Theirs computes in bfloat16, of two digits."""
    ours, theirs = parameters(), parameters()
    run(build("muon", ours, weight_decay=0.05), ours, "muon", last=5)
    settings = {"weight_decay": 0.05, "adjust_lr_fn": "match_rms_adamw"}
    run(torch.optim.Muon(theirs[:1], **settings), theirs, "muon", last=5)
    moved = (ours[0] - torch.tensor(initial_weights()[0])).abs().max()
    assert (ours[0] - theirs[0]).abs().max() < 0.05 * moved


def test_wide_matrices_are_orthogonalised_in_the_same_steps(monkeypatch):
    from raybench.training import optimizers
    from raybench.training.torch.optim import methods

    matrix = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = methods.orthogonalised(matrix)
    assert torch.equal(methods.orthogonalised(matrix.T), found.T)
    monkeypatch.setattr(optimizers, "WIDE", 100)
    plain = methods.orthogonalised(matrix)
    np.testing.assert_allclose(found, plain, atol=1e-7)
    values = torch.linalg.svdvals(found)
    assert 0.6 < values.min() < values.max() < 1.3


@pytest.mark.parametrize(("name", "path"), NAMES_AND_PATHS)
def test_gradients_are_left_alone_and_freed_once_nobody_else_has_them(name, path):
    params = parameters()
    optimizer = build(name, params, path=path, weight_decay=0.05)
    for _, grads in zip(range(7), gradients(), strict=False):
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.tensor(grad)
        optimizer.step()
        assert all(torch.equal(p.grad, torch.tensor(g)) for p, g in zip(params, grads, strict=True))
    held = [weakref.ref(p.grad) for p in params]
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    assert [one() for one in held] == [None] * len(held)


@pytest.mark.parametrize("cls", [Lars, Lamb, RAdam])
def test_groups_keep_their_own_settings(cls):
    name = cls.__name__.lower()
    params, single = parameters(), parameters()
    groups = [{"params": params[:2], "weight_decay": 0.05}, {"params": params[2:]}]
    run(cls(groups, learning_rate=0.1), params, name)
    run(cls(single, learning_rate=0.1, weight_decay=0.05), single, name)
    for i, (p, q) in enumerate(zip(params, single, strict=True)):
        assert torch.equal(p, q) == (i != 2)  # the one matrix without decay; 1-d has none anyway


@pytest.fixture
def probed_anew():
    internals.fused_kernels_work.cache_clear()
    yield
    internals.fused_kernels_work.cache_clear()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["_fused_adamw_", "_fused_sgd_"])
def test_works_without_the_fused_kernels(name, missing, probed_anew, monkeypatch):
    monkeypatch.delattr(torch, missing)
    params = parameters()
    optimizer = build(name, params, weight_decay=0.05)
    run(optimizer, params, name)
    assert not optimizer.defaults.get("fused")
    assert_follows(params, Reference(name, initial_weights(), weight_decay=0.05), name)


def test_a_changed_kernel_is_not_used(probed_anew, monkeypatch):
    assert internals.fused_kernels_work("cpu")
    internals.fused_kernels_work.cache_clear()
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *args, **kwargs: None)
    assert not internals.fused_kernels_work("cpu")


@pytest.mark.parametrize(
    ("dtype", "path"),
    [(torch.float32, "fused"), (torch.float64, "foreach"), (torch.bfloat16, "foreach")],
)
def test_path_by_type(dtype, path):
    params = parameters(dtype)
    optimizer = build("lamb", params)
    for p in params:
        p.grad = torch.ones_like(p)
    group = optimizer.param_groups[0]
    found = kernels.buckets(optimizer, group, ("exp_avg", "exp_avg_sq"), cuda_path="foreach")
    assert {bucket.path for bucket in found} == {path}


@pytest.mark.parametrize("path", ["fused", "foreach"])
def test_buckets_are_kept_until_a_layout_or_a_state_is_another(path, monkeypatch):
    built, buckets = [], kernels.buckets
    monkeypatch.setattr(
        kernels, "buckets", lambda *args, **more: built.append(1) or buckets(*args, **more)
    )
    params = parameters()
    optimizer = build("lamb", params, path=path)
    run(optimizer, params, "lamb", last=5)
    assert len(built) == 1
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, "lamb", first=5, last=10)
    assert len(built) == 2
    params[0].grad = params[0].grad.T.contiguous().T
    optimizer.step()
    params[0].grad = None
    optimizer.step()
    assert len(built) == 4
    run(optimizer, params, "lamb", first=10)
    assert len(built) == 5


@pytest.mark.parametrize("name", ["radam", "lars", "lamb"])
def test_layouts_may_differ(name):
    """The fused kernels pair memory, not indices: a transposed gradient must not reach them."""
    params, plain = parameters(), parameters()
    params[1].data = params[1].data.contiguous(memory_format=torch.channels_last)
    optimizer, other = build(name, params), build(name, plain)
    for grads in gradients():
        for p, q, grad in zip(params, plain, grads, strict=True):
            p.grad, q.grad = torch.tensor(grad), torch.tensor(grad)
        params[0].grad = torch.tensor(grads[0].T.copy()).T
        params[1].grad = params[1].grad.contiguous(memory_format=torch.channels_last)
        optimizer.step()
        other.step()
    for p, q in zip(params, plain, strict=True):
        np.testing.assert_allclose(p.detach(), q.detach(), **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "path"),
    [("lars", None), ("lamb", None), ("radam", None), ("radam", "foreach")],
)
def test_cuda_steps_never_wait_for_the_device(name, path, monkeypatch):
    """Fake tensors need no GPU; reading one's value on the host, which is a sync, raises."""
    monkeypatch.setattr(kernels, "fused_kernels_work", lambda device_type: device_type == "cuda")
    chosen, buckets = set(), kernels.buckets

    def recording(*args, **kwargs):
        found = buckets(*args, **kwargs)
        chosen.update(bucket.path for bucket in found)
        return found

    monkeypatch.setattr(kernels, "buckets", recording)
    with FakeTensorMode():
        params = [
            torch.nn.Parameter(torch.empty(w.shape, device="cuda")) for w in initial_weights()
        ]
        optimizer = build(name, params, path=path, weight_decay=0.05)
        for _ in range(7):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
    assert chosen == {path or {"radam": "fused"}.get(name, "foreach")}


def test_gradients_are_clipped_by_one_kernel(monkeypatch):
    params = parameters()
    for p in params:
        p.grad = torch.ones_like(p)
    calls, multiply = [], torch._foreach_mul_
    monkeypatch.setattr(
        torch,
        "_foreach_mul_",
        lambda tensors, factor: calls.append(len(tensors)) or multiply(tensors, factor),
    )
    kernels.clip_gradients(params, 0.5)
    assert calls == [len(params)]
    assert float(torch.nn.utils.get_total_norm([p.grad for p in params])) == pytest.approx(0.5)


def test_frozen_parameters_are_left_out():
    model = torch.nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    optimizer = build_optimizer("lamb", model, learning_rate=0.1)
    assert [p for group in optimizer.param_groups for p in group["params"]] == [model.bias]
