"""Keras optimizers against the papers, eagerly and in tf.function; on several workers it is
test_worker_equality.py that holds them to the papers."""

from __future__ import annotations

import numpy as np
import pytest
from optim_reference import (
    CHANGED,
    NAMES,
    TOLERANCE,
    Reference,
    gradients,
    initial_weights,
    rates,
)

import raybench.training.tensorflow  # noqa: F401  sets what must be set before tensorflow

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from raybench.training.tensorflow.optim import build_optimizer, kernels  # noqa: E402


def variables():
    return [keras.Variable(w) for w in initial_weights()]


def build(name, weights, **settings):
    optimizer = build_optimizer(name, learning_rate=1e-2, **settings)
    optimizer.build(weights)
    return optimizer


def run(apply, optimizer, name, *, first=0, last=40):
    for i, (grads, rate) in enumerate(zip(gradients(), rates(name), strict=True)):
        if first <= i < last:
            optimizer.learning_rate.assign(rate)
            apply([tf.constant(g) for g in grads])


def paper(name, **settings):
    return Reference(name, initial_weights(), outputs_last=True, **settings)


def assert_follows(weights, reference, name, **tolerance):
    for grads, rate in zip(gradients(), rates(name), strict=True):
        expected = reference.step(grads, rate)
    for w, e in zip(weights, expected, strict=True):
        np.testing.assert_allclose(w.numpy(), e, **(tolerance or TOLERANCE))


WITHOUT_KERNELS = ["lamb", "lion", "schedule_free_adamw"]
FORMS = [(name, True) for name in NAMES]
FORMS += [(name, False) for name in NAMES if name not in WITHOUT_KERNELS]


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize(("name", "fused"), FORMS)
def test_follows_the_paper(name, weight_decay, fused, monkeypatch):
    if not fused:
        monkeypatch.setattr(kernels, "FUSED_DTYPES", ())
    weights = variables()
    optimizer = build(name, weights, weight_decay=weight_decay)
    run(tf.function(optimizer.apply), optimizer, name)
    assert_follows(weights, paper(name, weight_decay=weight_decay), name)


@pytest.mark.parametrize("name", NAMES)
def test_scalars_are_computed_once_a_step(name):
    """As the loop calls it: equal updates, and no float64 operation more for more variables."""
    weights = variables()
    optimizer = build(name, weights, weight_decay=0.05)
    take = tf.function(lambda grads: optimizer.apply_exchanged(grads, weights))
    run(take, optimizer, name)
    assert_follows(weights, paper(name, weight_decay=0.05), name)
    assert num_float64_operations(name, 2) == num_float64_operations(name, 12)


def num_float64_operations(name, number):
    weights = [keras.Variable(np.ones((3, 2), "float32")) for _ in range(number)]
    optimizer = build(name, weights, weight_decay=0.05)
    take = tf.function(lambda grads: optimizer.apply_exchanged(grads, weights))
    graph = take.get_concrete_function([tf.ones((3, 2))] * number).graph
    return sum(any(one.dtype == tf.float64 for one in op.outputs) for op in graph.get_operations())


@pytest.mark.parametrize(("name", "settings"), CHANGED)
def test_settings_reach_the_update(name, settings):
    weights, given = variables(), dict(settings)
    excluded = given.pop("exclude_1d", True)
    optimizer = build(name, weights, weight_decay=0.05, **given)
    optimizer.exclude_1d = excluded
    run(tf.function(optimizer.apply), optimizer, name)
    assert_follows(weights, paper(name, weight_decay=0.05, **settings), name)


@pytest.mark.parametrize("fused", [True, False])
def test_bias_correction_is_exact(fused, monkeypatch):
    """Adam's first step is the sign; in float32, 1 - 0.999 would make it 6e-6 too long."""
    if not fused:
        monkeypatch.setattr(kernels, "FUSED_DTYPES", ())
    weight = keras.Variable(np.zeros(3, "float32"))
    optimizer = build("adam", [weight])
    optimizer.learning_rate.assign(1.0)
    optimizer.apply([tf.constant([1.0, -2.0, 3.0])])
    np.testing.assert_allclose(weight.numpy(), [-1.0, 1.0, -1.0], rtol=3e-7)


@pytest.mark.parametrize("name", NAMES)
def test_variables_without_gradient_are_skipped(name):
    weights = variables()
    optimizer = build(name, weights, weight_decay=0.05)
    grads = [tf.ones_like(w) if i == 1 else None for i, w in enumerate(initial_weights())]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(grads)
    for i, (w, initial) in enumerate(zip(weights, initial_weights(), strict=True)):
        assert np.array_equal(w.numpy(), initial) == (i != 1)


@pytest.mark.parametrize("name", NAMES)
def test_sparse_gradients(name):
    """An embedding's gradient comes as tf.IndexedSlices."""
    dense, sparse = (keras.Variable(np.ones((4, 3), "float32")) for _ in range(2))
    rows = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 2]), tf.constant([4, 3]))
    for variable, gradient in ((dense, tf.convert_to_tensor(rows)), (sparse, rows)):
        build(name, [variable], weight_decay=0.05).apply([gradient])
    np.testing.assert_array_equal(dense.numpy(), sparse.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_saved_state_continues_the_run(name):
    whole, half = variables(), variables()
    optimizer = build(name, whole, weight_decay=0.05)
    run(optimizer.apply, optimizer, name, last=9)
    first, second = (build(name, half, weight_decay=0.05) for _ in range(2))
    run(first.apply, first, name, last=7)
    state: dict[str, np.ndarray] = {}
    first.save_own_variables(state)
    second.load_own_variables(state)
    run(second.apply, second, name, first=7, last=9)
    for w, v in zip(whole, half, strict=True):
        np.testing.assert_array_equal(w.numpy(), v.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_stays_near(name):
    weights = [keras.Variable(w, dtype="bfloat16") for w in initial_weights()]
    optimizer = build(name, weights, weight_decay=0.05)
    run(tf.function(optimizer.apply), optimizer, name)
    reference = paper(name, weight_decay=0.05)
    for grads, rate in zip(gradients(), rates(name), strict=True):
        expected = reference.step(grads, rate)
    for w, e in zip(weights, expected, strict=True):
        np.testing.assert_allclose(np.asarray(w.numpy(), np.float32), e, rtol=0.1, atol=0.1)


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown optimizer 'adamx'; choose one of adam, radam"):
        build_optimizer("adamx", learning_rate=0.1)
