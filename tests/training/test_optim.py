"""Optimizers of both frameworks, compared with reference implementations of the papers; and those
of libraries, such as `torch:SGD`.

`test_two_workers` compares those of Keras on two workers; `test_checkpoints` and
`test_worker_equality` train with those of libraries.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from framework_models import assert_all_close, model_module
from local_runs import first_steps, new_trainer, small_spec
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
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.training.optimizers import settings_of

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from raybench.training.base import find_part  # noqa: E402
from raybench.training.tensorflow import optim as keras_optim  # noqa: E402
from raybench.training.torch import optim as torch_optim  # noqa: E402
from tests.refusals import refused  # noqa: E402


class InTorch:
    """Optimizer in torch with the initial weights of the reference."""

    def __init__(self, name, *, dtype="float32", weights=None, **settings):
        values = [
            torch.tensor(array).to(getattr(torch, dtype)) for array in weights or initial_weights()
        ]
        self.params = torch.nn.ParameterList(values)
        settings = {"learning_rate": 1e-2, **settings}
        self.optimizer = torch_optim.build_optimizer(name, self.params, **settings)

    def step(self, grads, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for parameter, grad in zip(self.params, grads, strict=True):
            parameter.grad = None if grad is None else torch.tensor(grad).to(parameter.dtype)
        self.optimizer.step()

    def weights(self):
        return [parameter.detach().double().numpy() for parameter in self.params]


class InKeras:
    """Optimizer in Keras with the initial weights of the reference; its steps are traced."""

    def __init__(self, name, *, dtype="float32", weights=None, **settings):
        self.variables = [
            keras.Variable(array, dtype=dtype) for array in weights or initial_weights()
        ]
        model = SimpleNamespace(trainable_variables=self.variables) if ":" in name else None
        settings = {"learning_rate": 1e-2, **settings}
        self.optimizer = keras_optim.build_optimizer(name, model, **settings)
        self.optimizer.build(self.variables)
        self.apply = tf.function(self.optimizer.apply)

    def step(self, grads, rate):
        self.optimizer.learning_rate.assign(rate)
        self.apply([tf.constant(grad) for grad in grads])

    def weights(self):
        return [np.asarray(variable.numpy(), np.float64) for variable in self.variables]


CLASSES = {"torch": InTorch, "tensorflow": InKeras}


def new(framework, name, **settings):
    return CLASSES[framework](name, **({"weight_decay": 0.05} | settings))


def assert_follows_reference(
    framework, name, *, dtype="float32", tolerance=TOLERANCE, scale=1.0, **settings
):
    """Compare the weights after all steps of the test problem with those of the reference."""
    optimizer = new(framework, name, dtype=dtype, **settings)
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        optimizer.step(grads, rate)
    outputs_last = framework == "tensorflow"
    expected = after_all_steps(name, scale=scale, outputs_last=outputs_last, **settings)
    assert_all_close(optimizer.weights(), expected, **tolerance)


@pytest.mark.parametrize(
    ("name", "weight_decay", "scale"),
    [
        *((name, 0.05, 1.0) for name in NAMES),
        *((name, 0.0, 1e-7) for name in ("adam", "radam", "lamb")),
    ],
)
def test_optimizer_follows_the_paper(framework, name, weight_decay, scale):
    """Gradients as small as epsilon show where the formula has epsilon."""
    assert_follows_reference(framework, name, weight_decay=weight_decay, scale=scale)


@pytest.mark.parametrize(("name", "settings"), CHANGED)
def test_settings_reach_the_update(framework, name, settings):
    assert_follows_reference(framework, name, **settings)


def test_optimizer_gets_the_settings_of_the_run_that_it_uses():
    spec = RunSpec(optimizer="lars", momentum=0.5, beta1=0.8)
    settings = settings_of(spec)
    assert settings.pop("options") == {}
    assert settings == {
        **{"momentum": 0.5, "trust_coefficient": 0.001},
        **{"learning_rate": spec.learning_rate, "weight_decay": 0.0},
    }


@pytest.mark.parametrize("name", NAMES)
def test_weights_without_gradient_are_skipped(name):
    optimizer = new("torch", name)
    optimizer.optimizer.step()
    initial = initial_weights()
    grads = [np.ones_like(array) if i == 1 else None for i, array in enumerate(initial)]
    optimizer.step(grads, 1e-2)
    for i, (array, before) in enumerate(zip(optimizer.weights(), initial, strict=True)):
        assert np.array_equal(array, before) == (i != 1)


@pytest.mark.parametrize("name", ["adam", "lars", "muon"])
def test_bfloat16_weights_stay_near_the_reference(framework, name):
    tolerance = {"rtol": 0.1, "atol": 0.1}
    assert_follows_reference(framework, name, dtype="bfloat16", tolerance=tolerance)


def test_bias_correction_is_exact():
    """The first step of adam is the sign; with 1 - 0.999 in float32 it would be 6e-6 too long."""
    optimizer = InKeras("adam", weights=[np.zeros(3, "float32")])
    optimizer.step([np.array([1.0, -2.0, 3.0], np.float32)], 1.0)
    np.testing.assert_allclose(optimizer.weights()[0], [-1.0, 1.0, -1.0], rtol=3e-7)


def shapes_of(framework: str, model) -> list[tuple[int, int]]:
    """Return the shapes of hidden matrices, small side first as Keras and torch transpose them."""
    module = find_part(framework, "optim")
    if framework == "torch":
        matrices = module.hidden_matrices(model)
        shapes = [(matrix.shape[0], matrix[0].numel()) for matrix in matrices]
    else:
        shapes = list(module.hidden_matrices(model, model.trainable_variables).values())
    return sorted((min(shape), max(shape)) for shape in shapes)


SQUARE, FOURFOLD, JOINED = [(128, 128)] * 2, [(128, 512)] * 4, [(128, 384)] * 2
# Without the head, embeddings, positions and filters of one channel each.
HIDDEN_MATRICES = {
    "mnist_small": [(9, 32), (64, 6272)],
    "mnist_large": [(9, 128), (512, 512), (512, 4608)],
    "text_bag": [(64, 128)],
    "char_lm": SQUARE + JOINED + FOURFOLD,
}


@pytest.mark.parametrize("name", HIDDEN_MATRICES)
def test_hidden_matrices_of_shipped_workloads(framework, name):
    model = model_module(framework).build_model(shipped_workload(name), 0)
    assert shapes_of(framework, model) == HIDDEN_MATRICES[name]


def test_hidden_matrices_of_a_torch_model():
    nn = torch.nn
    tied = nn.Embedding(9, 6)
    head = nn.Linear(6, 9, bias=False)
    head.weight = tied.weight
    attention = nn.MultiheadAttention(6, 3)
    convolutions = nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 3, groups=2), nn.Conv1d(6, 1, 3)
    model = nn.Sequential(tied, *convolutions, attention, head)
    model.pos_embed = nn.Parameter(head.weight.new_zeros(5, 6))
    model.extra = nn.Linear(6, 2)
    # Of the attention: the joint projection of queries, keys and values, and the output projection.
    assert shapes_of("torch", model) == [(6, 6), (6, 18), (6, 27)]


def test_hidden_matrices_of_a_keras_model():
    model_module("tensorflow")
    layers = keras.layers
    inputs = keras.Input((5,))
    tokens = layers.Embedding(9, 6)(inputs)
    tokens = layers.MultiHeadAttention(3, 4)(tokens, tokens)
    image = layers.Reshape((5, 6, 1))(tokens)
    image = layers.DepthwiseConv2D(3, depth_multiplier=2)(
        layers.Conv2D(4, 3, padding="same")(image)
    )
    image = layers.SeparableConv2D(2, 3)(image)
    outputs = layers.Dense(3)(layers.Flatten()(image))
    # Four projections of the attention; two convolutions.
    expected = [*[(6, 12)] * 4, (4, 9), (2, 8)]
    assert shapes_of("tensorflow", keras.Model(inputs, outputs)) == sorted(expected)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_cuda_steps_do_not_synchronize_with_the_device(name):
    """Fake tensors need no GPU; reading a value on the host, which synchronizes, raises."""
    with FakeTensorMode():
        shapes = [array.shape for array in initial_weights()]
        params = torch.nn.ParameterList(torch.empty(shape, device="cuda") for shape in shapes)
        optimizer = torch_optim.build_optimizer(name, params, learning_rate=1e-2, weight_decay=0.05)
        for _ in range(7):
            for parameter in params:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()


LIBRARIES = {"torch": "torch", "tensorflow": "keras"}
OWN_OPTIMIZER = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr, *, strength):
        super().__init__(params, {"lr": lr, "strength": strength})

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=group["lr"] * group["strength"])
"""


def train_one_step(framework: str, name: str, **changes: Any) -> None:
    spec = small_spec(framework, optimizer=f"{LIBRARIES[framework]}:{name}", **changes)
    trainer, dataset, world = new_trainer(spec)
    trainer.train(first_steps(spec, dataset, world, 1))
    trainer.close()


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("SGDD", {}, ErrorCode.UNKNOWN_NAME, ["SGDD", "'SGD'"]),
        ("nowhere_at_all.Lion", {}, ErrorCode.USER_CODE, ["nowhere_at_all"]),
        ("SGD", {"momentun": 0.9}, ErrorCode.UNKNOWN_KEY, ["optimizer_options.momentun"]),
        ("SGD", {"momentum": -0.5}, ErrorCode.INVALID_VALUE, ["SGD", "momentum=-0.5"]),
    ],
)
def test_invalid_optimizer_or_option_is_refused(framework, name, options, code, names):
    with refused(code, *names):
        train_one_step(framework, name, optimizer_options=options)


def test_weight_decay_for_a_class_without_it_is_refused():
    with refused(ErrorCode.INVALID_VALUE, "torch:SparseAdam", "weight_decay"):
        train_one_step("torch", "SparseAdam", weight_decay=0.1)


def test_optimizer_class_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "plain_steps.py").write_text(OWN_OPTIMIZER)
    monkeypatch.chdir(tmp_path)
    train_one_step("torch", "plain_steps.Plain", optimizer_options={"strength": 0.5})
    with refused(ErrorCode.MISSING, "optimizer_options.strength"):
        train_one_step("torch", "plain_steps.Plain")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_library_class_decays_no_biases(framework, weight_decay):
    """With gradients of 0, a step is the weight decay only; Keras's own default is 0.004."""
    name, ones = f"{LIBRARIES[framework]}:AdamW", [np.ones(n, np.float32) for n in ((3, 2), 2)]
    optimizer = CLASSES[framework](name, weights=ones, weight_decay=weight_decay)
    optimizer.step([np.zeros_like(array) for array in ones], 0.1)
    weight, bias = optimizer.weights()
    np.testing.assert_allclose(weight, 1 - 0.1 * weight_decay, rtol=1e-6)
    np.testing.assert_array_equal(bias, 1)
