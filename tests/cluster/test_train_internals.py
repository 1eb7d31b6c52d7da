"""Canaries of Ray Train: the installed one has what `ray_internals` relies on, and the stock path
is taken where it has not. Ray is imported here, never started."""

import asyncio
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster.ray_internals import trainer as trainer_internals
from raybench.cluster.trainers import PoolOptions, build_trainer, trainer_class
from raybench.core.placement import Placement

INTERNALS = "raybench.cluster.ray_internals"


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
    return PoolOptions(scratch=scratch, search_path="", node_ids=("here",), is_local=is_local)


@pytest.fixture
def torch_options(tmp_path: Path) -> PoolOptions:
    pytest.importorskip("torch")
    return options(str(tmp_path))


def names(callbacks: list[Any]) -> set[str]:
    return {type(callback).__name__ for callback in callbacks}


class TestCallbacks:
    """Two actors fewer; stock path: they start."""

    def test_train_still_makes_them_by_that_method(self, torch_options: PoolOptions) -> None:
        trainer = build_trainer(0, Placement("torch", 1), torch_options)
        stock = trainer_class("torch")._create_default_callbacks(trainer)
        why = "then Train starts what it always does"
        assert set(trainer_internals.UNUSED_CALLBACKS) <= names(stock), why
        assert names(trainer._create_default_callbacks()) == names(stock) - set(
            trainer_internals.UNUSED_CALLBACKS
        )

    def test_without_it_the_trainer_is_left_alone(self) -> None:
        trainer = SimpleNamespace(fit=1)
        assert vars(trainer_internals.without_unused_callbacks(trainer)) == {"fit": 1}


class FakeController:
    """Stands for TrainController, which would start workers."""

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
        from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
        from ray.train.v2.api import data_parallel_trainer

        from raybench.cluster.ray_internals import controller as module

        monkeypatch.setattr(module, "TrainController", FakeController)
        monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)
        placement = Placement("torch", 2)
        where = options(torch_options.scratch, is_local=is_local)
        result: Any = build_trainer(0, placement, where).fit()
        controller, why = result.controller, "then Train's controller is an actor again"
        assert controller.has_run, why
        accepted = set(inspect.signature(TrainController.__init__).parameters)
        assert set(controller.arguments) < accepted, why
        policy = controller.arguments["scaling_policy"]
        assert type(policy) is (module.FixedPlace if is_local else FixedScalingPolicy), why
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

    @pytest.mark.parametrize(
        "missing",
        ["TrainController", "FixedScalingPolicy", "get_result", "_send_resource_request"],
    )
    def test_without_one_of_them_the_trainer_is_left_alone(
        self, missing: str, torch_options: PoolOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.v2._internal.execution import controller
        from ray.train.v2._internal.execution.scaling_policy import ScalingPolicy, fixed

        homes: dict[str, Any] = {
            "TrainController": controller,
            "FixedScalingPolicy": fixed,
            "get_result": controller.TrainController,
            "_send_resource_request": ScalingPolicy,
        }
        monkeypatch.delattr(homes[missing], missing)
        monkeypatch.delitem(sys.modules, f"{INTERNALS}.controller", raising=False)
        trainer = build_trainer(0, Placement("torch", 1), torch_options)
        assert "_initialize_and_run_controller" not in vars(trainer)

    def test_a_trainer_that_starts_its_controller_otherwise_is_left_alone(
        self, torch_options: PoolOptions
    ) -> None:
        trainer = SimpleNamespace(fit=1)
        assert vars(trainer_internals.controlled_here(trainer, autoscales=False)) == {"fit": 1}


class FakeGroup:
    """Stands for Train's worker group; notes what its workers are told to do."""

    def __init__(self, size: int, gpus: int = 0) -> None:
        self._size, self._gpus = size, gpus
        self.told: list[tuple[int, Any, dict[str, Any]]] = []

    def __len__(self) -> int:
        return self._size

    def get_resources_per_worker(self) -> dict[str, int]:
        return {"CPU": 1, "GPU": self._gpus}

    def execute_single_async(self, rank: int, function: Any, **arguments: Any) -> None:
        self.told.append((rank, function, arguments))


class TestFileMeeting:
    """Torch's store off the network; stock path: it listens on a port of rank 0."""

    def test_train_still_has_what_is_extended_and_called(self, torch_options: PoolOptions) -> None:
        from ray.train.torch.config import TorchConfig, _TorchBackend
        from ray.train.v2._internal.execution.worker_group import WorkerGroup as TrainGroup

        from raybench.cluster.ray_internals.file_meeting import USED

        why = "then torch's store listens on a port of rank 0, as Ray has it"
        for name in ("on_start", "on_shutdown"):
            parameters = list(inspect.signature(getattr(_TorchBackend, name)).parameters)
            assert parameters == ["self", "worker_group", "backend_config"], why
        assert isinstance(TorchConfig.backend_cls, property), why
        assert isinstance(TorchConfig().timeout_s, int), why
        for name in (*USED, "__len__"):
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
        monkeypatch.setattr(ray, "get", lambda joining: joining)
        trainer = build_trainer(7, Placement("torch", 2), torch_options)
        config = pickle.loads(pickle.dumps(trainer.backend_config))  # it goes to the workers
        group = FakeGroup(2, gpus)
        config.backend_cls().on_start(group, config)
        assert [rank for rank, _, _ in group.told] == [0, 1]
        arguments = group.told[1][2]
        assert (arguments["backend"], arguments["member"], arguments["size"]) == (backend, 1, 2)
        assert arguments["file"] == str(Path(torch_options.scratch) / "group-7.store")
        alone = FakeGroup(1)
        config.backend_cls().on_start(alone, config)
        assert alone.told == []

    def test_a_group_on_a_cluster_meets_as_ray_has_it(self, torch_options: PoolOptions) -> None:
        where = options(torch_options.scratch, is_local=False)
        config = build_trainer(0, Placement("torch", 2), where).backend_config
        assert type(config).__module__.startswith("ray."), "a file is on one host"

    def test_without_the_backend_ranks_meet_as_ray_has_it(
        self, torch_options: PoolOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.torch import config

        monkeypatch.delattr(config, "_TorchBackend")
        monkeypatch.delitem(sys.modules, f"{INTERNALS}.file_meeting", raising=False)
        assert trainer_internals.meeting_in_a_file("file") == {}

    @pytest.mark.parametrize("name", ["execute_single_async", "get_resources_per_worker"])
    def test_in_a_group_that_is_otherwise_ranks_meet_as_ray_has_it(
        self, name: str, torch_options: PoolOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.train.torch.config import _TorchBackend

        asked: list[Any] = []
        monkeypatch.setattr(_TorchBackend, "on_start", lambda *given: asked.append(given[1:]))
        monkeypatch.delattr(FakeGroup, name)
        group, (config,) = FakeGroup(2), trainer_internals.meeting_in_a_file("file").values()
        config.backend_cls().on_start(group, config)
        assert asked == [(group, config)]
