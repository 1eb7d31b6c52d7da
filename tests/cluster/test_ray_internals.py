"""Canaries of Ray's core: the installed one has what `ray_internals` relies on, and the stock path
is taken where it has not. Also how a session begins and watches its cluster. Ray is imported here,
never started."""

import inspect
import json
import os
import pkgutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import session, worker_group
from raybench.cluster.protocol import RunFailed
from raybench.cluster.ray_internals import local_ray, trainer
from raybench.cluster.ray_internals import nodes as nodes_internals
from raybench.cluster.ray_internals.trainer import LOST, NOT_STARTED, OUT_OF_REACH
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import Placement


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
def test_names_of_ray_are_ours(name: str, ours: str) -> None:
    why = "then workers give way, no autoscaler or job is seen, or Tune's actors find no host"
    assert pkgutil.resolve_name(name) == ours, why


class TestLoopback:
    """A node on 127.0.0.1 alone; stock path: Ray's own address, with a warning."""

    def test_ray_still_asks_the_constant(self) -> None:
        from ray._private import ray_constants, services

        why = "then Ray takes the outside address, and `warning` says so"
        assert hasattr(ray_constants, "ENABLE_RAY_CLUSTER"), why
        before = ray_constants.ENABLE_RAY_CLUSTER
        with local_ray.on_loopback():
            assert services.get_node_ip_address() == local_ray.LOOPBACK, why
        assert before == ray_constants.ENABLE_RAY_CLUSTER

    @pytest.mark.parametrize(("address", "is_said"), [("127.0.0.1", False), ("192.0.2.7", True)])
    def test_an_address_that_others_reach_is_said(
        self, address: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": address}])
        said = local_ray.warning()
        assert bool(said) == is_said
        assert not said or address in said


class TestSignals:
    """Our handler of SIGTERM stays; stock path: Ray takes it."""

    def test_ray_still_sets_its_handler_by_that_function(self) -> None:
        from ray._private import node, utils, worker

        why = "then Ray's handler of SIGTERM replaces ours, as without the patch"
        assert list(inspect.signature(utils.set_sigterm_handler).parameters) == [
            "sigterm_handler"
        ], why
        for module in (node, worker):
            assert "utils.set_sigterm_handler(" in inspect.getsource(module), why

    def test_it_does_nothing_meanwhile(self) -> None:
        from ray._private import utils

        before, taking = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
        with local_ray.keep_signal_handler():
            utils.set_sigterm_handler(lambda number, frame: None)
            assert signal.getsignal(signal.SIGTERM) is before
        assert utils.set_sigterm_handler is taking


class TestToken:
    """A token for one session; stock path: what Ray reads from the environment by itself."""

    def test_ray_still_reads_the_new_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ray._raylet import AuthenticationTokenLoader

        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        why = "then Ray may keep a token or a mode that it has read before"
        seen = []
        for _ in range(2):
            with local_ray.session_token():
                header = AuthenticationTokenLoader.instance().get_token_for_http_header()
                seen.append(os.environ["RAY_AUTH_TOKEN"])
            assert seen[-1] in str(header), why
        assert seen[0] != seen[1]
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert "RAY_AUTH_TOKEN" not in os.environ


class TestProcesses:
    """Ray's own programs by their names; stock path: nobody looks after them."""

    def test_ray_still_names_them_so(self) -> None:
        from ray._private import services

        for program in (services.GCS_SERVER_EXECUTABLE, services.RAYLET_EXECUTABLE):
            assert program.endswith(local_ray.PROGRAMS), (
                "then a Ray that is killed is noticed when it does not answer, not at once"
            )
            assert Path(program).is_file()

    def test_they_are_found_below_this_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with subprocess.Popen(["/nowhere/raylet", "60"], executable="/bin/sleep") as child:
            try:
                deadline = time.monotonic() + 120
                while local_ray.ray_processes() != [child.pid]:  # it becomes that program first
                    assert time.monotonic() < deadline
                monkeypatch.setattr(local_ray, "PROGRAMS", ("/another-name",))
                assert local_ray.ray_processes() == []
            finally:
                child.kill()


class TestSignOfLife:
    """A lost worker told from one that failed; stock path: they are not told apart."""

    def test_actors_still_answer(self) -> None:
        class Worker:
            pass

        metadata: Any = ray.remote(Worker).__ray_metadata__  # type: ignore[attr-defined]
        why = "then the error of a survivor is what the run is recorded with"
        assert "__ray_ready__" in metadata.method_meta.methods, why
        assert metadata.modified_class().__ray_ready__() is True, why

    @pytest.mark.parametrize(
        ("error", "is_lost"),
        [
            (None, False),
            (ray.exceptions.ActorDiedError(), True),
            (ray.exceptions.GetTimeoutError(), True),  # its node has gone, or hangs
        ],
    )
    def test_what_an_answer_says(
        self, error: Exception | None, is_lost: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def get(answers: list[str], timeout: float) -> None:
            assert (answers, timeout) == (["asked"], 5.0)
            if error is not None:
                raise error

        monkeypatch.setattr(ray, "get", get)
        actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: "asked"))
        assert trainer.has_lost_one([actor], timeout_s=5.0) is is_lost


class TestWords:
    """A short message for a lost process; stock path: Ray's own words."""

    def test_ray_still_says_so(self) -> None:
        from ray._private import services
        from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

        said = Path(services.GCS_SERVER_EXECUTABLE).read_bytes()
        said += Path(ray._raylet.__file__).read_bytes() + " ".join(dir(ray.exceptions)).encode()
        said += str(WorkerGroupStartupTimeoutError(2)).encode()
        for words in trainer.MEANINGS:
            assert words.encode() in said, f"{words}: then its error is shown in Ray's own words"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("Because its worker process has died. Common causes ...", LOST),
            ("The actor's node was terminated unexpectedly: health check", OUT_OF_REACH),
            ("The worker group startup timed out after 20.0 seconds", NOT_STARTED),
            ("Its process is no more.", "RuntimeError: Its process is no more."),
        ],
    )
    async def test_other_words_are_shown_as_they_are(
        self, words: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fit() -> None:
            raise RuntimeError(f"Training failed\n{words}\n")

        monkeypatch.setattr(worker_group, "build_trainer", lambda *of: SimpleNamespace(fit=fit))
        options = PoolOptions(scratch="", search_path="", is_local=True)
        with pytest.raises(RunFailed) as caught:
            await WorkerGroup(0, Placement("torch", 1), options).start()
        assert (caught.value.failure, caught.value.message) == ("worker_lost", message)


def reports(monkeypatch: pytest.MonkeyPatch, get: Callable[[str], bytes | None]) -> None:
    """Let the first autoscaler's report be what `get` returns."""
    from ray.autoscaler.v2 import utils
    from ray.experimental import internal_kv

    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda: False)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", get)


class TestAutoscaler:
    """Whether nodes can be had; stock path: they cannot."""

    def test_ray_still_reports_and_takes_requests_so(self) -> None:
        from ray.autoscaler._private.util import format_readonly_node_type
        from ray.autoscaler.sdk import request_resources
        from ray.autoscaler.v2 import sdk, utils
        from ray.experimental import internal_kv

        why = "then a cluster with an autoscaler is taken for one without"
        assert format_readonly_node_type("ff").startswith(nodes_internals.UNMANAGED), why
        assert hasattr(sdk, "get_cluster_status"), why
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


@pytest.mark.parametrize("config", [None, "", "{", "[]", "{}"])
def test_outside_a_job_there_is_no_environment_of_one(
    config: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(local_ray.CONFIG, raising=False)
    if config is not None:
        monkeypatch.setenv(local_ray.CONFIG, config)
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


@pytest.mark.parametrize(
    ("name", "ask", "told", "expected", "stock"),
    [
        (
            "available_resources_per_node",
            nodes_internals.available,
            {"id": {"CPU": 1.0}},
            {"id": {"CPU": 1.0}},
            {},
        ),
        ("get_draining_nodes", nodes_internals.draining_nodes, {"id": 0}, {"id"}, frozenset()),
    ],
)
def test_ray_still_says_what_is_free_and_which_nodes_go(
    name: str,
    ask: Callable[[], Any],
    told: Any,
    expected: Any,
    stock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray._private import state

    assert hasattr(state.GlobalState, name), "then what others hold, or a notice, is not seen"
    for place in (state, state.state):
        monkeypatch.setattr(place, name, lambda: told, raising=False)
    assert ask() == expected
    monkeypatch.setattr(state, "state", object())
    monkeypatch.delattr(state, name)
    assert ask() == stock
