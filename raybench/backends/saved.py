"""Models that `raybench train` saved, loaded back; what is saved checked against the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raybench.backends.find import find_part
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec
from raybench.workloads.find import load_workload_dataset

MODEL_FILES = {"torch": "model.pt", "tensorflow": "model.weights.h5"}
"""Where a run's weights are saved, in the framework's own format."""


class RefusedStateError(UserError):
    """A checkpoint is whole, and of this spec, but not of the model that is built now."""


def load_model(folder: Path, spec: RunSpec) -> Any:
    """Build the model of a run and load its weights: an `nn.Module` or a `keras.Model`.

    It takes images as the workload's model does; `prepare_inputs` of the backend makes them
    from a dataset's arrays. UserError where no weights were saved.
    """
    path = folder / MODEL_FILES[spec.framework]
    if not path.is_file():
        raise UserError(f"{folder}: holds no {path.name}; raybench.train saves one.")
    workload, _ = load_workload_dataset(spec.workload, spec.dataset)
    module = find_part(spec.framework, "model")
    model = module.build_model(workload, spec.seed)
    module.load_weights(model, path.read_bytes())
    return model


def check_same_model(saved: Mapping[str, object], built: Mapping[str, object]) -> None:
    """Raise RefusedStateError if saved shapes, by name, are not those of the model built now."""
    for name in (*saved, *built):
        if saved.get(name) != built.get(name):
            raise RefusedStateError(
                f"the checkpoint holds another model ({name}: {saved.get(name, 'none')} there, "
                f"{built.get(name, 'none')} here); was the workload's code changed? Remove the "
                "checkpoint to start the run anew."
            )


def not_ours(error: Exception) -> RefusedStateError:
    """Return the error of a state that no `Trainer.state` has written, such as one with code."""
    kind = type(error).__name__
    return RefusedStateError(
        f"the checkpoint's weights are not what raybench writes, tensors and numbers ({kind}), and "
        "nothing of them was run; remove the checkpoint to start the run anew.",
        details=str(error),
    )
