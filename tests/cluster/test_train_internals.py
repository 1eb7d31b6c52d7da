"""Canaries of Ray Train: the installed one has what `ray_internals` relies on, and the stock path
is taken where it has not. Ray is imported here, never started."""

import asyncio
import importlib.util
import inspect
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle as pickle
import pytest
import ray

from raybench.cluster.connectivity import Place
from raybench.cluster.ray_internals import rendezvous
from raybench.cluster.ray_internals import trainer as trainer_internals
from raybench.cluster.worker_group import PoolOptions, build_trainer, end_message
from raybench.spec.run import Placement, RunSpec


@pytest.fixture(autouse=True)
def _ray_stays_down() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


def test_train_still_knows_its_switches() -> None:
    from ray.train import constants as old
    from ray.train.v2._internal import constants as new

    known = {
        value for module in (old, new) for value in vars(module).values() if isinstance(value, str)
    }
    if importlib.util.find_spec("ray.train.v2._internal.callbacks.preemption_callback") is None:
        known.add("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER")  # before 2.60 there is none to switch off
    unknown = set(trainer_internals.TRAIN_SWITCHES) - known
    assert not unknown, "then what they switch off runs, as without them"


def options(scratch: str = "", *, is_local: bool = True) -> PoolOptions:
    return PoolOptions(scratch=scratch, search_path="", is_local=is_local)


@pytest.fixture
def torch_options(tmp_path: Path) -> PoolOptions:
    pytest.importorskip("torch")
    return options(str(tmp_path))


def names(callbacks: list[Any]) -> set[str]:
    return {type(callback).__name__ for callback in callbacks}


class FakeController:
    """Stands for TrainController, which would start workers."""

    worker_group_cls: Any = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.has_run = arguments, False

    async def run(self) -> None:
        self.has_run = True

    def get_result(self) -> Any:
        return SimpleNamespace(error=None, controller=self)


class TestController:
    """Train's controller in the pool's process; stock path: an actor of its own."""

    @pytest.mark.parametrize("is_local", [True, False])
    def test_fit_still_ends_in_it(
        self, is_local: bool, torch_options: PoolOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.v2._internal.execution.controller import TrainController
        from ray.train.v2.api import data_parallel_trainer

        from raybench.cluster.ray_internals import controller as module

        monkeypatch.setattr(module, "TrainController", FakeController)
        monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)
        placement = Placement("torch", 2)
        where = options(torch_options.scratch, is_local=is_local)
        result: Any = build_trainer(0, placement, where, ("id-a", "id-b")).fit()
        controller, why = result.controller, "then Train's controller is an actor again"
        assert controller.has_run, why
        accepted = set(inspect.signature(TrainController.__init__).parameters)
        assert set(controller.arguments) < accepted, why
        policy = controller.arguments["scaling_policy"]
        assert type(policy) is module.FixedPlace, why
        assert "DatasetsCallback" not in names(controller.arguments["callbacks"])

    def test_the_policy_still_asks_for_the_workers_and_for_nothing_else(
        self, torch_options: PoolOptions
    ) -> None:
        from ray.train import ScalingConfig

        from raybench.cluster.ray_internals.controller import FixedPlace, is_as_expected

        assert is_as_expected(), "then Train tells an autoscaler, and its controller is an actor"
        policy: Any = FixedPlace(ScalingConfig(num_workers=3))
        # Any of these would start Ray for its autoscaler's actor.
        policy.after_controller_start(None)
        assert policy.make_decision_for_non_running_worker_group().num_workers == 3
        policy.make_decision_for_running_worker_group(None, None)
        asyncio.run(policy.before_controller_shutdown())
        policy.before_controller_abort()

    @pytest.mark.parametrize("has_started", [True, False])
    def test_a_group_that_does_not_connect_leaves_nothing_behind(
        self, has_started: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.v2._internal.execution.controller import TrainController
        from ray.train.v2._internal.execution.worker_group import WorkerGroup

        from raybench.cluster.ray_internals.controller import ReleasingWorkerGroup

        why = "then a group that does not connect keeps its CPUs until the session ends"
        assert "self.worker_group_cls.create(" in inspect.getsource(TrainController), why
        assert "._start()" in inspect.getsource(WorkerGroup.create), why

        fault = RuntimeError("unreached")

        def fail(self: object) -> None:
            raise fault

        story: list[str] = []
        monkeypatch.setattr(WorkerGroup, "_start", fail)
        monkeypatch.setattr(WorkerGroup, "has_started", lambda self: has_started)
        monkeypatch.setattr(WorkerGroup, "abort", lambda self: story.append("abort"))
        with pytest.raises(RuntimeError) as failure:
            ReleasingWorkerGroup.__new__(ReleasingWorkerGroup)._start()
        assert failure.value is fault
        assert len(ReleasingWorkerGroup.started) == 1
        ReleasingWorkerGroup.started.clear()
        assert story == (["abort"] if has_started else [])

    def test_what_it_has_reserved_is_given_back_whatever_its_workers_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.v2._internal.execution import worker_group as module
        from ray.train.v2._internal.execution.worker_group import WorkerGroup

        from raybench.cluster.ray_internals.controller import ReleasingWorkerGroup

        why = "then a group that hangs at its start keeps its GPUs until the session ends"
        source = inspect.getsource(WorkerGroup._start_impl)
        assert "pg_handle = self._create_placement_group(" in source, why
        assert "remove_placement_group" in inspect.getsource(module.placement_group_handle), why
        ended: list[str] = []
        handle = SimpleNamespace(shutdown=lambda: ended.append("gone"))
        monkeypatch.setattr(WorkerGroup, "_create_placement_group", lambda self, of: handle)
        group = ReleasingWorkerGroup.__new__(ReleasingWorkerGroup)
        trainer_internals.end_workers(SimpleNamespace(raybench_groups=[group]))
        assert ended == [], "nothing is reserved yet"
        assert group._create_placement_group(None) is handle
        trainer_internals.end_workers(SimpleNamespace(raybench_groups=[group]))
        assert ended == ["gone"]
        trainer_internals.end_workers(None)


class FakeGroup:
    """Stands for Train's worker group; notes what its workers are told to do."""

    def __init__(self, size: int, gpus: int = 0) -> None:
        self._size, self._gpus = size, gpus
        self.told: list[tuple[int, Any, dict[str, Any]]] = []

    def __len__(self) -> int:
        return self._size

    def get_resources_per_worker(self) -> dict[str, int]:
        return {"CPU": 1, "GPU": self._gpus}

    def execute_single_async(self, rank: int, function: Any, *given: Any, **arguments: Any) -> None:
        self.told.append((rank, function, arguments))


class TestFileMeeting:
    """Torch's store off the network; stock path: it listens on a port of rank 0."""

    def test_train_still_has_what_is_extended_and_called(self, torch_options: PoolOptions) -> None:
        from ray.train.torch.config import TorchConfig, _TorchBackend
        from ray.train.v2._internal.execution.worker_group import WorkerGroup as TrainGroup

        why = "then torch's store listens on a port of rank 0, as Ray has it"
        for name in ("on_start", "on_shutdown"):
            parameters = list(inspect.signature(getattr(_TorchBackend, name)).parameters)
            assert parameters == ["self", "worker_group", "backend_config"], why
        assert isinstance(TorchConfig.backend_cls, property), why
        assert isinstance(TorchConfig().timeout_s, int), why
        for name in (*rendezvous.USED, "__len__"):
            assert callable(getattr(TrainGroup, name, None)), why
        parameters = list(inspect.signature(TrainGroup.execute_single_async).parameters)
        assert parameters == ["self", "rank", "fn", "fn_args", "fn_kwargs"], why

    @pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (1, "nccl")])
    def test_all_ranks_of_a_local_group_meet_in_its_file(
        self,
        gpus: int,
        backend: str,
        torch_options: PoolOptions,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(ray, "get", lambda joining, timeout=None: joining)
        trainer = build_trainer(7, Placement("torch", 2), torch_options)
        config = pickle.loads(pickle.dumps(trainer.backend_config))  # it goes to the controller
        group = FakeGroup(2, gpus)
        config.backend_cls().on_start(group, config)
        told = [(rank, function.__name__) for rank, function, _ in group.told]
        hidden = [] if gpus else [(0, "_see_no_gpu"), (1, "_see_no_gpu")]
        assert told == [*hidden, (0, "_join"), (1, "_join")]
        arguments = group.told[-1][2]
        assert (arguments["backend"], arguments["member"], arguments["size"]) == (backend, 1, 2)
        assert arguments["file"] == str(Path(torch_options.scratch) / "group-7.store")
        alone = FakeGroup(1, gpus)
        config.backend_cls().on_start(alone, config)
        assert [function.__name__ for _, function, _ in alone.told] == ["_see_no_gpu"][gpus:]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        for _, function, _ in alone.told:
            function()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ("0,1" if gpus else "")


class TestNetworkMeeting:
    """Interfaces set and tried on a cluster, in both frameworks; stock path: they are guessed."""

    @pytest.fixture(params=["torch", "tensorflow"])
    def framework(self, request: pytest.FixtureRequest) -> str:
        pytest.importorskip(request.param)
        return str(request.param)

    def config(self, framework: str, scratch: Path) -> Any:
        where = replace(options(str(scratch), is_local=False), interface="ib0")
        trainer = build_trainer(0, Placement(framework, 2), where, ("id-b", "id-a"))
        scaling = trainer.scaling_config
        selectors = [{"ray.io/node-id": "id-b"}, {"ray.io/node-id": "id-a"}]
        assert scaling._label_selector_per_worker(2) == selectors
        return trainer.backend_config

    def test_the_interface_is_tried_before_ray_connects(
        self, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        story: list[Any] = []
        places = [Place("a", "ib0", "10.0.0.1"), Place("b", "ib0", "10.0.0.2")]

        def connect(group: Any, interface: str | None) -> list[Place]:
            story.append(interface)
            return places

        config = importlib.import_module(f"ray.train.{framework}.config")
        stock = config.__dict__[f"_{framework.capitalize()}Backend"]
        monkeypatch.setattr(rendezvous, "connect", connect)
        monkeypatch.setattr(stock, "on_start", lambda *given: story.append(len(group.told)))
        monkeypatch.setattr(ray, "get", lambda calls, timeout=None: calls)
        group, config = FakeGroup(2), self.config(framework, tmp_path)
        config.backend_cls().on_start(group, config)
        # Before Ray asks torch of GPUs, no worker of cores alone sees any.
        assert story == ["ib0", 2 if framework == "torch" else 0]
        called = "_see_no_gpu" if framework == "torch" else "_use_addresses"
        assert [function.__name__ for _, function, _ in group.told] == [called] * 2
        config.backend_cls().on_start(FakeGroup(1), config)
        assert len(story) == 3, "one worker alone talks to nobody"

    def test_an_interface_that_is_not_there_ends_the_group_in_a_sentence(self) -> None:
        said = rendezvous._set_interface("127.0.0.1", "nothing0", 2)
        with pytest.raises(rendezvous.Unreached) as refusal:
            rendezvous._raise_problem(str(said))
        error = RuntimeError(f"Training failed due to controller error:\n{refusal.value}\nmore")
        assert end_message(error) == said
        assert "nothing0" in said
        assert "RAYBENCH_INTERFACE" in said


def test_ray_is_asked_for_one_worker_that_has_it_all(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    spec = RunSpec(
        framework="tensorflow",
        strategy="single_process",
        num_workers=4,
        cpus_per_worker=2,
        gpus_per_worker=1,
    )
    where = options(str(tmp_path), is_local=False)
    trainer = build_trainer(0, spec.placement.group, where, ("id-a",))
    scaling = trainer.scaling_config
    assert scaling.num_workers == 1
    assert scaling.resources_per_worker == {"CPU": 8, "GPU": 4}
    told = trainer.train_loop_config["placement"]
    assert (told.replicas_per_process, told.cpus_per_worker) == (4, 8)
