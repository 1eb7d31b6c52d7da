"""Session: the chosen cluster, variables of a job, and files that every host needs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import session
from raybench.cluster.layout import Node
from raybench.cluster.ray_internals import local_ray
from raybench.spec.errors import ErrorCode
from tests.refusals import refused


@pytest.mark.parametrize(
    ("address", "job", "expected"),
    [(None, "", None), ("local", "s", None), ("auto", "", "auto"), (None, "s", "10.0.0.1:6379")],
)
def test_address_comes_from_the_user_or_a_submitted_job(address, job, expected, monkeypatch):
    """A RAY_ADDRESS left over in a shell is ignored."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv(local_ray.CONFIG, json.dumps({"metadata": {"job_submission_id": job}}))
    assert session.chosen_address(address) == expected


def test_variables_of_the_job_are_not_set_again(monkeypatch):
    """Ray refuses a name that both the job's runtime environment and ray.init set."""
    for name in session.WORKER_ENVIRONMENT:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # as Ray has set it from the job's
    job_environment = {"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "0", "MINE": "1"}}
    monkeypatch.setenv(local_ray.CONFIG, json.dumps({"runtime_env": job_environment}))
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **arguments: calls.append(arguments))
    session._connect("auto")
    variables = calls[0]["runtime_env"]["env_vars"]
    assert set(variables) == set(session.WORKER_ENVIRONMENT) - {"TF_CPP_MIN_LOG_LEVEL"}
    assert session.os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


def test_host_without_the_users_files_is_refused(tmp_path, monkeypatch):
    """The files of each simulated host are in a folder of their own."""

    def on_node(node: str, task: Callable[[list[str]], list[str]]) -> Any:
        def run_on_node(names: list[str]) -> list[str]:
            originals = {str(tmp_path / node) + name: name for name in names}
            return [originals[name] for name in task(list(originals))]

        return SimpleNamespace(remote=run_on_node)

    monkeypatch.setattr(session, "on_node", on_node)
    monkeypatch.setattr(session.ray, "get", lambda answer, timeout: answer)
    nodes = [Node(4, 0, id="id-a", name="a"), Node(4, 0, id="id-b", name="b")]
    for node in nodes:
        (tmp_path / node.id).mkdir()
        (tmp_path / node.id / "loop.py").touch()
    session.check_files_there(nodes, [Path("/loop.py")])
    (tmp_path / "id-b" / "loop.py").unlink()
    with refused(ErrorCode.NOT_FOUND, "host b", "/loop.py", "--working-dir"):
        session.check_files_there(nodes, [Path("/loop.py")])
    session.check_files_there(nodes, [])
