"""The run spec: everything that determines one training, and what of it goes together."""

from typing import Any

from pydantic import model_validator

from raybench.core.dataset_spec import DatasetSpec as DatasetSpec
from raybench.core.dataset_spec import Task as Task
from raybench.core.placement import Placement
from raybench.core.run_keys import FRAMEWORKS as FRAMEWORKS
from raybench.core.run_keys import OPTIMIZERS as OPTIMIZERS
from raybench.core.run_keys import OWN_RAMP, RunKeys

NOT_IN_ONE_PROCESS: dict[str, object] = {
    "placement_strategy": "pack",
    "exchange_gradients": True,
    "gradient_compression": "none",
    "bucket_mb": 25.0,
}
"""What says how processes are placed and exchange gradients, as it is where nobody says it."""


class RunSpec(RunKeys):
    """Everything that determines one training. Frozen; unknown keys are refused."""

    @model_validator(mode="after")
    def _one_warm_up(self) -> "RunSpec":
        if self.warmup_samples and self.warmup_epochs:
            raise ValueError("warmup_samples and warmup_epochs are one warm-up; keep one of them")
        for key in ("warmup_epochs", "warmup_samples"):
            if self.schedule in OWN_RAMP and getattr(self, key):
                raise ValueError(f"schedule {self.schedule} has a ramp of its own; set {key}: 0")
        return self

    @model_validator(mode="after")
    def _one_average(self) -> "RunSpec":
        if self.optimizer != "schedule_free_adamw":
            return self
        if self.schedule != "constant":
            raise ValueError(
                "schedule_free_adamw averages the weights in place of a schedule; set schedule: "
                f"constant (with a warm-up), not {self.schedule}"
            )
        if self.ema_decay is not None:
            raise ValueError("schedule_free_adamw averages the weights itself; leave out ema_decay")
        if self.beta1 == 0:
            raise ValueError("schedule_free_adamw needs beta1 above 0; 0.9 is usual")
        return self

    @model_validator(mode="after")
    def _whole_gpus(self) -> "RunSpec":
        if 0 < self.gpus_per_worker < 1 < self.num_workers:
            raise ValueError(
                f"gpus_per_worker {self.gpus_per_worker} is for num_workers 1: several workers "
                "need a whole GPU each (NCCL refuses two on one); set gpus_per_worker: 1"
            )
        if self.accelerator_type and not self.gpus_per_worker:
            raise ValueError("accelerator_type is of GPUs; set gpus_per_worker: 1 with it")
        return self

    @model_validator(mode="after")
    def _one_process(self) -> "RunSpec":
        if self.strategy != "single_process":
            return self
        for key, usual in NOT_IN_ONE_PROCESS.items():
            value = getattr(self, key)
            if value != usual:
                shown = str(value).lower() if isinstance(value, bool) else value
                raise ValueError(
                    f"{key}: {shown} is of workers in processes of their own; leave it out with "
                    "strategy: single_process, or set strategy: distributed"
                )
        if self.framework == "torch" and self.num_workers > 1 and not self.gpus_per_worker:
            raise ValueError(
                "strategy single_process of torch needs GPUs (nn.DataParallel has no CPU "
                "devices); set gpus_per_worker: 1 or strategy: distributed"
            )
        return self

    @model_validator(mode="after")
    def _one_batch_norm(self) -> "RunSpec":
        if not self.sync_batch_norm:
            return self
        if self.num_workers > 1 and not self.gpus_per_worker:
            raise ValueError(
                "sync_batch_norm is for workers on GPUs; set gpus_per_worker: 1 or "
                "sync_batch_norm: false"
            )
        if self.accumulate > 1:
            raise ValueError(
                "sync_batch_norm normalises over all samples of a step, which several passes do "
                "not see at once; set accumulate: 1"
            )
        if self.framework == "torch" and self.replicas_per_process > 1:
            raise ValueError(
                "sync_batch_norm is not for strategy single_process of torch (nn.DataParallel has "
                "no way between its replicas); set strategy: distributed"
            )
        return self

    @property
    def replicas_per_process(self) -> int:
        """Replicas of the model in each process: all of them, or one."""
        return self.num_workers if self.strategy == "single_process" else 1

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step: per worker x workers x accumulate."""
        return self.batch_size_per_worker * self.num_workers * self.accumulate

    @property
    def placement(self) -> Placement:
        """How it is spread over processes."""
        workers = Placement(
            self.framework,
            self.num_workers,
            self.batch_size_per_worker,
            self.cpus_per_worker,
            self.gpus_per_worker,
            self.placement_strategy,
            self.accelerator_type,
        )
        return workers.in_one_process if self.strategy == "single_process" else workers

    def document(self) -> dict[str, Any]:
        """Return the spec as plain data for YAML or JSON, every key included."""
        return self.model_dump(mode="json")
