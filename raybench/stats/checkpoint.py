"""Checkpoints, from which an interrupted run is resumed.

The folder of a run contains one folder per checkpoint, named after the index of the next
evaluation:

    000012/state.json     state of the run (RunState), size and SHA-256 of the weights file
    000012/weights.pt     `Trainer.state` (other names in WEIGHTS_FILES)

A checkpoint is written to a hidden folder that is then renamed, so a visible folder is complete.
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
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import ACCURACY
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Whole

VERSION = 4
"""Version of the checkpoint format; checkpoints of other versions are rejected."""
IGNORED_KEYS = ("checkpoint_every_s", "record_steps")
"""Run-spec keys that do not change the result of a run."""


class DamagedCheckpointError(UserError):
    """Raised for an incomplete or corrupted checkpoint; the previous checkpoint may be valid."""

    def __init__(self, source: str, problem: str) -> None:
        """Create the error.

        Args:
            source: Name of the checkpoint.
            problem: What is wrong with it, as a clause.
        """
        super().__init__(
            f"{source} is damaged ({problem}); remove it, and the run resumes from the previous "
            "checkpoint or starts again.",
            ErrorCode.INVALID_WEIGHTS,
        )


@dataclass(frozen=True, kw_only=True)
class RunState:
    """State of a run after an evaluation, except `Trainer.state` (weights, optimizer, random
    states).

    Together with `Trainer.state`, it suffices to resume the run: sample order and learning-rate
    schedule depend only on the number of samples seen, and the stopping rule only on the learning
    curve.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: Whole
    spec_digest: str
    """Result of `spec_digest` for the run spec; a run with another digest rejects the state."""
    spec: dict[str, Any]
    """Run spec as plain data, so that an error message can list differences from another run
    spec."""
    evaluations: tuple[Evaluation, ...]
    """Evaluations so far, at least one; the last one contains the ledger up to this state."""

    @classmethod
    def after(cls, spec: RunSpec, evaluations: Sequence[Evaluation]) -> "RunState":
        """Return the state of a run after the last of the given evaluations."""
        if not evaluations or evaluations[-1].stop or evaluations[-1].failure:
            raise ValueError("a run resumes after an evaluation that did not end it")
        digest, curve = spec_digest(spec), tuple(evaluations)
        return cls(version=VERSION, spec_digest=digest, spec=spec.document(), evaluations=curve)

    @property
    def samples(self) -> int:
        """Number of training samples seen so far, which determines the position in the sample order
        and in the learning-rate schedule."""
        return self.evaluations[-1].samples

    @property
    def index(self) -> int:
        """Index of the next evaluation."""
        return self.evaluations[-1].index + 1

    @property
    def ledger(self) -> dict[str, float]:
        """Seconds spent in every worker phase and in `input` so far, maximum over ranks."""
        return self.evaluations[-1].ledger

    @property
    def train_s(self) -> float:
        """Training seconds so far."""
        return self.evaluations[-1].train_s

    def check(self, spec: RunSpec, source: str) -> None:
        """Raise UserError if the state belongs to another run spec."""
        if self.spec_digest == spec_digest(spec):
            return
        ours, theirs = flat_keys(spec.document()), flat_keys(self.spec)
        keys = [key for key in ours if ours[key] != theirs.get(key) and key not in IGNORED_KEYS]
        differences = ", ".join(
            f"{key} {theirs.get(key)} there, {ours[key]} here" for key in keys[:3]
        )
        raise UserError(
            f"{source}: belongs to another run "
            f"({differences or 'another version of the same keys'}); remove it to start this "
            "run again, or use another folder.",
            ErrorCode.INVALID_WEIGHTS,
        )


class Saved(BaseModel):
    """Content of the file STATE_FILE of a checkpoint."""

    state: RunState
    weights_bytes: Whole
    weights_sha256: str


def spec_digest(spec: RunSpec) -> str:
    """Return the SHA-256 digest of all settings that determine the result of a run.

    The digest is the same whether a key is left out or set to its default, and whether the metric
    is left out or set to `accuracy`. It does not depend on the baseline value.
    """
    names = ["direction", "is_share", "baseline_value"]
    names += ["metric"] if spec.objective.judged_by == ACCURACY else []
    objective = spec.objective.model_copy(update=dict.fromkeys(names))
    spec = spec.without_defaults().model_copy(update={"objective": objective})
    content = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(IGNORED_KEYS))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete and verified checkpoint."""

    state: RunState
    weights: Path
    """File with the `Trainer.state` of rank 0: model, optimizer, and the random states of all
    ranks."""
    refused: tuple[str, ...] = ()
    """One error message for each newer checkpoint, all of which are damaged."""


KEPT = 2
"""Number of checkpoints kept per run: the latest, and the previous one in case it is damaged."""
STATE_FILE = "state.json"
WEIGHTS_FILES = {"torch": "weights.pt", "tensorflow": "weights.npz", "python": "weights.bin"}


def write_checkpoint(
    folder: Path, state: RunState, write_weights: Callable[[Path], object]
) -> Path:
    """Write a checkpoint into the folder of a run, and delete all but the last KEPT checkpoints.

    Args:
        folder: Folder of the run; only one process may write to it at a time.
        state: State of the run.
        write_weights: Function that writes `Trainer.state` to a path.

    Returns:
        The folder of the checkpoint.

    Raises:
        OSError: The folder cannot be written.
    """
    name = f"{state.index:06d}"
    partial = folder / f".{name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights, content = partial / WEIGHTS_FILES[state.spec["framework"]], partial / STATE_FILE
    write_weights(weights)
    document = {
        "state": asdict(state),
        "weights_bytes": weights.stat().st_size,
        "weights_sha256": _sha256(weights),
    }
    # Metrics may be NaN or infinite, which Python's JSON supports.
    content.write_text(json.dumps(document, indent=1))
    # Without fsync the rename may survive a power failure while the content does not.
    for path in (weights, content):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    target = folder / name
    # The folder exists if the run was resumed from an older checkpoint because this one is damaged.
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    _remove_others(folder, state.index)
    return target


def latest_checkpoint(folder: Path, spec: RunSpec) -> Checkpoint | None:
    """Return the newest valid checkpoint of a run; None if there is no checkpoint.

    Args:
        folder: Folder of the run.
        spec: Run spec of the run.

    Raises:
        UserError: The newest undamaged checkpoint belongs to another run spec or format version, or
            all checkpoints are damaged.
    """
    refused: list[str] = []
    for path in reversed(_checkpoint_folders(folder)):
        try:
            return replace(read_checkpoint(path, spec), refused=tuple(refused))
        except DamagedCheckpointError as error:
            refused.append(str(error))
    if refused:
        raise UserError(refused[0], ErrorCode.INVALID_WEIGHTS)
    return None


def read_checkpoint(path: Path, spec: RunSpec) -> Checkpoint:
    """Read and verify the checkpoint at `path`.

    Raises:
        UserError: The checkpoint belongs to another run spec or format version.
        DamagedCheckpointError: The checkpoint is incomplete or corrupted.
    """
    source, name = f"{path}: the checkpoint", WEIGHTS_FILES[spec.framework]
    try:
        content = json.loads((path / STATE_FILE).read_bytes())
        version = content["state"]["version"]
    except FileNotFoundError:
        raise DamagedCheckpointError(source, f"it has no {STATE_FILE}") from None
    except (ValueError, RecursionError, LookupError, TypeError):  # not JSON, not text, no state
        raise DamagedCheckpointError(source, f"{STATE_FILE} contains no state of a run") from None
    if isinstance(version, int) and version != VERSION:
        raise UserError(
            f"{source}: has format {version}, but this version of raybench reads {VERSION}; use "
            "the version that wrote it, or remove it to start again.",
            ErrorCode.INVALID_WEIGHTS,
        )
    try:
        saved = Saved.model_validate(content)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        raise DamagedCheckpointError(source, f"'{key}' {problem_of(detail)}") from None
    state = saved.state
    indices = [evaluation.index for evaluation in state.evaluations]
    if not indices or indices != list(range(len(indices))):
        raise DamagedCheckpointError(source, "its evaluations are not 0, 1, 2, ...")
    if not {"train", "input"} <= state.ledger.keys():
        raise DamagedCheckpointError(source, "its ledger has no train seconds")
    state.check(spec, source)
    weights = path / name
    if not weights.is_file():
        raise DamagedCheckpointError(source, f"it has no {name}")
    if _sha256(weights) != saved.weights_sha256:
        sizes = f"{weights.stat().st_size} of {saved.weights_bytes} bytes"
        raise DamagedCheckpointError(source, f"{name} differs from what was written: {sizes}")
    return Checkpoint(state=state, weights=weights)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name))


def _remove_others(folder: Path, index: int) -> None:
    """Delete incomplete folders, and all checkpoints except the last KEPT up to `index`.

    Checkpoints newer than `index` are damaged.
    """
    kept = [path for path in _checkpoint_folders(folder) if int(path.name) <= index][-KEPT:]
    for path in {*_checkpoint_folders(folder), *folder.glob(".*.partial")}.difference(kept):
        shutil.rmtree(path, ignore_errors=True)
