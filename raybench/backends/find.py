"""From a framework's name to its backend; the framework is imported here, at the last moment."""

import importlib
from typing import Any, Protocol

from raybench.backends.base import Trainer, World
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset
from raybench.workloads.base import Workload

PACKAGES = {"torch": "raybench.backends.torch", "tensorflow": "raybench.backends.tensorflow"}


class BuildTrainer(Protocol):
    """Signature of a backend's Trainer class."""

    def __call__(
        self, spec: RunSpec, workload: Workload, dataset: Dataset, world: World
    ) -> Trainer:
        """Build model, optimizer and device copies of the data."""
        ...


class Join(Protocol):
    """Signature of a backend's `join`."""

    def __call__(
        self,
        *,
        rank: int,
        num_workers: int,
        device: str,
        num_threads: int,
        num_replicas: int = 1,
        num_gpus: int = 0,
    ) -> World:
        """Return this process's World, with thread pools of `num_threads`.

        `num_workers` are processes; `num_replicas` of one that trains several, on a device each.
        `num_gpus` are what this process was given, and all that it uses; UserError where the
        framework sees fewer.
        """
        ...


class Backend(Protocol):
    """What a backend's loop module holds."""

    Trainer: BuildTrainer
    join: Join


def find_backend(framework: str) -> Backend:
    """Import a backend's loop; a framework that is not installed raises UserError."""
    module: Any = find_part(framework, "loop")
    return module  # type: ignore[no-any-return]


def find_part(framework: str, name: str) -> Any:
    """Import a module of a backend, such as `model`; UserError as `find_backend`."""
    try:
        return importlib.import_module(f"{PACKAGES[framework]}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("raybench"):
            raise
        raise UserError(
            f"framework {framework}: the package '{error.name}' is not installed; "
            f"run: pip install 'raybench[{framework}]'."
        ) from None
