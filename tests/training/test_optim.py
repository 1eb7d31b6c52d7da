"""Optimizers of both frameworks against the papers.

On several workers test_two_workers.py holds Keras's to the papers.
"""

from __future__ import annotations

import numpy as np
import pytest
from framework_models import backend
from optim_reference import (
    CHANGED,
    NAMES,
    TOLERANCE,
    after_all_steps,
    gradients,
    initial_weights,
    rates,
)

import raybench.training.tensorflow  # noqa: F401  sets what must be set before tensorflow
from raybench.models.shipped import shipped_workload
from raybench.spec.run import RunSpec
from raybench.training.optimizers import settings_of

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from raybench.training.base import find_part  # noqa: E402
from raybench.training.tensorflow import optim as keras_optim  # noqa: E402
from raybench.training.torch import optim as torch_optim  # noqa: E402

EACH = pytest.mark.parametrize("name", NAMES)


class InTorch:
    """An optimizer with the weights of the reference."""

    def __init__(self, name, *, dtype="float32", weights=None, **settings):
        values = [
            torch.tensor(one).to(getattr(torch, dtype)) for one in weights or initial_weights()
        ]
        self.params = torch.nn.ParameterList(values)
        given = {"learning_rate": 1e-2, **settings}
        self.optimizer = torch_optim.build_optimizer(name, self.params, **given)

    def step(self, grads, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for p, grad in zip(self.params, grads, strict=True):
            p.grad = None if grad is None else torch.tensor(grad).to(p.dtype)
        self.optimizer.step()

    def weights(self):
        return [p.detach().double().numpy() for p in self.params]


class InKeras:
    """The same in Keras, traced."""

    def __init__(self, name, *, dtype="float32", weights=None, **settings):
        self.variables = [keras.Variable(w, dtype=dtype) for w in weights or initial_weights()]
        self.optimizer = keras_optim.build_optimizer(name, **{"learning_rate": 1e-2, **settings})
        self.optimizer.build(self.variables)
        self.apply = tf.function(self.optimizer.apply)

    def step(self, grads, rate):
        self.optimizer.learning_rate.assign(rate)
        self.apply([tf.constant(g) for g in grads])

    def weights(self):
        return [np.asarray(v.numpy(), np.float64) for v in self.variables]


IN = {"torch": InTorch, "tensorflow": InKeras}


def new(framework, name, **settings):
    return IN[framework](name, **({"weight_decay": 0.05} | settings))


def run(mine, name, *, first=0, last=40, scale=1.0):
    for i, (grads, rate) in enumerate(zip(gradients(scale), rates(name), strict=True)):
        if first <= i < last:
            mine.step(grads, rate)


def assert_follows(mine, framework, name, *, tolerance=TOLERANCE, scale=1.0, **settings):
    is_last = framework == "tensorflow"
    expected = after_all_steps(name, scale=scale, outputs_last=is_last, **settings)
    for w, e in zip(mine.weights(), expected, strict=True):
        np.testing.assert_allclose(w, e, **tolerance)


@pytest.mark.parametrize(
    ("name", "weight_decay", "scale"),
    [
        *((name, 0.05, 1.0) for name in NAMES),
        *((name, 0.0, 1e-7) for name in ("adam", "radam", "lamb")),
    ],
)
def test_follows_the_paper(framework, name, weight_decay, scale):
    """With gradients as small as epsilon, the place of epsilon in the formula decides the step."""
    mine = new(framework, name, weight_decay=weight_decay)
    run(mine, name, scale=scale)
    assert_follows(mine, framework, name, weight_decay=weight_decay, scale=scale)


@pytest.mark.parametrize(("name", "settings"), CHANGED)
def test_settings_reach_the_update(framework, name, settings):
    mine = new(framework, name, **settings)
    run(mine, name)
    assert_follows(mine, framework, name, **settings)


def test_of_a_run_an_optimizer_gets_what_it_reads():
    spec = RunSpec(optimizer="lars", momentum=0.5, beta1=0.8)
    found = settings_of(spec)
    assert found.pop("options") == {}
    assert found == {
        **{"momentum": 0.5, "trust_coefficient": 0.001},
        **{"learning_rate": spec.learning_rate, "weight_decay": 0.0},
    }


@EACH
def test_weights_without_gradient_are_skipped(name):
    mine = new("torch", name)
    mine.optimizer.step()
    mine.step([np.ones_like(w) if i == 1 else None for i, w in enumerate(initial_weights())], 1e-2)
    for i, (w, initial) in enumerate(zip(mine.weights(), initial_weights(), strict=True)):
        assert np.array_equal(w, initial) == (i != 1)


@pytest.mark.parametrize("name", ["adam", "lars", "muon"])
def test_bfloat16_stays_near(framework, name):
    mine = new(framework, name, dtype="bfloat16")
    run(mine, name)
    assert_follows(mine, framework, name, tolerance={"rtol": 0.1, "atol": 0.1})


def test_bias_correction_is_exact():
    """Adam's first step is the sign; in float32, 1 - 0.999 would make it 6e-6 too long."""
    mine = InKeras("adam", weights=[np.zeros(3, "float32")])
    mine.step([np.array([1.0, -2.0, 3.0], np.float32)], 1.0)
    np.testing.assert_allclose(mine.weights()[0], [-1.0, 1.0, -1.0], rtol=3e-7)


def shapes_of(framework: str, model) -> list[tuple[int, int]]:
    """The matrices' shapes, small side first: one framework has them as the other's transposes."""
    module = find_part(framework, "optim")
    if framework == "torch":
        found = [(one.shape[0], one[0].numel()) for one in module.hidden_matrices(model)]
    else:
        found = list(module.hidden_matrices(model, model.trainable_variables).values())
    return sorted((min(shape), max(shape)) for shape in found)


SQUARE, FOURFOLD, JOINED = [(128, 128)] * 2, [(128, 512)] * 4, [(128, 384)] * 2
# Not the head; nor embeddings, positions and filters of one channel each.
EXPECTED = {
    "mnist_small": [(9, 32), (64, 6272)],
    "mnist_large": [(9, 128), (512, 512), (512, 4608)],
    "text_bag": [(64, 128)],
    "char_lm": SQUARE + JOINED + FOURFOLD,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_shipped_workloads(framework, name):
    module = backend(framework)
    assert shapes_of(framework, module.build_model(shipped_workload(name), 0)) == EXPECTED[name]


def test_a_torch_model_of_ones_own():
    nn = pytest.importorskip("torch").nn
    tied = nn.Embedding(9, 6)
    head = nn.Linear(6, 9, bias=False)
    head.weight = tied.weight
    attention = nn.MultiheadAttention(6, 3)
    convolutions = nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 3, groups=2), nn.Conv1d(6, 1, 3)
    model = nn.Sequential(tied, *convolutions, attention, head)
    model.pos_embed = nn.Parameter(head.weight.new_zeros(5, 6))
    model.extra = nn.Linear(6, 2)
    # Of the attention what joins queries, keys and values, and what comes after it.
    assert shapes_of("torch", model) == [(6, 6), (6, 18), (6, 27)]


def test_a_keras_model_of_ones_own():
    backend("tensorflow")
    layers = pytest.importorskip("keras").layers
    keras = pytest.importorskip("keras")
    inputs = keras.Input((5,))
    tokens = layers.Embedding(9, 6)(inputs)
    tokens = layers.MultiHeadAttention(3, 4)(tokens, tokens)
    image = layers.Reshape((5, 6, 1))(tokens)
    image = layers.DepthwiseConv2D(3, depth_multiplier=2)(
        layers.Conv2D(4, 3, padding="same")(image)
    )
    image = layers.SeparableConv2D(2, 3)(image)
    outputs = layers.Dense(3)(layers.Flatten()(image))
    # Queries, keys, values and outputs of the attention; two convolutions.
    expected = [*[(6, 12)] * 4, (4, 9), (2, 8)]
    assert shapes_of("tensorflow", keras.Model(inputs, outputs)) == sorted(expected)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_cuda_steps_never_wait_for_the_device(name):
    """Fake tensors need no GPU; reading one's value on the host, which is a sync, raises."""
    with FakeTensorMode():
        sizes = [w.shape for w in initial_weights()]
        params = torch.nn.ParameterList(torch.empty(size, device="cuda") for size in sizes)
        optimizer = torch_optim.build_optimizer(name, params, learning_rate=1e-2, weight_decay=0.05)
        for _ in range(7):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
