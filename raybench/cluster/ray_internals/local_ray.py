"""A local Ray started by raybench, reachable only at the loopback address and with a token.

If the installed Ray lacks a part that is changed here, Ray starts as it does by default; if other
hosts can then reach it, `warning` returns a sentence. This module also reads the configuration of a
job started by `ray job submit`.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psutil
import ray

CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable with the configuration (JSON) of a job started by `ray job submit`."""
SUBMISSION = "job_submission_id"
"""Key of the job's id in the metadata of that configuration."""


def job_environment() -> dict[str, str]:
    """Return the variables (`env_vars`) of the job's `--runtime-env`; empty outside a job."""
    variables = (_config().get("runtime_env") or {}).get("env_vars") or {}
    return {str(name): str(value) for name, value in variables.items()}


def is_submitted_job() -> bool:
    """Whether `ray job submit` has started this process."""
    return bool((_config().get("metadata") or {}).get(SUBMISSION))


def _config() -> Mapping[str, Any]:
    """Return the configuration of the job; empty outside a job."""
    try:
        config = json.loads(os.environ.get(CONFIG) or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


LOOPBACK = "127.0.0.1"
NICENESS = "RAY_worker_niceness"
"""Environment variable with the number that Ray adds to the niceness of its workers."""
PROGRAMS = ("/gcs_server", "/raylet")
"""Ends of the paths of Ray's programs on a node: the store of the cluster's state, and the
scheduler."""


@contextlib.contextmanager
def environment_set(environment: Mapping[str, str]) -> Iterator[None]:
    """Context manager that sets environment variables for the processes that are started within it.

    On exit, the earlier values are restored. Otherwise workers of a cluster to which this process
    connects later would communicate over the loopback interface.
    """
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
def session_token() -> Iterator[None]:
    """Context manager that lets Ray use a new token, regardless of the token settings in the
    environment.

    By default, Ray would write a token to the home folder, which may be read-only in a container,
    or use no token if RAY_AUTH_MODE is `disabled`.
    """
    try:
        with environment_set({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            _reload_token()
            yield
    finally:
        _reload_token()


def _reload_token() -> None:
    """Reset Ray's cache of the token and the token mode, if there is one; Ray then reads both from
    the environment again."""
    from ray import _raylet

    config: Any = getattr(_raylet, "Config", None)
    loader: Any = getattr(_raylet, "AuthenticationTokenLoader", None)
    if hasattr(config, "initialize") and hasattr(loader, "reset_cache"):
        config.initialize("")
        loader.instance().reset_cache()


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    """Context manager that replaces an attribute of one of Ray's modules, if it exists."""
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
    """Context manager that makes a Ray that is started within it use 127.0.0.1 as its address.

    Ray itself uses this address where it cannot be part of a cluster: on systems other than Linux,
    it sets the replaced constant to False.
    """
    from ray._private import ray_constants

    return _replaced(ray_constants, "ENABLE_RAY_CLUSTER", value=False)


def keep_signal_handler() -> AbstractContextManager[None]:
    """Context manager that keeps the handler of SIGTERM, which Ray would replace when it starts."""
    from ray._private import utils

    return _replaced(utils, "set_sigterm_handler", lambda handler: None)


def same_niceness() -> AbstractContextManager[None]:
    """Context manager that gives the workers of a Ray that is started within it the niceness
    (priority) of this process.

    By default, Ray adds 15, so that any ordinary process would slow the workers down. If the user
    has set RAY_worker_niceness, that value is kept.
    """
    return environment_set({NICENESS: os.environ.get(NICENESS, "0")})


def warning() -> str | None:
    """Return a warning if other hosts can reach the local Ray; otherwise None."""
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if addresses <= {LOOPBACK}:
        return None
    return (
        f"this Ray listens on {', '.join(sorted(addresses))}, not only on {LOOPBACK} (Ray "
        f"{ray.__version__} chooses its address differently); only its token protects it."
    )


def ray_processes() -> list[int]:
    """Return the process ids of Ray's store and scheduler, which this process has started.

    Empty if the programs have unexpected names; the end of Ray is then noticed later.
    """
    processes = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            if "".join(child.cmdline()[:1]).endswith(PROGRAMS):
                processes.append(child.pid)
    return processes


def is_running(process: int) -> bool:
    """Whether the process with this id is running; False for a zombie."""
    try:
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
