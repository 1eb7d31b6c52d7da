"""Checkpoints, from which a run can be resumed, and trained models.

Saving a checkpoint is collective: all ranks do it after the same evaluations.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybench.data.dataset import Array, each, parts
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
"""Name of the file with the weights of a run, keyed by framework."""
STATE_FILES = {"bytes": "state.bin", "torch": "state.pt", "arrays": "state.npz"}
"""Name of the file to which `raybench train` writes the last state that a user's loop has saved,
keyed by kind of state."""
DATA_FILE = "model.json"
"""Name of the file that describes the model's data (`ModelData`)."""


class Trained:
    """A trained model together with the description of its data; `load_model` attaches it to the
    model, as the attribute `raybench`."""

    def __init__(self, model: Any, data: ModelData, framework: str) -> None:
        self.data = data
        """Description of the data: class names, tokenization, scaling of labels and columns."""
        self._model, self._predict = model, find_part(framework, "model").predict

    def outputs(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return the outputs of the model for N samples, shape (N, ...), float32.

        Args:
            samples: Samples in a form that `ModelData.inputs` accepts.
            batch_size: Number of samples per forward pass.
        """
        inputs = self.data.inputs(samples)
        outputs = []
        for start in range(0, max(1, len(parts(inputs)[0])), batch_size):
            rows = itemgetter(slice(start, start + batch_size))
            outputs.append(self._predict(self._model, each(inputs, rows)))
        return np.concatenate(outputs)

    def predict(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return a prediction for each sample, such as its class (see `ModelData.answers`).
        Arguments: see `outputs`."""
        return self.data.answers(self.outputs(samples, batch_size=batch_size))


def load_model(folder: Path, spec: RunSpec) -> Any:
    """Build the model of a run and load its weights.

    Args:
        folder: Folder of the run.
        spec: The run spec.

    Returns:
        An `nn.Module` or `keras.Model` that takes the same inputs as the workload's model. Its
        attribute `raybench` is a `Trained`, which takes samples in the dataset's format.

    Raises:
        UserError: No weights were saved, or the run has a user training loop.
    """
    if is_own_loop(spec.workload):
        files = [name for name in STATE_FILES.values() if (folder / name).is_file()]
        state = "raybench has no copy of it"
        if files:
            state = f"the state that it passed to run.save is in {files[0]}"
        raise UserError(
            f"{folder}: {spec.workload} builds and saves its model itself; {state}.",
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
    """Raise UserError if the shapes of a saved model differ from those of the model that was built.

    Args:
        saved: Shapes of the saved tensors, by name.
        built: Shapes of the tensors of the model that was built, by name.
    """
    for name in (*saved, *built):
        if saved.get(name) != built.get(name):
            raise UserError(
                f"the checkpoint is of another model ({name} has the shape "
                f"{saved.get(name, 'none')} in the checkpoint and {built.get(name, 'none')} in the "
                "model); was the workload's code changed? Remove the checkpoint to start the run "
                "again.",
                ErrorCode.INVALID_WEIGHTS,
            )


def foreign_state_error(error: Exception) -> UserError:
    """Return the error for a checkpoint not written by raybench, such as a pickle with code."""
    return UserError(
        f"the checkpoint was not written by raybench ({type(error).__name__}; no code in it was "
        "run); remove the checkpoint to start the run again.",
        ErrorCode.INVALID_WEIGHTS,
        details=str(error),
    )


class Snapshot(NamedTuple):
    """A checkpoint in the memory of rank 0."""

    state: RunState
    weights: bytes
    """Weights, optimizer and random states, as returned by `BaseTrainer.state`."""


class Checkpoints:
    """Saves a run's state after an evaluation, if enough time has passed since its last checkpoint.

    There is one such object on each rank.
    """

    def __init__(
        self, spec: RunSpec, world: DistributedContext, *, resume: RunState | None = None
    ) -> None:
        """Create an object for a run; `resume` is the state of a resumed run."""
        self._spec, self._world = spec, world
        self._curve = list(resume.evaluations) if resume else []
        """All evaluations of the run so far."""
        self._saved_s = _repeatable_seconds(resume.ledger) if resume else 0.0
        """Value of `_repeatable_seconds` at the last checkpoint; 0 before the first one."""

    def after(
        self, evaluation: Evaluation, state: Callable[[], bytes | None], ledger: Ledger
    ) -> Snapshot | None:
        """Save the run's state after an evaluation, if the run continues and `checkpoint_every_s`
        seconds of training and evaluation have passed since the last checkpoint.

        Collective: all ranks must call it after each evaluation. Nothing is saved if the workers do
        not exchange gradients, because each of them then has its own weights.

        Args:
            evaluation: The evaluation.
            state: Method `state` of the trainer, which returns None if there is nothing to save.
            ledger: Seconds of this worker by phase. After saving, its phase is `checkpoint`.

        Returns:
            The checkpoint on rank 0. Other ranks return None, and so does rank 0 if nothing was
            saved.
        """
        self._curve.append(evaluation)
        every, now = self._spec.checkpoint_every_s, _repeatable_seconds(evaluation.ledger)
        is_over = evaluation.stop is not None or evaluation.failure is not None
        if is_over or not every or now - self._saved_s < every:
            return None
        if not self._spec.exchange_gradients:
            return None
        ledger.enter("checkpoint")
        weights = state()
        if weights is None:
            return None
        self._saved_s = now
        if self._world.rank:
            return None
        # Include the seconds of saving: a run that is resumed from here has spent them, too.
        spent = evaluation.ledger | {"checkpoint": ledger.seconds("checkpoint")}
        curve = [*self._curve[:-1], replace(evaluation, ledger=spent)]
        return Snapshot(RunState.after(self._spec, curve), weights)


def _repeatable_seconds(ledger: Mapping[str, float]) -> float:
    """Return the seconds that would be repeated if the run were restarted from its beginning.

    `ledger` contains the seconds by phase, merged over all ranks.
    """
    return ledger["train"] + ledger["eval"]
