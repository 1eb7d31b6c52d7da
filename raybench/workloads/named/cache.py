"""Where the libraries keep trained weights on this machine; nothing is fetched from the net."""

import os
from pathlib import Path

from raybench.core.errors import UserError

TORCH_URL = "https://download.pytorch.org/models/"
"""Where torchvision's files come from."""


def torch_folder() -> Path:
    """Return the folder of torch's hub (`TORCH_HOME`)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    return Path(home).expanduser() / "hub" / "checkpoints"


def keras_folder() -> Path:
    """Return Keras's folder of trained weights (`KERAS_HOME`)."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "models"


def first_there(workload: str, folder: Path, files: tuple[str, ...], url: str = "") -> Path:
    """Return the first of the files that is there; UserError, with its place, if none is."""
    for file in files:
        if (folder / file).is_file():
            return folder / file
    source = f", from {url}{files[0]}" if url else ""
    raise missing(workload, f"{folder / files[0]}{source}")


def missing(workload: str, what: str) -> UserError:
    """Return the error of weights that this machine has not got; `what` is the file."""
    return UserError(
        f"weights cached: the trained weights of {workload} are not on this machine, and nothing "
        f"is fetched from the net; put them at {what}, or set weights to a file of yours or none."
    )
