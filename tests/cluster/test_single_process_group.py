"""The group of a run whose replicas are all in one process: one worker that has what all need."""

from pathlib import Path

import pytest

from raybench.cluster.layout import Node
from raybench.cluster.worker_group import PoolOptions, build_trainer
from raybench.spec.run import RunSpec


def test_ray_is_asked_for_one_worker_that_has_it_all(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    spec = RunSpec(
        framework="tensorflow",
        strategy="single_process",
        num_workers=4,
        cpus_per_worker=2,
        gpus_per_worker=1,
    )
    options = PoolOptions(
        scratch=str(tmp_path), search_path="", nodes=(Node(8, 4, "id-a"),), is_local=False
    )
    trainer = build_trainer(0, spec.placement.group, options, (0,))
    scaling = trainer.scaling_config
    assert scaling.num_workers == 1
    assert scaling.resources_per_worker == {"CPU": 8, "GPU": 4}
    told = trainer.train_loop_config
    assert (told["num_replicas"], told["cpus_per_worker"]) == (4, 8)
