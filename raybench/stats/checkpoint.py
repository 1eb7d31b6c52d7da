"""State that a run is continued from: its position, beside model and optimizer.

A run's folder holds one folder for each checkpoint, named after the evaluation that follows it:

    000012/state.json     the run so far (RunState), and length and SHA-256 of the weights
    000012/weights.pt     what `Trainer.state` returned (`weights.npz` of TensorFlow)

It is written under a hidden name and renamed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from raybench.spec.documents import flat_keys, problem_of
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Whole

VERSION = 3
"""Version of the format; checkpoints of other versions are refused."""
IGNORED_KEYS = ("checkpoint_every_s", "record_steps")
"""Run-spec keys that change nothing of what a run computes."""


class DamagedCheckpointError(UserError):
    """A checkpoint (`source`) that is not whole; the one before it may be."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(
            f"{source} is damaged ({problem}); remove it, and the run goes on from the one before "
            "it or starts anew."
        )


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run after one of its evaluations: all of it that is not in `Trainer.state`.

    Order and schedule are functions of the samples seen, the rest follows from the curve.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: Whole
    spec_digest: str
    """Digest of the run spec (`spec_digest`), by which the state of another run is refused."""
    spec: dict[str, Any]
    """The run spec as plain data, to say in what another one differs."""
    evaluations: tuple[Evaluation, ...]
    """The curve so far, at least one point; the last one carries the ledger so far."""

    @classmethod
    def after(cls, spec: RunSpec, evaluations: Sequence[Evaluation]) -> "RunState":
        """Return the state of a run after the last of its evaluations so far."""
        if not evaluations or evaluations[-1].stop or evaluations[-1].failure:
            raise ValueError("a run is continued after an evaluation that did not end it")
        digest, curve = spec_digest(spec), tuple(evaluations)
        return cls(version=VERSION, spec_digest=digest, spec=spec.document(), evaluations=curve)

    @property
    def samples(self) -> int:
        """Training samples seen so far: the place in the sample order and in the schedule."""
        return self.evaluations[-1].samples

    @property
    def index(self) -> int:
        """Index of the next evaluation."""
        return self.evaluations[-1].index + 1

    @property
    def ledger(self) -> dict[str, float]:
        """Seconds of every worker phase and of `input` so far, max over ranks."""
        return self.evaluations[-1].ledger

    @property
    def train_s(self) -> float:
        """Seconds on the training clock when it was taken: the continued run goes on from them."""
        return self.evaluations[-1].train_s

    def check(self, spec: RunSpec, source: str) -> None:
        """Raise UserError if this is the state of a run of another spec."""
        if self.spec_digest == spec_digest(spec):
            return
        ours, theirs = flat_keys(spec.document()), flat_keys(self.spec)
        keys = [key for key in ours if ours[key] != theirs.get(key) and key not in IGNORED_KEYS]
        shown = ", ".join(f"{key} {theirs.get(key)} there, {ours[key]} here" for key in keys[:3])
        raise UserError(
            f"{source}: is of another run ({shown or 'another version of the same keys'}); remove "
            "it to start this run anew, or give this run a folder of its own."
        )


class Saved(BaseModel):
    """The content of a checkpoint's file of the state."""

    state: RunState
    weights_bytes: Whole
    weights_sha256: str


def spec_digest(spec: RunSpec) -> str:
    """SHA-256 of what a run computes; neither a key at its default changes it, nor the optimizer's
    own settings in numbers, nor naming accuracy or a baseline value."""
    names = ["direction", "is_share", "baseline_value"]
    names += ["metric"] if spec.objective.judged_by == ACCURACY else []
    objective = spec.objective.model_copy(update=dict.fromkeys(names))
    spec = spec.in_short().model_copy(update={"objective": objective})
    content = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(IGNORED_KEYS))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run is continued from."""

    state: RunState
    weights: Path
    """The file of what `Trainer.state` returned on rank 0: model, optimizer, random states of all
    ranks."""
    refused: tuple[str, ...] = ()
    """A sentence for each newer checkpoint that is damaged."""


KEPT = 2
"""Checkpoints of a run that are kept: if the last one is damaged, the one before serves."""
STATE_FILE = "state.json"
WEIGHTS_FILES = {"torch": "weights.pt", "tensorflow": "weights.npz", "python": "weights.bin"}


def write_checkpoint(folder: Path, state: RunState, place: Callable[[Path], object]) -> Path:
    """Write a checkpoint below the run's folder and return its own; keep the last two.

    `place` writes what `Trainer.state` returned to the path that it is given. One process writes at
    a time. OSError where the folder cannot be written.
    """
    name = f"{state.index:06d}"
    partial = folder / f".{name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights, content = partial / WEIGHTS_FILES[state.spec["framework"]], partial / STATE_FILE
    place(weights)
    document = {
        "state": asdict(state),
        "weights_bytes": weights.stat().st_size,
        "weights_sha256": _sha256(weights),
    }
    # NaN and infinity are values of metrics too; Python's JSON has words for them.
    content.write_text(json.dumps(document, indent=1))
    # Or a rename may outlive a power cut that its content does not.
    for path in (weights, content):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    target = folder / name
    # A run that was continued from an older one comes by here again.
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    _remove_others(folder, state.index)
    return target


def latest_checkpoint(folder: Path, spec: RunSpec) -> Checkpoint | None:
    """Return the newest whole checkpoint below a run's folder; None if it holds none.

    Raises UserError for one of another spec or version, and where all of them are damaged.
    """
    refused: list[str] = []
    for path in reversed(_found(folder)):
        try:
            return replace(read_checkpoint(path, spec), refused=tuple(refused))
        except DamagedCheckpointError as error:
            refused.append(str(error))
    if refused:
        raise UserError(refused[0])
    return None


def read_checkpoint(path: Path, spec: RunSpec) -> Checkpoint:
    """Return one checkpoint of this spec.

    Raises UserError if it is of another spec or version, DamagedCheckpointError if it is not whole.
    """
    source, name = f"{path}: the checkpoint", WEIGHTS_FILES[spec.framework]
    try:
        content = json.loads((path / STATE_FILE).read_bytes())
        version = content["state"]["version"]
        if isinstance(version, int) and version != VERSION:
            raise UserError(
                f"{source}: was written in format {version}, this version of raybench reads "
                f"{VERSION}; continue with the version that wrote it, or remove it to start anew."
            )
        saved = Saved.model_validate(content)
    except FileNotFoundError:
        raise DamagedCheckpointError(source, f"it has no {STATE_FILE}") from None
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        raise DamagedCheckpointError(source, f"'{key}' {problem_of(detail)}") from None
    except UserError:
        raise
    except (ValueError, RecursionError, LookupError, TypeError):  # no JSON, no text, no state
        raise DamagedCheckpointError(source, f"{STATE_FILE} holds no state of a run") from None
    state = saved.state
    found = [evaluation.index for evaluation in state.evaluations]
    if not found or found != list(range(len(found))):
        raise DamagedCheckpointError(source, "its evaluations are not 0, 1, 2, ...")
    if not {"train", "input"} <= state.ledger.keys():
        raise DamagedCheckpointError(source, "its ledger has no train seconds")
    state.check(spec, source)
    weights = path / name
    if not weights.is_file():
        raise DamagedCheckpointError(source, f"it has no {name}")
    if _sha256(weights) != saved.weights_sha256:
        there = f"{weights.stat().st_size} of {saved.weights_bytes} bytes"
        raise DamagedCheckpointError(source, f"{name} is not what was written: {there}")
    return Checkpoint(state=state, weights=weights)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _found(folder: Path) -> list[Path]:
    """Return the checkpoints' folders, the newest last."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name))


def _remove_others(folder: Path, index: int) -> None:
    """Keep the last ones up to `index`; those after it were damaged, or the run would be there."""
    kept = [path for path in _found(folder) if int(path.name) <= index][-KEPT:]
    for path in {*_found(folder), *folder.glob(".*.partial")}.difference(kept):
        shutil.rmtree(path, ignore_errors=True)
