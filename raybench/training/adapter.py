"""What a user's training loop needs from its framework and its process.

`LoopAdapter` has the functions of the framework. Settings of the process that a loop changes are
restored when its run ends. Signal handlers that a loop sets are not installed. Environment
variables contain the addresses of the other workers, for libraries and scripts that read them.
"""

import contextlib
import io
import json
import logging
import os
import platform
import random
import signal
import socket
import sys
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from raybench.spec.errors import ErrorCode, UserError
from raybench.training.base import find_part
from raybench.training.machine import Memory
from raybench.training.saved import foreign_state_error

logger = logging.getLogger(__name__)

Strategy = Literal["ddp", "fsdp"]


class LoopAdapter:
    """Framework functions that a user's loop needs; this class serves framework `python`.

    The modules torch/world.py and tensorflow/world.py each have a subclass `Adapter`.
    """

    def __init__(self, world: Any) -> None:
        self._world = world

    def begin(self, seed: int) -> None:
        """Seed the framework; called in the loop's thread, after Python and numpy were seeded."""

    def synchronize(self) -> None:
        """Wait until the devices have finished their work.

        Functions of JAX and PyTorch return before the device has finished. Only libraries that the
        loop has imported are synchronized.
        """
        if (jax := sys.modules.get("jax")) is not None:
            jax.effects_barrier()
            jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks: one row per rank, in rank order. Collective: all ranks
        must call it."""
        rows: list[list[float]] = self._world.gather(values)
        return rows

    def num_exchanges(self) -> int | None:
        """Return how many collectives the loop has begun on this rank; None if unknown."""
        return None

    def memory(self) -> Memory:
        """Return a `Memory` that measures this worker's peak memory from now on."""
        return Memory()

    def prepare(self, model: Any, strategy: Strategy) -> Any:
        """Prepare a model for training (see `Run.prepare`); this class returns it unchanged."""
        del strategy
        return model

    def end(self) -> None:
        """Release memory that the framework still holds after a run."""

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Convert a state that the user passes to `Run.save` to bytes.

        Returns:
            The kind of the state (a key of `saved.STATE_FILES`) and its bytes.

        Raises:
            UserError: The state contains objects other than plain data and arrays.
        """
        return "arrays", pack_arrays(state)

    def unpack(self, content: bytes) -> Any:
        """Return the state that was passed to `pack`."""
        return unpack_arrays(content)


PLAIN = (bool, int, float, str, type(None))
"""Types of plain data that `Run.save` saves unchanged, also inside lists and dicts."""


def pack_arrays(state: Any) -> bytes:
    """Convert plain data and arrays, nested in lists and dicts, to the bytes of an `.npz` file.

    The file contains no pickle.

    Raises:
        UserError: numpy cannot convert an object to an array of numbers or strings.
    """
    arrays: list[Any] = []

    def to_json(value: Any) -> Any:
        """Return the value with each array replaced by its index in `arrays`."""
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, dict):
            return {
                "keys": list(map(str, value)),
                "values": [to_json(item) for item in value.values()],
            }
        if isinstance(value, list | tuple):
            return [to_json(item) for item in value]
        arrays.append(np.asarray(value))
        if arrays[-1].dtype.hasobject:
            raise unsavable_error(value)
        return {"array": len(arrays) - 1}

    buffer, tree = io.BytesIO(), json.dumps(to_json(state))
    named = {str(index): item for index, item in enumerate(arrays)}
    np.savez(buffer, allow_pickle=False, tree=np.array(tree), **named)
    return buffer.getvalue()


def unpack_arrays(content: bytes) -> Any:
    """Return the data that were passed to `pack_arrays`.

    Tuples are returned as lists, and the keys of dicts as strings.

    Raises:
        UserError: `content` was not written by `pack_arrays`.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise foreign_state_error(error) from None

    def from_json(value: Any) -> Any:
        """Return the value with each index of an array replaced by the array."""
        if isinstance(value, list):
            return [from_json(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[str(value["array"])]
        return dict(zip(value["keys"], map(from_json, value["values"]), strict=True))

    return from_json(json.loads(str(arrays["tree"])))


def unsavable_error(value: object) -> UserError:
    """Return the error for an object that `Run.save` cannot save."""
    return UserError(
        f"run.save: a {type(value).__name__} cannot be saved; pass numbers, strings, arrays or "
        "tensors, lists and dicts of them, or bytes.",
        ErrorCode.USER_CODE,
    )


Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""Getter and setter of a process-wide setting."""


def attribute(owner: Any, name: str) -> Setting:
    """Return the getter and setter of an object's attribute."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _set_environment(values: dict[str, str]) -> None:
    """Replace all environment variables of this process by `values`."""
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


PROCESS_SETTINGS: tuple[Setting, ...] = (
    (os.getcwd, os.chdir),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
    (lambda: list(sys.argv), lambda words: sys.argv.__setitem__(slice(None), words)),
    attribute(sys, "stdout"),
    attribute(sys, "stderr"),
)
"""Settings of the process that a loop may change and that the next run in this process would
inherit. Random states are not included, because each run seeds them."""


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Context manager that restores the settings of the process and its frameworks on exit."""
    settings = list(PROCESS_SETTINGS)
    for framework in ("torch", "tensorflow"):
        if framework in sys.modules:
            settings += find_part(framework, "world").SETTINGS
    before = []
    for read, write in settings:
        # A library may lack a setting or be unable to read it.
        with contextlib.suppress(AttributeError, OSError, RuntimeError):
            before.append((write, read()))
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for write, value in before:
                write(value)


@contextlib.contextmanager
def signal_handlers_ignored() -> Iterator[None]:
    """Context manager that makes `signal.signal` warn, not raise, outside the main thread.

    Loops that are written for preemptible machines set signal handlers. Here, a loop runs in a
    thread that receives no signals, and raybench stops a loop at its next report. Enter the context
    before importing the loop's module, which may import `signal.signal` by name.
    """
    original = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return original(number, handler)
        logger.warning("signal.signal has no effect in a loop; use run.save (docs/models.md)")
        return signal.getsignal(number)

    signal.signal = set_handler  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = original


PORTS = 20_000, 30_000
"""Range of the ports that scripts get in MASTER_PORT; below the ephemeral ports, which systems
assign by themselves."""
LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
"""Environment variables that torchrun sets, and NODE_RANK, which other launchers set."""


def environment_of_rank(
    rank: int, device: str, gather: Callable[[list[float]], list[list[float]]]
) -> dict[str, str]:
    """Return the environment variables that torchrun would set for a rank.

    Collective: all ranks must call it.

    Args:
        rank: Rank of this worker.
        device: Device of this worker, such as `cpu` or `cuda:0`.
        gather: Function that returns the values of all ranks, one row per rank.

    Returns:
        Values of LAUNCHER_VARIABLES and of the variables of `environment_of_device`, by name.
    """
    host = zlib.crc32(platform.node().encode())
    rows = gather([float(host), float(_free_port() if rank == 0 else 0)])
    hosts = [row[0] for row in rows]
    local_rank = hosts[:rank].count(hosts[rank])
    if device.startswith("cuda:"):  # scripts choose their GPU by LOCAL_RANK
        local_rank = int(device.removeprefix("cuda:"))
    nodes = list(dict.fromkeys(hosts))
    node, port = str(nodes.index(hosts[rank])), str(round(rows[0][1]))
    # Libraries recognize torchrun by TORCHELASTIC_RUN_ID.
    values = {
        **{"RANK": str(rank), "WORLD_SIZE": str(len(rows)), "TORCHELASTIC_RUN_ID": port},
        **{"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank]))},
        **{"GROUP_RANK": node, "GROUP_WORLD_SIZE": str(len(nodes)), "NODE_RANK": node},
        # Ray has set the address of rank 0 for its own process group.
        **{"MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": port},
    }
    return values | environment_of_device(device)


def environment_of_device(device: str) -> dict[str, str]:
    """Return the environment variables that libraries need for a device.

    For a CPU this is ACCELERATE_USE_CPU, without which `accelerate` does not distribute training.
    """
    return {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}


def _free_port() -> int:
    """Return a random port in the range PORTS on which no process of this host listens."""
    while True:
        # `random.randrange` is seeded, and equal seeds would give equal ports.
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
