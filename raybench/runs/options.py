"""Options of a command, or of the function of its name in Python: every option with its
default. The arguments of the command line are made of these classes.
"""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from raybench.spec.documents import Document
from raybench.spec.errors import UserError
from raybench.spec.own_loop import MARK, is_own_loop
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import StudySpec
from raybench.spec.text import seconds_of


def duration(given: Any) -> Any:
    """Return the seconds of a text such as `30min` or `2h`, and what is no text as it is."""
    return (seconds_of(given) or float(given)) if isinstance(given, str) else given


Duration = Annotated[float | None, BeforeValidator(duration)]
TIME = "90|30min|2h"


class Options(Document):
    """Options shared by every command that runs trials."""

    OF: ClassVar[str]
    settings: list[str] = []
    """Change any key, KEY=VALUE, the value is YAML; repeatable."""
    out: str | None = None
    """Results folder, or a URL: s3://, gs://, abfs:// (default: one below results/)."""
    workload: str | None = None
    """Workload to train: a shipped name, or module:Class."""
    train: str | None = None
    """A training loop of your own to run, FILE.py:FUNCTION: it is given a raybench.Run."""
    command: str | None = None
    """A command to run, such as "python train.py --lr {learning_rate}": it prints what it reaches
    in lines of JSON, {"accuracy": 0.91, "samples": 50000}."""
    metric_pattern: str | None = None
    """Regular expression for a line that prints the metric; its first group is the number."""
    address: str | None = None
    """A Ray cluster to use, e.g. auto; else one is started."""
    wait: Duration = None
    """Maximum total time a run may wait for resources (default: unlimited)."""
    seed: int | None = None
    """Seed of the search or the training."""
    dry_run: bool = False
    """Print the plan, start nothing."""

    def trained(self, *, below: str = "") -> list[str]:
        """Return what is to be trained as `--set` has it, its keys `below` another; UserError where
        several are named."""
        own = {"--workload": self.workload, "--train": self.train, "--command": self.command}
        named = [name for name, value in own.items() if value is not None]
        if len(named) > 1:
            raise UserError(f"{' and '.join(named)}: each names what to train; keep one of them.")
        if self.train is not None and not is_own_loop(self.train):
            raise UserError(f"--train {self.train}: write it FILE.py:FUNCTION, as train.py:train.")
        command = None if self.command is None else f"{MARK}{self.command.removeprefix(MARK)}"
        found = {"workload": self.workload or self.train or command}
        found["objective.metric_pattern"] = self.metric_pattern
        return [f"{below}{key}={json.dumps(one)}" for key, one in found.items() if one is not None]


class FollowedOptions(Options):
    """Options shared by every command that shows its runs one by one."""

    progress: Literal["screen", "jsonl"] = "screen"
    """Progress display; jsonl: JSON objects, one a line, on stderr."""


class LoggedOptions(FollowedOptions):
    """Options shared by every command that writes to other tools."""

    log: list[str] = []
    """Write the runs to tensorboard, mlflow or wandb too, while they are trained; repeatable."""


class TuneOptions(LoggedOptions):
    """Options of a search."""

    OF: ClassVar[str] = "tune"
    space: str | Path | dict[str, Any] | StudySpec = "digits"
    """Search space: a file, or a shipped name."""
    trials: int | None = None
    """Number of trials."""
    time_budget: Duration = None
    """Time for everything, confirmation included."""
    workers: str | None = None
    """Worker counts to search."""
    gpus_per_worker: float | None = None
    """GPUs per worker: 0, 1 or a part."""
    target: str | None = None
    """Validation metric to reach: 0.95, or auto."""
    first: list[str | Path | dict[str, Any] | RunSpec] = []
    """Run spec of your own to run before all other trials (as `search.first`); repeatable."""
    seed_from: str | None = None
    """Results of the same task for the sampler to learn from: the folder or URL of an
    earlier study or training, a CSV (columns named as settings, with time_to_target_s or the
    metric), or an Optuna storage (a journal, a SQLite file, a URL; #NAME of one of several)."""
    confirm: str | None = None
    """Runs with new seeds: of the best few to find the winner, then of the
    winner alone."""
    no_confirm: bool = False
    """Leave the result unconfirmed: one trial each."""
    more: int | None = None
    """No search: run what is statistically tied in a finished study so many times more, in all
    (after Ctrl-C or the time budget the same command runs the rest)."""
    price: float | None = None
    """Money per worker-hour: winners are given in money, too."""
    concurrency: int | None = None
    """Trials at the same time."""
    isolation: Literal["none", "process"] = "none"
    """process: new worker processes for every trial (slower; for code that leaks)."""
    verbose: bool = False
    """Print every table at the end."""
    fresh: bool = False
    """Start anew beside it, do not continue."""
    keep_code_change: bool = False
    """Continue although your code has changed since; the column `code` tells the runs apart."""


class TrainOptions(LoggedOptions):
    """Options of one training."""

    OF: ClassVar[str] = "train"
    spec: str | Path | dict[str, Any] | RunSpec | None = None
    """Run spec, or a study's folder (its best.yaml); none: the defaults."""


class DiagnoseOptions(Options):
    """Options of a diagnosis."""

    OF: ClassVar[str] = "diagnose"
    spec: str | Path | dict[str, Any] | RunSpec | None = None
    """Run spec, or a study's folder (its best.yaml); none: the defaults."""
    repeats: int = 4
    """Rounds of all probes, from 3; where their spread hides the answer, up to twice as many."""
    seconds: float = 0.5
    """Seconds of training between two readings of a probe, which has four; with --fastest two."""
    fastest: bool = False
    """Measure instead what makes the run faster and leaves its curve alone: framework, workers,
    micro-batch, prefetch, compile; write the fastest as fastest.yaml."""


class ScaleOptions(LoggedOptions):
    """Options of a scaling study."""

    OF: ClassVar[str] = "scale"
    study: str | Path | dict[str, Any] | ScalingStudy | None = None
    """A study's file, or a named study; none: the shipped small model, weak and strong."""
    quick: bool = False
    """A named study small enough for two cores."""
    predict: str | None = None
    """Numbers of workers, as 8,16,64: at every batch size measured, on nodes as full as the fullest
    measured; or a CSV of cells with the columns of --fit but step_s."""
    until: str | None = None
    """Width of intervals, as 10%: run further cells, those that narrow the predictions most, until
    the 90 % interval of each that --predict asks for is at most so much to each side."""
    time_budget: Duration = None
    """Time for everything."""
    fit: str | None = None
    """Run nothing, fit the steps of this CSV: columns num_workers, num_nodes,
    batch_size_per_worker, step_s; also read: accumulate (passes of a step), model, gpu_type (one
    fit for each pair of them); rows of the same cell are repeats. Predictions, which --out names a
    file for: step_s, low_s and high_s (90 %), samples_per_s, efficiency."""
    keep_code_change: bool = False
    """Continue although your code has changed since; the column `code` tells the runs apart."""
    network: str | None = None
    """With --fit: how many times longer an all-reduce takes between hosts than inside, or a file of
    what raybench doctor --json printed."""


class CompareOptions(FollowedOptions):
    """Options of a comparison."""

    OF: ClassVar[str] = "compare"
    sides: list[str | Path | dict[str, Any] | RunSpec] = []
    """Present configuration, then what would replace it: run specs, folders of studies (their
    best.yaml), or spaces of one configuration."""
    runs: int = 20
    """Pairs at most."""
    time_budget: Duration = None
    """Time for everything."""
    smallest: str = "2%"
    """The least difference that matters; 0 looks for any."""
    session: str | None = None
    """Keep the error of many comparisons together below 5 %, in this file: each spends a part of
    it."""


OPTIONS: dict[str, type[Options]] = {
    one.OF: one
    for one in (TuneOptions, TrainOptions, ScaleOptions, DiagnoseOptions, CompareOptions)
}
"""Options by command."""
METAVARS = {
    "settings": "KEY=VALUE",
    "out": "DIR",
    "wait": TIME,
    "log": "TOOL",
    "train": "FILE.py:FUNCTION",
    "metric_pattern": "REGEX",
    "space": "SPACE.yaml",
    "first": "SPEC.yaml",
    "time_budget": TIME,
    "price": "MONEY",
    "workers": "1,2,4",
    "confirm": "race=24,fresh=3",
    "spec": "SPEC.yaml",
    "study": "STUDY.yaml|NAME",
    "predict": "8,16,64|FILE.csv",
    "network": "RATIO|FILE",
    "until": "SHARE",
    "sides": "A B",
}
"""Names of the values in the command line's help; else by the option's name."""
POSITIONAL = ("space", "spec", "study", "sides")
"""Options that need no name there."""
