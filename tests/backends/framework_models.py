"""What tests of both frameworks' models share: the modules, and arrays in and out of them."""

import importlib
from types import ModuleType

import numpy as np
import pytest

MODULES = {
    "torch": "raybench.backends.torch.model",
    "tensorflow": "raybench.backends.tensorflow.model",
}


def backend(framework: str) -> ModuleType:
    module = MODULES[framework]
    importlib.import_module(module.rpartition(".")[0])  # sets what Keras reads at import
    pytest.importorskip(framework)
    return importlib.import_module(module)


def to_framework(array: np.ndarray, framework: str):
    if framework == "torch":
        import torch

        return torch.from_numpy(array)
    import tensorflow as tf

    return tf.constant(array)


def to_numpy(tensor) -> np.ndarray:
    return tensor.detach().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def logits(framework: str, model, inputs: np.ndarray) -> np.ndarray:
    prepared = backend(framework).prepare_inputs(to_framework(inputs, framework))
    if framework == "torch":
        return to_numpy(model.eval()(prepared))
    return to_numpy(model(prepared, training=False))
