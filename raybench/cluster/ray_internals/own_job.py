"""What `ray job submit` has given this process: its environment for workers, and what it holds."""

import json
import os
from collections.abc import Mapping
from typing import Any

import ray

from raybench.cluster.layout import Reservation

CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable in which Ray hands a submitted job its configuration."""
SUBMISSION = "job_submission_id"
ACTOR = "_ray_internal_job_actor_{}"
"""Name of the actor below which a submitted job's driver runs; it holds what the driver needs."""
ASK_S = 10.0


def job_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the `env_vars` of the job's own `--runtime-env`; none outside a job.

    They are in the driver's environment too, as its own.
    """
    found = (_config(environment).get("runtime_env") or {}).get("env_vars") or {}
    return {str(name): str(value) for name, value in found.items()}


def is_submitted_job(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `ray job submit` has started this process."""
    return bool((_config(environment).get("metadata") or {}).get(SUBMISSION))


def driver_reservation() -> Reservation | None:
    """Return what `--entrypoint-num-cpus` and the like hold for this driver.

    None outside a job, where nothing is held, and where Ray does not tell: what is held then
    counts as others'.
    """
    submission = (_config(os.environ).get("metadata") or {}).get(SUBMISSION)
    if not submission:
        return None
    try:
        from ray.util.state import list_actors

        name = ACTOR.format(submission)
        found = list_actors(filters=[("name", "=", name)], detail=True, timeout=ASK_S)
    except (ImportError, ray.exceptions.RayError, RuntimeError, OSError):
        return None
    held: Mapping[str, Any] = (getattr(found[0], "required_resources", None) or {}) if found else {}
    cpus, gpus = float(held.get("CPU", 0.0)), float(held.get("GPU", 0.0))
    if not cpus and not gpus:
        return None
    node = str(found[0].node_id)
    hosts = [one.get("NodeManagerHostname", "") for one in ray.nodes() if one["NodeID"] == node]
    return Reservation(node, cpus, gpus, hosts[0] if hosts else node[:8])


def _config(environment: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = json.loads(environment.get(CONFIG) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
