"""The same name, settings and gradients give the same weights in torch and in Keras."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from optim_reference import NAMES, TOLERANCE, gradients, initial_weights, rates

import raybench.backends.tensorflow  # noqa: F401  sets what must be set before tensorflow

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from raybench.backends.optimizers import READS  # noqa: E402
from raybench.backends.tensorflow import optim as keras_optim  # noqa: E402
from raybench.backends.torch import optim as torch_optim  # noqa: E402
from raybench.core.spec import OPTIMIZERS  # noqa: E402


def torch_weights(name, scale, **settings):
    params = [torch.nn.Parameter(torch.tensor(w)) for w in initial_weights()]
    named = [(str(i), p) for i, p in enumerate(params)]
    optimizer = torch_optim.build_optimizer(name, named, **settings)
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.tensor(grad)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def keras_weights(name, scale, **settings):
    weights = [keras.Variable(w) for w in initial_weights()]
    optimizer = keras_optim.build_optimizer(name, **settings)
    optimizer.build(weights)
    apply = tf.function(optimizer.apply)
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        optimizer.learning_rate.assign(rate)
        apply([tf.constant(g) for g in grads])
    return [w.numpy() for w in weights]


# At 1e-7 the gradients are as small as epsilon, and its place in the formula decides the step.
@pytest.mark.parametrize("scale", [1.0, 1e-7])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("name", NAMES)
def test_same_gradients_same_weights(name, weight_decay, scale):
    settings = {"learning_rate": 0.1, "weight_decay": weight_decay}
    ours = torch_weights(name, scale, **settings)
    theirs = keras_weights(name, scale, **settings)
    moved = max(np.abs(w - v).max() for w, v in zip(ours, initial_weights(), strict=True))
    assert moved > 1e-8
    for w, v in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(w, v, **TOLERANCE)


def test_same_names_and_defaults():
    assert list(torch_optim.OPTIMIZERS) == list(keras_optim.OPTIMIZERS) == NAMES
    assert list(READS) == list(OPTIMIZERS) == NAMES
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(build).parameters.values()}
        for build in (torch_optim.build_optimizer, keras_optim.build_optimizer)
    )
    del ours["model"]
    assert ours == theirs
