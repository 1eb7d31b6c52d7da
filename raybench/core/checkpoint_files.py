"""A run's checkpoints as files, each there whole or not at all.

A run's folder holds one folder for each checkpoint, named after the evaluation that follows it:

    000012/state.json     the run so far (RunState), and length and SHA-256 of the weights
    000012/weights.pt     what `Trainer.state` returned (`weights.npz` of TensorFlow)

It is written under a hidden name and renamed.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

from raybench.core.checkpoint import Checkpoint, DamagedCheckpointError, RunState, damaged
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec

KEPT = 2
"""Checkpoints of a run that are kept: if the last one is damaged, the one before serves."""
STATE_FILE = "state.json"
WEIGHTS_FILES = {"torch": "weights.pt", "tensorflow": "weights.npz"}


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below the run's folder and return its own; keep the last two.

    One process writes at a time. OSError where the folder cannot be written.
    """
    state = checkpoint.state
    name = f"{state.index:06d}"
    partial = folder / f".{name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write(partial / WEIGHTS_FILES[state.spec["framework"]], checkpoint.weights)
    content = {
        "state": state.document(),
        "weights_bytes": len(checkpoint.weights),
        "weights_sha256": hashlib.sha256(checkpoint.weights).hexdigest(),
    }
    # NaN and infinity are values of metrics too; Python's JSON has words for them.
    _write(partial / STATE_FILE, json.dumps(content, indent=1).encode())
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
            found = read_checkpoint(path, spec)
        except DamagedCheckpointError as error:
            refused.append(str(error))
            continue
        return Checkpoint(state=found.state, weights=found.weights, refused=tuple(refused))
    if refused:
        raise UserError(refused[0])
    return None


def read_checkpoint(path: Path, spec: RunSpec) -> Checkpoint:
    """Return one checkpoint of this spec.

    Raises UserError if it is of another spec or version, DamagedCheckpointError if it is not whole.
    """
    source = f"{path}: the checkpoint"
    try:
        content = json.loads((path / STATE_FILE).read_bytes())
    except FileNotFoundError:
        raise damaged(source, f"it has no {STATE_FILE}") from None
    except (ValueError, RecursionError):  # of what is no JSON, and of what is no text
        raise damaged(source, f"{STATE_FILE} is not JSON") from None
    if not isinstance(content, dict):
        raise damaged(source, f"{STATE_FILE} holds no keys")
    state = RunState.from_document(content.get("state"), source)
    state.check(spec, source)
    name = WEIGHTS_FILES[spec.framework]
    try:
        weights = (path / name).read_bytes()
    except FileNotFoundError:
        raise damaged(source, f"it has no {name}") from None
    if hashlib.sha256(weights).hexdigest() != content.get("weights_sha256"):
        wanted = content.get("weights_bytes")
        raise damaged(source, f"{name} is not what was written: {len(weights)} of {wanted} bytes")
    return Checkpoint(state=state, weights=weights)


def _found(folder: Path) -> list[Path]:
    """Return the checkpoints' folders, the newest last."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name))


def _remove_others(folder: Path, index: int) -> None:
    """Keep the last ones up to `index`; those after it were damaged, or the run would be there."""
    kept = [path for path in _found(folder) if int(path.name) <= index][-KEPT:]
    stale = [*_found(folder), *folder.glob(".*.partial")]
    for path in stale:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # or a rename may outlive a power cut that its content does not
