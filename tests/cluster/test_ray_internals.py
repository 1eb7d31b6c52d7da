"""Canary tests of Ray Core: the installed version has the private names that `ray_internals` uses,
and without them the public API is used. Ray is imported, never started."""

import inspect
import json
import os
import pkgutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray

from raybench.cluster import worker_group
from raybench.cluster.protocol import RunFailed
from raybench.cluster.ray_internals import local_ray, trainer
from raybench.cluster.ray_internals import nodes as nodes_internals
from raybench.cluster.ray_internals.trainer import LOST, NOT_STARTED, OUT_OF_REACH
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import ResourceRequest
from tests.factories import wait_for


@pytest.fixture(autouse=True)
def _ray_stays_down() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ray._private.ray_constants:RAY_WORKER_NICENESS", local_ray.NICENESS),
        ("ray._private.ray_constants:DEBUG_AUTOSCALING_STATUS", nodes_internals.STATUS),
        ("ray._private.runtime_env.constants:RAY_JOB_CONFIG_JSON_ENV_VAR", local_ray.CONFIG),
        ("ray.dashboard.modules.job.common:JOB_ID_METADATA_KEY", local_ray.SUBMISSION),
        ("ray._common.constants:NODE_ID_PREFIX", nodes_internals.ADDRESS),
    ],
)
def test_constants_equal_those_of_ray(name, ours):
    why = "otherwise niceness, autoscaler status, jobs or the hosts of Tune's actors are lost"
    assert pkgutil.resolve_name(name) == ours, why


class TestLoopback:
    """Node that listens on 127.0.0.1 only; without internals: Ray's address and a warning."""

    def test_ray_reads_the_constant(self):
        from ray._private import ray_constants, services

        before = ray_constants.ENABLE_RAY_CLUSTER
        with local_ray.on_loopback():
            address = services.get_node_ip_address()
        assert address == local_ray.LOOPBACK, "otherwise Ray takes the external address"
        assert before == ray_constants.ENABLE_RAY_CLUSTER

    @pytest.mark.parametrize(("address", "is_warned"), [("127.0.0.1", False), ("192.0.2.7", True)])
    def test_address_reachable_from_other_hosts_is_reported(self, address, is_warned, monkeypatch):
        monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": address}])
        warning = local_ray.warning()
        assert bool(warning) == is_warned
        assert not warning or address in warning


class TestSignals:
    """Our SIGTERM handler is kept; without internals: Ray replaces it."""

    def test_ray_sets_its_handler_by_a_function_that_does_nothing_inside_the_context(self):
        from ray._private import node, utils, worker

        why = "otherwise Ray's SIGTERM handler replaces ours"
        for module in (node, worker):
            assert "utils.set_sigterm_handler(" in inspect.getsource(module), why
        before, original = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
        assert list(inspect.signature(original).parameters) == ["sigterm_handler"], why
        with local_ray.keep_signal_handler():
            utils.set_sigterm_handler(lambda number, frame: None)
            assert signal.getsignal(signal.SIGTERM) is before
        assert utils.set_sigterm_handler is original


class TestToken:
    """Token of a single session; without internals: what Ray reads from the environment."""

    def test_ray_reads_the_new_token(self, monkeypatch):
        from ray._raylet import AuthenticationTokenLoader

        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        why = "otherwise Ray may keep a token or a mode that it has read before"
        tokens = []
        for _ in range(2):
            with local_ray.session_token():
                header = AuthenticationTokenLoader.instance().get_token_for_http_header()
                tokens.append(os.environ["RAY_AUTH_TOKEN"])
            assert tokens[-1] in str(header), why
        assert tokens[0] != tokens[1]
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert "RAY_AUTH_TOKEN" not in os.environ


class TestProcesses:
    """Ray's own processes, known by name; without internals: they are not watched."""

    def test_ray_programs_have_the_known_names(self):
        from ray._private import services

        for program in (services.GCS_SERVER_EXECUTABLE, services.RAYLET_EXECUTABLE):
            assert program.endswith(local_ray.PROGRAMS), (
                "otherwise a killed Ray is noticed only when it does not answer"
            )
            assert Path(program).is_file()

    def test_ray_processes_below_this_process_are_found(self, monkeypatch):
        with subprocess.Popen(["/nowhere/raylet", "60"], executable="/bin/sleep") as child:
            try:
                wait_for(lambda: local_ray.ray_processes() == [child.pid])  # `exec` sets its name
                monkeypatch.setattr(local_ray, "PROGRAMS", ("/another-name",))
                assert local_ray.ray_processes() == []
            finally:
                child.kill()


class TestSignOfLife:
    """Lost workers differ from failed ones; without internals: they are not distinguished."""

    def test_actors_have_ray_ready(self):
        class Worker:
            pass

        metadata: Any = ray.remote(Worker).__ray_metadata__
        why = "otherwise the run is recorded with the error of a surviving worker"
        assert "__ray_ready__" in metadata.method_meta.methods, why
        assert metadata.modified_class().__ray_ready__() is True, why

    @pytest.mark.parametrize(
        ("error", "is_lost"),
        [
            (None, False),
            (ray.exceptions.ActorDiedError(), True),
            (ray.exceptions.GetTimeoutError(), True),  # its node is gone or hangs
        ],
    )
    def test_worker_without_answer_is_lost(self, error, is_lost, monkeypatch):
        get = Mock(side_effect=error)
        monkeypatch.setattr(ray, "get", get)
        actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: "answer"))
        assert trainer.has_lost_one([actor], timeout_s=5.0) is is_lost
        get.assert_called_once_with(["answer"], timeout=5.0)


class TestWords:
    """Short message for a lost process; without a known message: that of Ray."""

    def test_ray_has_the_known_messages(self):
        from ray._private import services
        from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

        texts = Path(services.GCS_SERVER_EXECUTABLE).read_bytes()
        texts += Path(ray._raylet.__file__).read_bytes() + " ".join(dir(ray.exceptions)).encode()
        texts += str(WorkerGroupStartupTimeoutError(2)).encode()
        for words in trainer.MEANINGS:
            assert words.encode() in texts, f"{words}: otherwise the message of Ray is shown"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("Because its worker process has died. Common causes ...", LOST),
            ("The actor's node was terminated unexpectedly: health check", OUT_OF_REACH),
            ("The worker group startup timed out after 20.0 seconds", NOT_STARTED),
            ("Its process is no more.", "RuntimeError: Its process is no more."),
        ],
    )
    async def test_known_errors_get_a_short_message(self, words, message, monkeypatch):
        fake_trainer = Mock()
        fake_trainer.fit.side_effect = RuntimeError(f"Training failed\n{words}\n")
        monkeypatch.setattr(worker_group, "build_trainer", lambda *arguments: fake_trainer)
        options = PoolOptions(scratch="", search_path="", is_local=True)
        with pytest.raises(RunFailed) as caught:
            await WorkerGroup(0, ResourceRequest("torch", 1), options).start()
        assert (caught.value.failure, caught.value.message) == ("worker_lost", message)


def reports(monkeypatch: pytest.MonkeyPatch, get: Callable[[str], bytes | None]) -> None:
    """Make `get` return the report of the first autoscaler."""
    from ray.autoscaler.v2 import utils
    from ray.experimental import internal_kv

    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: False)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", get)


class TestAutoscaler:
    """Whether the cluster has an autoscaler; without internals: it has none."""

    def test_ray_has_the_names_of_the_autoscaler(self):
        from ray.autoscaler._private.util import format_readonly_node_type
        from ray.autoscaler.sdk import request_resources

        why = "otherwise a cluster without an autoscaler is treated as one with it"
        assert format_readonly_node_type("ff").startswith(nodes_internals.UNMANAGED), why
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
    def test_report_of_autoscaler_v1(self, report, grows, monkeypatch):
        status = None if report is None else json.dumps(report).encode()
        monkeypatch.setattr(nodes_internals, "FIRST_REPORT_S", 0.0)
        reports(monkeypatch, lambda key: status)
        assert nodes_internals.has_autoscaler() is grows

    @pytest.mark.parametrize(("kind", "grows"), [("worker", True), ("node_0a", False), ("", False)])
    def test_status_of_autoscaler_v2(self, kind, grows, monkeypatch):
        from ray.autoscaler.v2 import sdk, utils

        nodes = [SimpleNamespace(ray_node_type_name=kind)]
        status = SimpleNamespace(active_nodes=[], idle_nodes=nodes)
        monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: True)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=""))
        monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
        assert nodes_internals.has_autoscaler() is grows

    def test_autoscaler_of_a_new_head_is_waited_for(self, monkeypatch):
        report = {"autoscaler_report": {"active_nodes": {"ray.head.default": 1}}}
        answers = iter([None, b"{}", json.dumps(report).encode()])
        monkeypatch.setattr(nodes_internals.time, "sleep", lambda seconds: None)
        reports(monkeypatch, lambda key: next(answers))
        assert nodes_internals.has_autoscaler()


@pytest.mark.parametrize("config", [None, "", "{", "[]", "{}"])
def test_job_environment_outside_a_job_is_empty(config, monkeypatch):
    monkeypatch.delenv(local_ray.CONFIG, raising=False)
    if config is not None:
        monkeypatch.setenv(local_ray.CONFIG, config)
    assert local_ray.job_environment() == {}


FREE = {"id": {"CPU": 1.0}}


@pytest.mark.parametrize(
    ("name", "query", "answer", "expected", "fallback"),
    [
        ("available_resources_per_node", nodes_internals.available, FREE, FREE, {}),
        ("get_draining_nodes", nodes_internals.draining_nodes, {"id": 0}, {"id"}, frozenset()),
    ],
)
def test_free_resources_and_draining_nodes(name, query, answer, expected, fallback, monkeypatch):
    from ray._private import state

    assert hasattr(state.GlobalState, name), "otherwise others' resources or drains are not seen"
    for holder in (state, state.state):
        monkeypatch.setattr(holder, name, lambda: answer, raising=False)
    assert query() == expected
    monkeypatch.setattr(state, "state", object())
    monkeypatch.delattr(state, name)
    assert query() == fallback
