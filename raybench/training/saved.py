"""Saved parts of a run: checkpoints, from which the run can be resumed, and the trained model.

All ranks save at the same evaluations.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybench.data.dataset import Array
from raybench.data.inputs import each, parts
from raybench.models.find import find_workload
from raybench.models.model_data import ModelData
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import DistributedContext, find_part

MODEL_FILES = {"torch": "model.pt", "tensorflow": "model.weights.h5"}
"""Name of the file of a run's weights, by framework."""
DATA_FILE = "model.json"
"""Name of the file that describes the data to the model (`ModelData`)."""


class Trained:
    """A saved model and a description of its data: `load_model(...).raybench`."""

    def __init__(self, model: Any, data: ModelData, framework: str) -> None:
        self.data = data
        """Class names, tokenization, and scaling of labels and columns."""
        self._model, self._predict = model, find_part(framework, "model").predict

    def outputs(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return the outputs for samples that `ModelData.inputs` accepts: float32, (N, ...)."""
        inputs = self.data.inputs(samples)
        outputs = []
        for start in range(0, max(1, len(parts(inputs)[0])), batch_size):
            rows = itemgetter(slice(start, start + batch_size))
            outputs.append(self._predict(self._model, each(inputs, rows)))
        return np.concatenate(outputs)

    def predict(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return predictions for new samples: `ModelData.answers` of the outputs."""
        return self.data.answers(self.outputs(samples, batch_size=batch_size))


def load_model(folder: Path, spec: RunSpec) -> Any:
    """Build the model of a run and load its weights.

    Args:
        folder: Folder of the run.
        spec: The run spec.

    Returns:
        An `nn.Module` or `keras.Model` that takes the same inputs as the workload's model. Its
        attribute `raybench`, a `Trained`, takes samples in the form of the dataset.

    Raises:
        UserError: No weights were saved, or the run has a user training loop.
    """
    if is_own_loop(spec.workload):
        raise UserError(
            f"{folder}: {spec.workload} builds its model itself; the state that it passed to "
            "run.save is in state.pt (torch.load), state.npz or state.bin there.",
            ErrorCode.UNSUPPORTED,
        )
    path = folder / MODEL_FILES[spec.framework]
    for file in (path, folder / DATA_FILE):
        if not file.is_file():
            raise UserError(
                f"{folder}: there is no {file.name}; raybench.train saves one.", ErrorCode.NOT_FOUND
            )
    data = ModelData.read(folder / DATA_FILE)
    workload = find_workload(spec.workload, data.shape, spec.model)
    module = find_part(spec.framework, "model")
    model = module.build_model(workload, spec.seed)
    module.load_weights(model, path.read_bytes())
    model.raybench = Trained(model, data, spec.framework)
    return model


def check_same_model(saved: Mapping[str, object], built: Mapping[str, object]) -> None:
    """Raise UserError if saved shapes, by name, differ from the built model's."""
    for name in (*saved, *built):
        if saved.get(name) != built.get(name):
            raise UserError(
                f"the checkpoint holds another model ({name}: {saved.get(name, 'none')} there, "
                f"{built.get(name, 'none')} here); was the workload's code changed? Remove the "
                "checkpoint to start the run again.",
                ErrorCode.INVALID_WEIGHTS,
            )


def foreign_state_error(error: Exception) -> UserError:
    """Return the error for a state that raybench has not written, such as a pickle with code."""
    return UserError(
        "the checkpoint does not hold what raybench writes, tensors and numbers "
        f"({type(error).__name__}), and no code in it was run; remove the checkpoint to start "
        "the run again.",
        ErrorCode.INVALID_WEIGHTS,
        details=str(error),
    )


class Snapshot(NamedTuple):
    """A checkpoint in the memory of rank 0."""

    state: RunState
    weights: bytes
    """Result of `BaseTrainer.state`: weights, optimizer and random states."""


class Checkpoints:
    """Counts a run's time since its last checkpoint, on each rank, and saves its state when due."""

    def __init__(
        self, spec: RunSpec, world: DistributedContext, *, resume: RunState | None = None
    ) -> None:
        self._spec, self._world = spec, world
        self._curve = list(resume.evaluations) if resume else []
        self._saved_s = _work(resume.ledger) if resume else 0.0

    def after(
        self, evaluation: Evaluation, state: Callable[[], bytes | None], ledger: Ledger
    ) -> Snapshot | None:
        """Save the run after an evaluation if it continues and `checkpoint_every_s` have passed.

        Collective: call it after each evaluation on all ranks; only rank 0 returns a snapshot. If
        saving was due, the ledger is left in phase `checkpoint`. `state` is the method of the
        trainer; None as its result means that there is nothing to save.
        """
        self._curve.append(evaluation)
        every, now = self._spec.checkpoint_every_s, _work(evaluation.ledger)
        is_over = evaluation.stop is not None or evaluation.failure is not None
        if is_over or not every or now - self._saved_s < every:
            return None
        if not self._spec.exchange_gradients:  # each worker has its own weights
            return None
        ledger.enter("checkpoint")
        weights = state()
        if weights is None:
            return None
        self._saved_s = now
        if self._world.rank:
            return None
        # Includes the seconds of saving, which have been spent also if the run is resumed.
        spent = evaluation.ledger | {"checkpoint": ledger.seconds("checkpoint")}
        curve = [*self._curve[:-1], replace(evaluation, ledger=spent)]
        return Snapshot(RunState.after(self._spec, curve), weights)


def _work(ledger: Mapping[str, float]) -> float:
    """Return the seconds that a restart would repeat; `ledger` has the seconds by phase, of all
    ranks."""
    return ledger["train"] + ledger["eval"]
