"""The tools that `--log` knows, and whether the packages they need are there."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from raybench.core.errors import UserError

if TYPE_CHECKING:  # the command line knows the names before anything is imported that takes long
    from raybench.results.loggers.sink import Sink


@dataclass(frozen=True, kw_only=True)
class LoggerKind:
    """A tool that `--log` writes to."""

    title: str
    """The tool's own name."""
    module: str
    """Has `open_sink(folder, study)`; imported by the process that writes alone."""
    package: str
    """What it imports."""
    install: str
    """The command that installs it."""
    hint: str = ""
    """What to look at first where it fails: the beginning of a sentence."""


LOGGERS: dict[str, LoggerKind] = {
    "tensorboard": LoggerKind(
        title="TensorBoard",
        module="raybench.results.loggers.to_tensorboard",
        package="tensorboardX",
        install="pip install tensorboardX",
    ),
    "mlflow": LoggerKind(
        title="MLflow",
        module="raybench.results.loggers.to_mlflow",
        package="mlflow",
        install="pip install mlflow-skinny",
        hint="MLFLOW_TRACKING_URI says where it writes; ",
    ),
    "wandb": LoggerKind(
        title="Weights & Biases",
        module="raybench.results.loggers.to_wandb",
        package="wandb",
        install="pip install wandb",
        hint="with WANDB_MODE=offline it needs no account nor server; ",
    ),
}


def check_loggers(names: Sequence[str]) -> None:
    """Raise UserError for a tool whose package is missing; imports none of them."""
    for name in names:
        kind = LOGGERS[name]
        found = importlib.util.find_spec(kind.package)
        # A folder of that name, as the tools leave in the current one, has no origin.
        if found is None or found.origin is None:
            raise UserError(
                f"--log {name}: the package {kind.package} is not installed; install it with: "
                f"{kind.install}"
            )


def open_sink(name: str, folder: Path, study: str) -> "Sink":
    """Return what writes to a tool, for the study in `folder`."""
    module = importlib.import_module(LOGGERS[name].module)
    return cast("Sink", module.open_sink(folder, study))
