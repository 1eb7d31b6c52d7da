"""A Ray of our own: on this machine's own address alone, and behind a token.

Where Ray lacks what is changed here, it starts in its own way, and `warning` says what that means.
Also what `ray job submit` has given this process: its environment for workers, and what it holds.
"""

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psutil
import ray

from raybench.cluster.layout import DriverResources

CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable in which Ray hands a submitted job its configuration."""
SUBMISSION = "job_submission_id"
ACTOR = "_ray_internal_job_actor_{}"
ASK_S = 10.0


def job_environment() -> dict[str, str]:
    """Return the `env_vars` of the job's own `--runtime-env`; none outside a job.

    They are in the driver's environment too, as its own.
    """
    found = (_config().get("runtime_env") or {}).get("env_vars") or {}
    return {str(name): str(value) for name, value in found.items()}


INSTALLED = ("pip", "uv", "conda", "container", "image_uri", "py_modules")
"""Parts of a runtime environment that a node that lacks them has to install."""
SETUP_S = 600.0
"""Seconds that Ray gives a node to install them, where the job does not say."""


def environment_setup_s() -> float:
    """Return the seconds for which the job's runtime environment may be installed on a node before
    a worker starts there; 0 where it installs nothing."""
    environment = _config().get("runtime_env") or {}
    if not any(environment.get(part) for part in INSTALLED):
        return 0.0
    seconds = float((environment.get("config") or {}).get("setup_timeout_seconds", SETUP_S))
    return seconds if seconds > 0 else math.inf  # -1: Ray waits without end


def is_submitted_job() -> bool:
    """Whether `ray job submit` has started this process."""
    return bool((_config().get("metadata") or {}).get(SUBMISSION))


def driver_resources() -> DriverResources | None:
    """Return what `--entrypoint-num-cpus` and the like hold for this driver, in the actor below
    which it runs.

    None outside a job, where nothing is held, and where Ray does not tell: what is held then
    counts as others'.
    """
    submission = (_config().get("metadata") or {}).get(SUBMISSION)
    if not submission:
        return None
    try:
        from ray.util.state import list_actors

        named = [("name", "=", ACTOR.format(submission))]
        found = list_actors(filters=named, detail=True, timeout=ASK_S)
    except (ImportError, ray.exceptions.RayError, RuntimeError, OSError):
        return None
    held: Mapping[str, Any] = (getattr(found[0], "required_resources", None) or {}) if found else {}
    cpus, gpus = float(held.get("CPU", 0.0)), float(held.get("GPU", 0.0))
    if not cpus and not gpus:
        return None
    node = str(found[0].node_id)
    hosts = [one.get("NodeManagerHostname", "") for one in ray.nodes() if one["NodeID"] == node]
    return DriverResources(node, cpus, gpus, hosts[0] if hosts else node[:8])


def _config() -> Mapping[str, Any]:
    try:
        found = json.loads(os.environ.get(CONFIG) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


LOOPBACK = "127.0.0.1"
NICENESS = "RAY_worker_niceness"
"""Ray adds its value to a node's own niceness for the workers there."""
PROGRAMS = ("/gcs_server", "/raylet")
"""Endings of the commands of a node's store and scheduler."""


@contextlib.contextmanager
def meanwhile(environment: Mapping[str, str]) -> Iterator[None]:
    """Let what starts meanwhile have these variables, and nothing that this process starts later:
    a node of several hosts that inherits them would have its workers meet on its own address."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Have a token for one session, whatever the environment says of tokens.

    Ray's own would be written to the home folder, which a container may not be able to write,
    and `RAY_AUTH_MODE=disabled` in the environment would leave it out.
    """
    try:
        with meanwhile({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            _reload_token()
            yield
    finally:
        _reload_token()


def _reload_token() -> None:
    """Let Ray read the environment again: it keeps the mode and the token that it has once read.

    A Ray without tokens, or with another cache, is left to read it by itself.
    """
    from ray import _raylet

    config: Any = getattr(_raylet, "Config", None)
    loader: Any = getattr(_raylet, "AuthenticationTokenLoader", None)
    if hasattr(config, "initialize") and hasattr(loader, "reset_cache"):
        config.initialize("")
        loader.instance().reset_cache()


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    """Let a module of Ray's have another `name` meanwhile; nothing for a Ray that has none."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def on_loopback() -> AbstractContextManager[None]:
    """Let a Ray that is started meanwhile take 127.0.0.1 as its node's address.

    It does so by itself where it thinks that it cannot be part of a cluster (on other systems than
    Linux), which this constant says.
    """
    from ray._private import ray_constants

    return _replaced(ray_constants, "ENABLE_RAY_CLUSTER", value=False)


def own_signals() -> AbstractContextManager[None]:
    """Keep the handlers of signals as they are while Ray starts: it would take SIGTERM."""
    from ray._private import utils

    return _replaced(utils, "set_sigterm_handler", lambda handler: None)


def own_niceness() -> AbstractContextManager[None]:
    """Let a Ray that is started meanwhile give its workers this process's niceness.

    By itself it adds 15 to it, and any ordinary process starves them. A value that the
    environment has stays; a Ray without the setting does not read it.
    """
    return meanwhile({NICENESS: os.environ.get(NICENESS, "0")})


def niceness_warning(of_workers: int) -> str | None:
    """Return a sentence where workers give way to processes such as this one."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if of_workers <= own:
        return None
    return (
        f"this cluster's workers run at niceness {of_workers} (this process: {own}): another "
        f"process on their cores slows them down many times; {NICENESS}=0 before `ray start` on "
        f"each node gives them the default one."
    )


def warning() -> str | None:
    """Return a sentence where the local Ray can be reached from other hosts."""
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if addresses <= {LOOPBACK}:
        return None
    return (
        f"this Ray listens on {', '.join(sorted(addresses))}, not on {LOOPBACK} alone "
        f"(Ray {ray.__version__} chooses its address otherwise); only its token protects it."
    )


def own_processes() -> list[int]:
    """Return the ids of the store and the scheduler of a Ray that this process has started.

    None where Ray names its programs otherwise: that it is gone is then seen later, when it does
    not answer.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if "".join(child.cmdline()[:1]).endswith(PROGRAMS):
                found.append(child.pid)
    return found


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended; one that only waits to be reaped has."""
    try:
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
