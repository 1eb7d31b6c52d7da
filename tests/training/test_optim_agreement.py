"""The same name, settings and gradients give the same weights in torch and in Keras."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from optim_reference import NAMES, TOLERANCE, gradients, initial_weights, rates

import raybench.training.tensorflow  # noqa: F401  sets what must be set before tensorflow

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from raybench.spec.run import OPTIMIZERS  # noqa: E402
from raybench.training.optimizers import DEFAULTS  # noqa: E402
from raybench.training.tensorflow import optim as keras_optim  # noqa: E402
from raybench.training.torch import optim as torch_optim  # noqa: E402


def torch_weights(name, scale, **settings):
    params = [torch.nn.Parameter(torch.tensor(outputs_first(w))) for w in initial_weights()]
    named = [(str(i), p) for i, p in enumerate(params)]
    optimizer = torch_optim.build_optimizer(name, named, **settings)
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.tensor(outputs_first(grad))
        optimizer.step()
    return [outputs_last(p.detach().numpy()) for p in params]


def outputs_first(array):
    """A convolution of Keras as torch has it; the others are as they are to every optimizer."""
    return array.transpose(3, 2, 0, 1).copy() if array.ndim == 4 else array


def outputs_last(array):
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


def keras_weights(name, scale, **settings):
    weights = [keras.Variable(w) for w in initial_weights()]
    optimizer = keras_optim.build_optimizer(name, **settings)
    optimizer.build(weights)
    apply = tf.function(optimizer.apply)
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        optimizer.learning_rate.assign(rate)
        apply([tf.constant(g) for g in grads])
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("name", NAMES)
def test_same_gradients_same_weights(name):
    """Of gradients as small as epsilon, whose place in the formula decides the step then; others
    both frameworks' own tests hold to the papers."""
    settings = {"learning_rate": 0.1, "weight_decay": 0.05}
    ours = torch_weights(name, 1e-7, **settings)
    theirs = keras_weights(name, 1e-7, **settings)
    moved = max(np.abs(w - v).max() for w, v in zip(ours, initial_weights(), strict=True))
    assert moved > 1e-8
    for w, v in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(w, v, **TOLERANCE)


def test_same_names_and_defaults():
    assert list(torch_optim.OPTIMIZERS) == list(keras_optim.OPTIMIZERS) == list(OPTIMIZERS)
    assert list(DEFAULTS) == list(OPTIMIZERS)
    assert set(NAMES) == set(OPTIMIZERS) - {"adamw"}
    for optimizers in (torch_optim.OPTIMIZERS, keras_optim.OPTIMIZERS):
        assert optimizers["adamw"] is optimizers["adam"]
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(build).parameters.values()}
        for build in (torch_optim.build_optimizer, keras_optim.build_optimizer)
    )
    assert (ours.pop("model"), theirs.pop("model")) == (inspect.Parameter.empty, None)
    assert ours == theirs
