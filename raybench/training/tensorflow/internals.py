"""All uses of private parts of TensorFlow and Keras, why, and what would happen without them.

| private part                   | why                                   | without                 |
|--------------------------------|---------------------------------------|-------------------------|
| `keras.Layer._flatten_layers`  | nothing public lists the layers       | no alternative          |
|                                | inside a layer of the user            |                         |
| `keras.Layer._seed_generators` | nothing public lists the states of    | workers draw the same   |
|                                | random layers                         | random numbers          |
| `seed_generator.global_..`     | random layers without a seed use this | workers draw the same   |
|                                | global state                          | random numbers          |
| `gradient_registry._registry`  | every traced sum over workers leaves  | memory grows with every |
|                                | its graph there (about 6 MB per run)  | run                     |
| `Optimizer._all_reduce_sum_..` | Keras's optimizers sum gradients over | with several workers,   |
|                                | workers, which the loop has done      | steps are too large     |

tests/training/test_internals.py fails if the libraries change these parts.
"""

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any

import keras

logger = logging.getLogger(__name__)


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and all its layers, each once, in a stable order."""
    return model._flatten_layers()


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the random states that a model uses, each once: those of the generators in its layers,
    and Keras's global state."""
    generators = [generator for layer in all_layers(model) for generator in layer._seed_generators]
    shared = importlib.import_module("keras.src.random.seed_generator").global_seed_generator()
    return list(
        {id(generator.state): generator.state for generator in (*generators, shared)}.values()
    )


@contextlib.contextmanager
def unregister_new_gradient_functions() -> Iterator[None]:
    """Context manager that unregisters, on exit, the gradient functions registered inside.

    `ReplicaContext.all_reduce` registers a gradient function for each trace in a registry of the
    whole process, which would leak memory. These functions are not needed, because no gradient is
    computed through the sum over workers.
    """
    registry = _gradient_registry()
    before = set(registry)
    yield
    for name in set(registry) - before:
        del registry[name]


def _gradient_registry() -> dict[str, Any]:
    """Return TensorFlow's registry of gradient functions; empty if it is not found."""
    try:
        ops = importlib.import_module("tensorflow.python.framework.ops")
        registry = ops.gradient_registry._registry
    except (ImportError, AttributeError) as error:
        logger.warning("TensorFlow keeps gradients of earlier runs in memory: %s", error)
        return {}
    return registry if isinstance(registry, dict) else {}


def disable_gradient_sum(optimizer: keras.optimizers.Optimizer) -> None:
    """Keep a Keras optimizer from summing gradients across workers; the loop already does."""
    optimizer._all_reduce_sum_gradients = lambda pairs: list(pairs)
