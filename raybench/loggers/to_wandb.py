"""Weights & Biases: a run for every run, in a group of the study's name, and one for the winners.

Its charts are drawn over `train_s`, seconds of training. Where it writes, its own variables say:
WANDB_MODE (`offline` writes below the study's folder), WANDB_PROJECT, WANDB_ENTITY, WANDB_DIR,
WANDB_BASE_URL. Of the command line and the environment, which may hold secrets, nothing is sent.
"""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from raybench.loggers.sink import (
    Run,
    Winner,
    curve_values,
    params_of,
    run_figures,
    run_words,
    shown,
)
from raybench.stats.record import Evaluation, RunRecord

PROJECT = "raybench"
OFFLINE = ("offline", "dryrun")
SYNCED = ".synced"
"""End of the file's name that `wandb sync` leaves beside what it has uploaded."""


class WeightsAndBiases:
    """Writes through W&B's own process; every attempt of a run has an id of its own."""

    def __init__(self, folder: Path, study: str) -> None:
        self._folder, self._study = Path(os.environ.get("WANDB_DIR") or folder), study
        self._project = os.environ.get("WANDB_PROJECT") or PROJECT
        self._is_offline = os.environ.get("WANDB_MODE", "").lower() in OFFLINE
        url = os.environ.get("WANDB_BASE_URL", "wandb.ai")
        place = str(self._folder.absolute()) if self._is_offline else url
        self.place = shown(f"{place} {os.environ.get('WANDB_ENTITY', '')} {self._project}")
        self._runs: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Believe it: what the user has deleted there stays away."""
        del name
        return True

    def start(self, run: Run, earlier: str | None) -> str:
        """Begin a run with its spec; what it had offline goes, if it was not uploaded."""
        self._take_away(run.name, earlier)
        config = {"role": run.role, **params_of(run.spec)}
        opened = self._open(run.name, role=run.role, config=config)
        opened.define_metric("train_s", hidden=True)
        opened.define_metric("*", step_metric="train_s")
        self._runs[run.name] = opened
        return str(opened.id)

    def points(self, run: Run, points: Sequence[Evaluation]) -> None:
        """Add evaluations to a run's curve."""
        metric = run.spec.objective.judged_by.name
        for point in points:
            self._runs[run.name].log(curve_values(point, metric))

    def end(self, run: Run, record: RunRecord) -> None:
        """End a run with its figures."""
        opened = self._runs.pop(run.name)
        opened.summary.update(run_figures(record) | run_words(record))
        opened.finish(exit_code=0 if record.failure is None else 1)

    def cut_off(self, run: Run) -> None:
        """End a run that nobody trains any more."""
        opened = self._runs.pop(run.name)
        opened.summary.update({"state": "cut off"})
        opened.finish(exit_code=1)

    def winners(self, winners: Sequence[Winner], earlier: str | None) -> str:
        """Write a run whose summary holds the winners."""
        self._take_away("winners", earlier)
        opened = self._open("winners", role="winners", config={})
        for winner in winners:
            words = {"trial": winner.trial, "config": shown(winner.config)}
            found = words | {"is_confirmed": winner.is_confirmed} | winner.figures
            opened.summary.update({f"{winner.title}.{key}": one for key, one in found.items()})
            spec = params_of(winner.spec)
            opened.config.update({f"{winner.title}.{key}": one for key, one in spec.items()})
        opened.finish(exit_code=0)
        return str(opened.id)

    def flush(self) -> None:
        """Nothing is held back: W&B's own process has it."""

    def close(self) -> str:
        """End W&B's process; return where to look."""
        wandb.teardown()
        if self._is_offline:
            return f"wandb sync {self._folder / 'wandb'}/offline-run-*"
        return f"project {self._project}, group {self._study}"

    def _open(self, name: str, *, role: str, config: Mapping[str, Any]) -> Any:
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
            id=uuid.uuid4().hex[:16],
            config=dict(config),
            dir=str(self._folder),
            settings=settings,
            reinit="create_new",
        )

    def _take_away(self, name: str, earlier: str | None) -> None:
        """Delete what an earlier attempt wrote and nobody uploaded; mark one that still runs."""
        opened = self._runs.pop(name, None)
        if opened is not None:
            opened.summary.update({"state": "superseded"})
            opened.finish(exit_code=1)
        if earlier is None:
            return
        for folder in (self._folder / "wandb").glob(f"offline-run-*-{earlier}"):
            if not any(folder.glob(f"*{SYNCED}")):
                shutil.rmtree(folder)


def open_sink(folder: Path, study: str) -> WeightsAndBiases:
    """Return the sink of a study."""
    return WeightsAndBiases(folder, study)
