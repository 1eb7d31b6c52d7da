"""Canaries of what is asked of a cluster: its autoscaler, the driver's node and job."""

import inspect
import io
import json
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import session
from raybench.cluster.layout import DriverResources
from raybench.cluster.ray_internals import local_ray
from raybench.cluster.ray_internals import nodes as nodes_internals
from raybench.cluster.session import Head


def reports(monkeypatch: pytest.MonkeyPatch, get: Callable[[str], bytes | None]) -> None:
    """Let the first autoscaler's report be what `get` returns."""
    from ray.autoscaler.v2 import utils
    from ray.experimental import internal_kv

    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: False)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", get)


class TestAutoscaler:
    """Whether nodes can be had; stock path: they cannot."""

    def test_ray_still_reports_and_takes_requests_so(self) -> None:
        from ray._private import ray_constants
        from ray.autoscaler._private.util import format_readonly_node_type
        from ray.autoscaler.sdk import request_resources
        from ray.autoscaler.v2 import sdk, utils
        from ray.experimental import internal_kv

        why = "then a cluster with an autoscaler is taken for one without"
        assert ray_constants.DEBUG_AUTOSCALING_STATUS == nodes_internals.STATUS, why
        assert format_readonly_node_type("ff").startswith(nodes_internals.UNMANAGED), why
        assert all(hasattr(sdk, name) for name in ("get_cluster_status",)), why
        assert hasattr(utils, "is_autoscaler_v2"), why
        assert hasattr(internal_kv, "_internal_kv_get"), why
        assert "bundles" in inspect.signature(request_resources).parameters

    @pytest.mark.parametrize(
        ("report", "grows"),
        [
            (None, False),
            ({}, False),
            ({"autoscaler_report": {"active_nodes": {"node_0af3": 1, "node_17": 1}}}, False),
            ({"autoscaler_report": {"active_nodes": {"ray.head.default": 1}}}, True),
            ({"autoscaler_report": {"active_nodes": {}, "pending_launches": {"gpu": 2}}}, True),
        ],
    )
    def test_a_report(self, report: Any, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        status = None if report is None else json.dumps(report).encode()
        monkeypatch.setattr(nodes_internals, "FIRST_REPORT_S", 0.0)
        reports(monkeypatch, lambda key: status)
        assert nodes_internals.has_autoscaler() is grows

    @pytest.mark.parametrize(("kind", "grows"), [("worker", True), ("node_0a", False), ("", False)])
    def test_a_status_of_the_second_one(
        self, kind: str, grows: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.autoscaler.v2 import sdk, utils

        nodes = [SimpleNamespace(ray_node_type_name=kind)]
        status = SimpleNamespace(active_nodes=[], idle_nodes=nodes)
        context = SimpleNamespace(gcs_address="here:1")
        monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: True)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
        assert nodes_internals.has_autoscaler() is grows

    def test_a_head_that_has_just_started_reports_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = {"autoscaler_report": {"active_nodes": {"ray.head.default": 1}}}
        said = iter([None, b"{}", json.dumps(report).encode()])
        monkeypatch.setattr(nodes_internals.time, "sleep", lambda seconds: None)
        reports(monkeypatch, lambda key: next(said))
        assert nodes_internals.has_autoscaler()


class TestDriverNode:
    """Tune's own processes beside the driver; stock path: a trace of a CPU anywhere."""

    def test_ray_still_names_its_nodes_so(self) -> None:
        from ray._common.constants import HEAD_NODE_RESOURCE_NAME, NODE_ID_PREFIX

        assert NODE_ID_PREFIX == nodes_internals.ADDRESS, "then they take 0.001 CPU of any host"
        assert HEAD_NODE_RESOURCE_NAME == nodes_internals.HEAD


class TestOwnJob:
    """What the driver holds; stock path: it counts as others'."""

    def test_ray_still_says_so(self) -> None:
        from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
        from ray.dashboard.modules.job import common
        from ray.util.state.common import ActorState

        why = "then a group that needs the driver's CPU waits for it without end"
        assert RAY_JOB_CONFIG_JSON_ENV_VAR == local_ray.CONFIG, why
        assert common.JOB_ACTOR_NAME_TEMPLATE.format(job_id="x") == local_ray.ACTOR.format("x"), why
        assert common.JOB_ID_METADATA_KEY == local_ray.SUBMISSION, why
        assert {"required_resources", "node_id"} <= set(ActorState.__dataclass_fields__), why

    @pytest.mark.parametrize(
        ("resources", "expected"),
        [({"CPU": 1.0}, DriverResources("id-a", 1, 0, "a")), ({}, None), (None, None)],
    )
    def test_its_actor_is_asked(
        self, resources: Any, expected: DriverResources | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.util import state

        monkeypatch.setenv(local_ray.CONFIG, json.dumps({"metadata": {"job_submission_id": "s"}}))
        nodes = [{"NodeID": "id-a", "NodeManagerHostname": "a"}]
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        asked: list[Any] = []

        def list_actors(**given: Any) -> list[Any]:
            asked.append(given["filters"])
            return [SimpleNamespace(required_resources=resources, node_id="id-a")]

        monkeypatch.setattr(state, "list_actors", list_actors)
        assert local_ray.driver_resources() == expected
        assert asked == [[("name", "=", "_ray_internal_job_actor_s")]]

    @pytest.mark.parametrize("config", [None, "", "{", "[]", "{}"])
    def test_outside_a_job_nothing_is_asked(
        self, config: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(local_ray.CONFIG, raising=False)
        if config is not None:
            monkeypatch.setenv(local_ray.CONFIG, config)
        assert local_ray.driver_resources() is None
        assert local_ray.job_environment() == {}


@pytest.mark.parametrize(
    ("asked", "job", "expected"),
    [(None, "", None), ("local", "s", None), ("auto", "", "auto"), (None, "s", "10.0.0.1:6379")],
)
def test_only_the_user_or_a_submitted_job_names_the_cluster(
    asked: str | None, job: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RAY_ADDRESS that was left in a shell takes no study anywhere."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv(local_ray.CONFIG, json.dumps({"metadata": {"job_submission_id": job}}))
    assert session.chosen_address(asked) == expected


def test_what_the_job_sets_is_not_set_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses a name that both the job's runtime environment and ray.init set."""
    for name in session.WORKER_ENVIRONMENT:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # as Ray has set it from the job's
    own = {"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "0", "MINE": "1"}}
    monkeypatch.setenv(local_ray.CONFIG, json.dumps({"runtime_env": own}))
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **arguments: given.append(arguments))
    session._connect("auto")
    told = given[0]["runtime_env"]["env_vars"]
    assert set(told) == set(session.WORKER_ENVIRONMENT) - {"TF_CPP_MIN_LOG_LEVEL"}
    assert session.os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


class TestHead:
    """A cluster's head that is watched; one that dies is of tests/e2e/test_cluster.py."""

    def test_one_that_is_silent_may_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, silent = [0.0], [False]

        def connect(place: tuple[str, int], timeout: float) -> Any:
            assert place == ("::1", 6379)
            if silent[0]:
                raise TimeoutError
            return io.BytesIO()

        monkeypatch.setattr(session.socket, "create_connection", connect)
        head = Head("[::1]:6379", clock=lambda: now[0])
        for seconds, is_silent, is_lost in (
            (40.0, True, False),
            (44.0, False, False),
            (80.0, True, False),
            (90.0, True, True),
        ):
            now[0], silent[0] = seconds, is_silent
            assert bool(head.lost()) is is_lost

    def test_one_that_is_out_of_reach_from_the_start_is_not_watched(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        now = [0.0]
        head = Head(address, clock=lambda: now[0])
        now[0] = 100.0
        assert head.lost() is None
