"""Every private thing of TensorFlow and Keras that is used here: why, and the way without it.

| private                        | why                                   | without it              |
|--------------------------------|---------------------------------------|-------------------------|
| `keras.Layer._flatten_layers`  | no public name lists the layers that  | there is none           |
|                                | a user's own layer holds inside       |                         |
| `keras.Layer._seed_generators` | no public name lists the states of    | workers draw the same   |
|                                | random layers                         | random numbers          |
| `seed_generator.global_..`     | layers that draw without a seed of    | the same                |
|                                | their own draw from it                |                         |
| `gradient_registry._registry`  | every traced sum over workers leaves  | it stays there: memory  |
|                                | its graph there (about 6 MB a run)    | grows with every run    |
| `Optimizer._all_reduce_sum_..` | Keras's optimizers sum gradients over | several workers' steps  |
|                                | the workers, which the loop has done  | are as many times large |

tests/training/test_internals.py says when the libraries have changed them.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import keras


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and every layer below it, each once, in an order that stays."""
    return model._flatten_layers()


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the states that a model draws its random numbers from, each once: those of its own
    generators, whatever layer and attribute holds them, and Keras's global one."""
    own = [one for layer in all_layers(model) for one in layer._seed_generators]
    shared = importlib.import_module("keras.src.random.seed_generator").global_seed_generator()
    return list({id(one.state): one.state for one in (*own, shared)}.values())


@contextlib.contextmanager
def no_new_gradients() -> Iterator[None]:
    """Forget the gradient functions that are registered inside.

    `ReplicaContext.all_reduce`, which sums gradients over the workers, registers one under a new
    name in every trace, in a registry that lasts as long as the process. Nobody differentiates
    an update.
    """
    registry = _gradient_registry()
    before = set(registry)
    yield
    for name in set(registry) - before:
        del registry[name]


def _gradient_registry() -> dict[str, Any]:
    """Return TensorFlow's own dict of them; an empty one of ours where it is not as expected."""
    try:
        ops = importlib.import_module("tensorflow.python.framework.ops")
        registry = ops.gradient_registry._registry
    except (ImportError, AttributeError):
        return {}
    return registry if isinstance(registry, dict) else {}


def take_exchanged(optimizer: keras.optimizers.Optimizer) -> None:
    """Let Keras's own optimizer take gradients as they are: the loop has summed them."""
    optimizer._all_reduce_sum_gradients = lambda pairs: list(pairs)
