"""Canary tests of Ray Train: the installed version has the private names that `ray_internals` uses,
and without them the public API is used. Ray is imported, never started."""

import asyncio
import importlib.util
import inspect
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import cloudpickle as pickle
import pytest
import ray
from ray.train import ScalingConfig
from ray.train.v2._internal.execution import worker_group
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api import data_parallel_trainer

from raybench.cluster.ray_internals import controller, rendezvous
from raybench.cluster.ray_internals import trainer as trainer_internals
from raybench.cluster.ray_internals.controller import ReleasingWorkerGroup
from raybench.cluster.ray_internals.rendezvous import Place
from raybench.cluster.worker_group import PoolOptions, build_trainer, end_message
from raybench.spec.run import ResourceRequest, RunSpec


@pytest.fixture(autouse=True)
def _ray_stays_down() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


def test_switches_of_train_exist():
    from ray.train import constants as old
    from ray.train.v2._internal import constants as new

    known = {
        value for module in (old, new) for value in vars(module).values() if isinstance(value, str)
    }
    if importlib.util.find_spec("ray.train.v2._internal.callbacks.preemption_callback") is None:
        known.add("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER")  # new in 2.60
    unknown = set(trainer_internals.TRAIN_SWITCHES) - known
    assert not unknown, "otherwise the features that they disable are active"


def options(scratch: str = "", *, is_local: bool = True) -> PoolOptions:
    return PoolOptions(scratch=scratch, search_path="", is_local=is_local)


@pytest.fixture
def torch_options(tmp_path: Path) -> PoolOptions:
    pytest.importorskip("torch")
    return options(str(tmp_path))


class TestController:
    """Train's controller runs in the process of the pool; without internals: in its own actor."""

    @pytest.mark.parametrize("is_local", [True, False])
    def test_fit_runs_our_controller(self, is_local, torch_options, monkeypatch):
        fake = Mock(run=AsyncMock())
        fake.return_value = fake
        fake.get_result.return_value.error = None
        monkeypatch.setattr(controller, "TrainController", fake)
        monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)
        request = ResourceRequest("torch", 2)
        pool_options = options(torch_options.scratch, is_local=is_local)
        build_trainer(0, request, pool_options, ("id-a", "id-b")).fit()
        why = "otherwise Train's controller is an actor"
        assert fake.run.await_count == 1, why
        arguments = fake.call_args.kwargs
        assert arguments.keys() <= inspect.signature(TrainController).parameters.keys(), why
        assert type(arguments["scaling_policy"]) is controller.FixedPlace, why
        callbacks = {type(callback).__name__ for callback in arguments["callbacks"]}
        assert not callbacks & set(trainer_internals.UNUSED_CALLBACKS)

    def test_scaling_policy_decides_the_workers_without_ray(self, torch_options):
        assert controller.is_as_expected(), "otherwise Train's controller and autoscaler are actors"
        policy = controller.FixedPlace(ScalingConfig(num_workers=3))
        # With the policy of Train, any of these calls would start Ray for an autoscaler actor.
        policy.after_controller_start(None)
        assert policy.make_decision_for_non_running_worker_group().num_workers == 3
        policy.make_decision_for_running_worker_group(None, None)
        asyncio.run(policy.before_controller_shutdown())
        policy.before_controller_abort()

    @pytest.mark.parametrize("has_started", [True, False])
    def test_group_that_fails_to_connect_is_aborted(self, has_started, monkeypatch):
        why = "otherwise a group that fails to connect keeps its CPUs until the session ends"
        assert "self.worker_group_cls.create(" in inspect.getsource(TrainController), why
        assert "._start()" in inspect.getsource(WorkerGroup.create), why

        fault, abort = RuntimeError("unreached"), Mock()
        monkeypatch.setattr(WorkerGroup, "_start", Mock(side_effect=fault))
        monkeypatch.setattr(WorkerGroup, "has_started", lambda self: has_started)
        monkeypatch.setattr(WorkerGroup, "abort", abort)
        with pytest.raises(RuntimeError) as failure:
            ReleasingWorkerGroup.__new__(ReleasingWorkerGroup)._start()
        assert failure.value is fault
        assert len(ReleasingWorkerGroup.started) == 1
        ReleasingWorkerGroup.started.clear()
        assert abort.call_count == has_started

    def test_placement_group_is_removed_even_if_workers_hang(self, monkeypatch):
        why = "otherwise a group that hangs at its start keeps its GPUs until the session ends"
        start = inspect.getsource(WorkerGroup._start_impl)
        assert "pg_handle = self._create_placement_group(" in start, why
        handles = inspect.getsource(worker_group.placement_group_handle)
        assert "remove_placement_group" in handles, why
        handle = Mock()
        monkeypatch.setattr(WorkerGroup, "_create_placement_group", lambda self, context: handle)
        group = ReleasingWorkerGroup.__new__(ReleasingWorkerGroup)
        trainer_internals.end_workers(SimpleNamespace(raybench_groups=[group]))
        assert group._create_placement_group(None) is handle
        assert handle.shutdown.call_count == 0
        trainer_internals.end_workers(SimpleNamespace(raybench_groups=[group]))
        assert handle.shutdown.call_count == 1
        trainer_internals.end_workers(None)


class FakeGroup:
    """Fake worker group of Train that records the functions its workers are to run."""

    def __init__(self, size: int, gpus: int = 0) -> None:
        self._size, self._gpus = size, gpus
        self.calls: list[tuple[int, Any, dict[str, Any]]] = []

    def __len__(self) -> int:
        return self._size

    def get_resources_per_worker(self) -> dict[str, int]:
        return {"CPU": 1, "GPU": self._gpus}

    def execute_single_async(self, rank: int, function: Any, *args: Any, **kwargs: Any) -> None:
        self.calls.append((rank, function, kwargs))


class TestFileMeeting:
    """Torch's store is a file; without internals: it listens on a port of rank 0."""

    def test_train_has_the_extended_and_called_names(self, torch_options):
        from ray.train.torch.config import TorchConfig, _TorchBackend

        why = "otherwise torch's store listens on a port of rank 0"
        for name in ("on_start", "on_shutdown"):
            parameters = list(inspect.signature(getattr(_TorchBackend, name)).parameters)
            assert parameters == ["self", "worker_group", "backend_config"], why
        assert isinstance(TorchConfig.backend_cls, property), why
        assert isinstance(TorchConfig().timeout_s, int), why
        for name in (*rendezvous.USED, "__len__"):
            assert callable(getattr(WorkerGroup, name, None)), why
        parameters = list(inspect.signature(WorkerGroup.execute_single_async).parameters)
        assert parameters == ["self", "rank", "fn", "fn_args", "fn_kwargs"], why

    @pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (1, "nccl")])
    def test_ranks_of_a_local_group_meet_in_a_file(self, gpus, backend, torch_options, monkeypatch):
        monkeypatch.setattr(ray, "get", lambda joining, timeout=None: joining)
        trainer = build_trainer(7, ResourceRequest("torch", 2), torch_options)
        config = pickle.loads(pickle.dumps(trainer.backend_config))  # the controller gets a copy
        group = FakeGroup(2, gpus)
        config.backend_cls().on_start(group, config)
        calls = [(rank, function.__name__) for rank, function, _ in group.calls]
        hiding = [] if gpus else [(0, "_see_no_gpu"), (1, "_see_no_gpu")]
        assert calls == [*hiding, (0, "_join"), (1, "_join")]
        arguments = group.calls[-1][2]
        assert (arguments["backend"], arguments["member"], arguments["size"]) == (backend, 1, 2)
        assert arguments["file"] == str(Path(torch_options.scratch) / "group-7.store")
        single = FakeGroup(1, gpus)
        config.backend_cls().on_start(single, config)
        assert [function.__name__ for _, function, _ in single.calls] == ["_see_no_gpu"][gpus:]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        for _, function, _ in single.calls:
            function()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ("0,1" if gpus else "")


class TestNetworkMeeting:
    """Interfaces are chosen and checked on a cluster; without internals: frameworks guess them."""

    @pytest.fixture(params=["torch", "tensorflow"])
    def framework(self, request: pytest.FixtureRequest) -> str:
        pytest.importorskip(request.param)
        return str(request.param)

    def config(self, framework: str, scratch: Path) -> Any:
        pool_options = replace(options(str(scratch), is_local=False), interface="ib0")
        trainer = build_trainer(0, ResourceRequest(framework, 2), pool_options, ("id-b", "id-a"))
        scaling = trainer.scaling_config
        selectors = [{"ray.io/node-id": "id-b"}, {"ray.io/node-id": "id-a"}]
        assert scaling._label_selector_per_worker(2) == selectors
        return trainer.backend_config

    def test_interface_is_checked_before_ray_connects(self, framework, tmp_path, monkeypatch):
        events: list[Any] = []
        places = [Place("a", "ib0", "10.0.0.1"), Place("b", "ib0", "10.0.0.2")]

        def connect(group: Any, interface: str | None) -> list[Place]:
            events.append(interface)
            return places

        config = importlib.import_module(f"ray.train.{framework}.config")
        stock = config.__dict__[f"_{framework.capitalize()}Backend"]
        monkeypatch.setattr(rendezvous, "connect", connect)
        monkeypatch.setattr(stock, "on_start", lambda *args: events.append(len(group.calls)))
        monkeypatch.setattr(ray, "get", lambda calls, timeout=None: calls)
        group, config = FakeGroup(2), self.config(framework, tmp_path)
        config.backend_cls().on_start(group, config)
        # GPUs are hidden from workers without GPUs before Ray queries torch for them.
        assert events == ["ib0", 2 if framework == "torch" else 0]
        called = "_see_no_gpu" if framework == "torch" else "_use_addresses"
        assert [function.__name__ for _, function, _ in group.calls] == [called] * 2
        config.backend_cls().on_start(FakeGroup(1), config)
        assert len(events) == 3, "a single worker has no connection to check"

    def test_unknown_interface_ends_the_group_with_one_sentence(self):
        problem = rendezvous._set_interface("127.0.0.1", "nothing0", 2)
        with pytest.raises(rendezvous.Unreached) as caught:
            rendezvous._raise_problem(str(problem))
        error = RuntimeError(f"Training failed due to controller error:\n{caught.value}\nmore")
        assert end_message(error) == problem
        assert "nothing0" in problem
        assert "RAYBENCH_INTERFACE" in problem


def test_single_process_strategy_requests_one_worker_with_all_resources(tmp_path):
    pytest.importorskip("tensorflow")
    each = {"cpus_per_worker": 2, "gpus_per_worker": 1}
    spec = RunSpec(framework="tensorflow", strategy="single_process", num_workers=4, **each)
    pool_options = options(str(tmp_path), is_local=False)
    trainer = build_trainer(0, spec.resources, pool_options, ("id-a",))
    scaling = trainer.scaling_config
    assert scaling.num_workers == 1
    assert scaling.resources_per_worker == {"CPU": 8, "GPU": 4}
    request = trainer.train_loop_config["request"]
    assert (request.replicas_per_process, request.cpus_per_worker) == (4, 8)
