"""Weights of a file put into a Keras model. Mirrors torch/named/state_dict.py."""

import warnings
from pathlib import Path

import keras

from raybench.backends.tensorflow.named.model import NamedModel
from raybench.backends.tensorflow.named.network import load_arrays
from raybench.core.errors import UserError
from raybench.workloads.base import Workload
from raybench.workloads.named.tensor_files import read_tensors
from raybench.workloads.named.workload import NamedWorkload

OURS = ".weights.h5"
TORCH = (".pth", ".pt", ".safetensors")


def load_file(model: keras.Model, workload: Workload, path: Path) -> list[str]:
    """Give the model a file's weights; return what was drawn anew, in sentences.

    `.weights.h5` as Keras saves them; `.h5` of keras.applications without top; `.pth`, `.pt` and
    `.safetensors` of torch for the networks that both frameworks have.
    """
    if path.suffix in TORCH:
        if not isinstance(workload, NamedWorkload) or workload.library != "both":
            raise UserError(
                f"weights {path}: are torch's, which only the networks of both frameworks take in "
                f"tensorflow; give a {OURS} file, or set framework: torch."
            )
        return load_arrays(model, read_tensors(path), str(path))
    try:
        if path.name.endswith(OURS):
            return _load_saved(model, path)
        if path.suffix == ".h5" and isinstance(model, NamedModel):
            model.backbone.load_weights(path)
            return [f"weights {path}: the head is drawn anew for these data."]
    except (ValueError, OSError, KeyError) as error:
        raise UserError(
            f"weights {path}: are no weights of workload {workload.name}; name the model that "
            "they were trained with.",
            details=str(error),
        ) from None
    raise UserError(
        f"weights {path}: its name must end in {OURS} (as Keras saves weights), .h5 (of "
        f"keras.applications, without top) or {', '.join(TORCH)}."
    )


def _load_saved(model: keras.Model, path: Path) -> list[str]:
    """Load a `.weights.h5` file; the head alone may differ."""
    if not isinstance(model, NamedModel):
        model.load_weights(path)
        return []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        before = [variable.numpy() for variable in model.backbone.variables]
        model.load_weights(path, skip_mismatch=True)
    skipped = [str(one.message) for one in found if "could not be loaded" in str(one.message)]
    if not skipped:
        return []
    same = [
        (variable.numpy() == old).all()
        for variable, old in zip(model.backbone.variables, before, strict=True)
    ]
    if all(same):
        raise ValueError(skipped[0])
    return [f"weights {path}: the head is drawn anew for these data."]
