"""Weights & Biases: one W&B run for each run, in a group named after the study.

Charts are plotted over `train_s`, the training seconds. The environment variables WANDB_MODE
(`offline` writes to the results folder), WANDB_PROJECT, WANDB_ENTITY, WANDB_DIR and WANDB_BASE_URL
set the destination. The command line and the environment are not sent, since they may contain
secrets.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from raybench.loggers.follow import CUT_OFF, Figures, LoggedRun, Sink, params_of

PROJECT = "raybench"
OFFLINE = ("offline", "dryrun")


class _WeightsAndBiases(Sink):
    """Writes to Weights & Biases through its service process.

    All attempts of a run have the same W&B id, so that a later attempt replaces an earlier one.
    """

    def __init__(self, folder: Path, study: str) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")  # else the login prints
        self._folder, self._study = Path(os.environ.get("WANDB_DIR") or folder), study
        self._study_path = folder.absolute()
        self._project = os.environ.get("WANDB_PROJECT") or PROJECT
        self._is_offline = os.environ.get("WANDB_MODE", "").lower() in OFFLINE
        self._runs: dict[str, Any] = {}

    def start(self, run: LoggedRun) -> None:
        config = {"role": run.role, **params_of(run.spec)}
        opened = self._open(run.name, role=run.role, config=config)
        opened.define_metric("train_s", hidden=True)
        opened.define_metric("*", step_metric="train_s")
        self._runs[run.name] = opened

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        for values in points:
            self._runs[run.name].log(dict(values))

    def end(self, run: LoggedRun, figures: Figures, texts: Mapping[str, str]) -> None:
        is_well = "failure" not in texts and texts != CUT_OFF
        self._finish(run.name, {**figures, **texts}, is_well=is_well)

    def close(self) -> str:
        wandb.teardown()
        if self._is_offline:
            return f"wandb sync {self._folder / 'wandb'}/offline-run-*"
        return f"project {self._project}, group {self._study}"

    def _finish(self, name: str, summary: Mapping[str, Any], *, is_well: bool) -> None:
        opened = self._runs.pop(name)
        opened.summary.update(summary)
        opened.finish(exit_code=0 if is_well else 1)

    def _open(self, name: str, *, role: str, config: Mapping[str, Any]) -> Any:
        """Start a W&B run; offline files of earlier attempts that were not uploaded are deleted."""
        if name in self._runs:
            self._finish(name, {"state": "superseded"}, is_well=False)
        number = hashlib.sha256(f"{self._study_path} {name}".encode()).hexdigest()[:16]
        for folder in (self._folder / "wandb").glob(f"offline-run-*-{number}"):
            if not any(folder.glob("*.synced")):  # `wandb sync` adds it
                shutil.rmtree(folder)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=20,
        )
        return wandb.init(
            project=self._project,
            group=self._study,
            name=name,
            job_type=role,
            id=number,
            config=dict(config),
            dir=str(self._folder),
            settings=settings,
            reinit="create_new",
        )


open_sink = _WeightsAndBiases
