"""Models that `raybench train` saved, loaded back."""

from pathlib import Path
from typing import Any

from raybench.backends.find import find_part
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec
from raybench.workloads.find import load_workload_dataset

MODEL_FILES = {"torch": "model.pt", "tensorflow": "model.weights.h5"}
"""Where a run's weights are saved, in the framework's own format."""


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
