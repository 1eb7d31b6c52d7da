"""Canaries of Ray's core: the installed one has what `ray_internals` relies on, and the stock path
is taken where it has not. Ray is imported here, never started."""

import inspect
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import session, worker_group
from raybench.cluster.protocol import RunFailed
from raybench.cluster.ray_internals import local_ray, trainer
from raybench.cluster.ray_internals.trainer import LOST, NOT_STARTED, OUT_OF_REACH
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import Placement


@pytest.fixture(autouse=True)
def _ray_stays_down() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


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


class TestNiceness:
    """Workers as nice as the driver; stock path: Ray adds 15, which `niceness_warning` says."""

    def test_ray_still_reads_it(self) -> None:
        from ray._private import ray_constants

        why = "then workers give way to any process"
        assert getattr(ray_constants, "RAY_WORKER_NICENESS", None) == local_ray.NICENESS, why

    def test_workers_that_give_way_are_said(self) -> None:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert local_ray.niceness_warning(own) is None
        assert f"niceness {own + 15}" in str(local_ray.niceness_warning(own + 15))


@pytest.mark.parametrize(
    ("shares", "own", "used"),
    [
        ([0.0, 40.0], 0.0, None),
        ([90.0, 80.0], 0.0, "1.7 of this machine's 2"),
        ([90.0, 80.0], 0.5, "1.2 of this machine's 2"),
        ([90.0, 30.0], 0.9, None),
        ([], 0.0, None),
    ],
)
def test_what_others_keep_busy_is_said_before_ray_starts(
    shares: list[float], own: float, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`own`: cores that threads of this process keep busy meanwhile."""
    now = [0.0]
    monkeypatch.setattr(session.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        session.psutil.Process, "cpu_times", lambda process: (own * now[0], 0.0, 9.0, 9.0)
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)

    def look(interval: float, percpu: bool) -> list[float]:
        now[0] += interval
        return shares

    monkeypatch.setattr(session.psutil, "cpu_percent", look)
    said = session.busy_sentence()
    assert now == [session.BUSY_S]
    assert (said is None) if used is None else f"were using {used} cores" in str(said)


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
        with local_ray.own_signals():
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
            with local_ray.own_token():
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
                while local_ray.own_processes() != [child.pid]:  # it becomes that program first
                    assert time.monotonic() < deadline
                monkeypatch.setattr(local_ray, "PROGRAMS", ("/another-name",))
                assert local_ray.own_processes() == []
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
