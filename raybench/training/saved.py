"""Saved parts of a run: its state, from which it can be continued, and the trained model, loaded
back; what is saved checked against the model.

When a run is saved is decided by all ranks alike.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from raybench.data.dataset import Array
from raybench.data.inputs import each, parts
from raybench.models.find import find_workload
from raybench.models.model_data import ModelData
from raybench.spec.errors import UserError
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import DistributedContext, find_part

MODEL_FILES = {"torch": "model.pt", "tensorflow": "model.weights.h5"}
"""File of a run's weights, in the framework's own format."""
DATA_FILE = "model.json"
"""Facts of the data that are needed to use them (`ModelData`)."""


class RefusedStateError(UserError):
    """A checkpoint is whole, and of this spec, but not of the model that is built now."""


class Trained:
    """A saved model with what it must know of its data: `load_model(...).raybench`."""

    def __init__(self, model: Any, data: ModelData, framework: str) -> None:
        self.data = data
        """Names of classes, tokens, scaling of labels and columns."""
        self._model, self._predict = model, find_part(framework, "model").predict

    def outputs(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return its outputs for samples as `ModelData.inputs` takes them, (N, ...) float32."""
        inputs = self.data.inputs(samples)
        found = []
        for start in range(0, max(1, len(parts(inputs)[0])), batch_size):
            rows = itemgetter(slice(start, start + batch_size))
            found.append(self._predict(self._model, each(inputs, rows)))
        return np.concatenate(found)

    def predict(self, samples: Any, *, batch_size: int = 256) -> Array:
        """Return what the model says of new samples, as `ModelData.answers`."""
        return self.data.answers(self.outputs(samples, batch_size=batch_size))


def load_model(folder: Path, spec: RunSpec) -> Any:
    """Build the model of a run and load its weights: an `nn.Module` or a `keras.Model`.

    It takes images as the workload's model does; its attribute `raybench`, a `Trained`, takes
    samples as the user has them. UserError where no weights were saved.
    """
    if is_own_loop(spec.workload):
        raise UserError(
            f"{folder}: {spec.workload} builds its model itself; what it gave to run.save is in "
            "state.pt (torch.load), state.npz or state.bin there."
        )
    path = folder / MODEL_FILES[spec.framework]
    for file in (path, folder / DATA_FILE):
        if not file.is_file():
            raise UserError(f"{folder}: holds no {file.name}; raybench.train saves one.")
    data = ModelData.read(folder / DATA_FILE)
    workload = find_workload(spec.workload, data.shape, spec.model)
    module = find_part(spec.framework, "model")
    model = module.build_model(workload, spec.seed)
    module.load_weights(model, path.read_bytes())
    model.raybench = Trained(model, data, spec.framework)
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


class HasState(Protocol):
    """The trained object: a `Trainer`, or a loop of the user's own."""

    def state(self) -> bytes | None:
        """Return what it goes on from, on rank 0; None where it has kept nothing."""
        ...


class Snapshot(NamedTuple):
    """A checkpoint in the memory of the worker that has taken it."""

    state: RunState
    weights: bytes
    """Result of `Trainer.state`."""


class Checkpoints:
    """Follows one run's evaluations on each rank and saves its state when enough is at stake."""

    def __init__(
        self, spec: RunSpec, world: DistributedContext, *, resume: RunState | None = None
    ) -> None:
        self._spec, self._world = spec, world
        self._curve = list(resume.evaluations) if resume else []
        self._saved_s = _work(resume.ledger) if resume else 0.0

    def after(self, evaluation: Evaluation, trainer: HasState, ledger: Ledger) -> Snapshot | None:
        """Save the run after an evaluation, if it goes on and `checkpoint_every_s` have passed.

        To be called after each evaluation on every rank: the answer of rank 0 alone is not None.
        The seconds are those of the phase `checkpoint`, in which the ledger is left.
        """
        self._curve.append(evaluation)
        every, now = self._spec.checkpoint_every_s, _work(evaluation.ledger)
        is_over = evaluation.stop is not None or evaluation.failure is not None
        if is_over or not every or now - self._saved_s < every:
            return None
        return self.now(trainer, ledger)

    def now(self, trainer: HasState, ledger: Ledger) -> Snapshot | None:
        """Save the run after its last evaluation, as in `after`: never of workers that exchange no
        gradients, as each has weights of its own."""
        if not self._spec.checkpoint_every_s or not self._spec.exchange_gradients:
            return None
        ledger.enter("checkpoint")
        weights = trainer.state()
        if weights is None:
            return None
        self._saved_s = _work(self._curve[-1].ledger)
        if self._world.rank:
            return None
        # With the seconds of saving it: they are spent, whoever goes on from here.
        last = self._curve[-1]
        spent = last.ledger | {"checkpoint": ledger.seconds("checkpoint")}
        curve = [*self._curve[:-1], replace(last, ledger=spent)]
        return Snapshot(RunState.after(self._spec, curve), weights)


def _work(ledger: Mapping[str, float]) -> float:
    """Seconds that would have to be spent again: the same on all ranks, in a merged ledger."""
    return ledger["train"] + ledger["eval"]
