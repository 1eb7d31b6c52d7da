"""Options of every command, which are also the arguments of the Python function of its name.

The help texts of the command line are the strings below the options.
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
    """Return the seconds of a text such as `30min` or `2h`; return other values as they are."""
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
        """Return the options that name what to train as settings of `--set`.

        Args:
            below: prefix of their keys.

        Raises:
            UserError: several are named, or one is malformed.
        """
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
    """Run spec to run before all other trials (as `search.first`); repeatable."""
    seed_from: str | None = None
    """Results of the same task for the sampler to learn from: the folder or URL of an
    earlier study or training, a CSV (columns named as settings, with time_to_target_s or the
    metric), or an Optuna storage (a journal, a SQLite file, a URL; #NAME of one of several)."""
    confirm: str | None = None
    """Confirmation runs with new seeds: of the best few to find the winner, then of the winner
    alone."""
    no_confirm: bool = False
    """Skip the confirmation runs: the result is a single run each."""
    more: int | None = None
    """Skip the search and add this many repeat runs, in total, for the configurations of a finished
    study that are still tied (after Ctrl-C or the time budget the same command runs the rest)."""
    price: float | None = None
    """Price of a worker-hour; results are given in money, too."""
    concurrency: int | None = None
    """Number of concurrent trials."""
    isolation: Literal["none", "process"] = "none"
    """process: new worker processes for every trial (slower; for code that leaks)."""
    verbose: bool = False
    """Print every table at the end."""
    fresh: bool = False
    """Start a new study instead of resuming the existing one."""
    keep_code_change: bool = False
    """Continue a study although your code has changed; the column `code` says what a run had."""


class TrainOptions(LoggedOptions):
    """Options of one training."""

    OF: ClassVar[str] = "train"
    spec: str | Path | dict[str, Any] | RunSpec | None = None
    """Run spec, or a study's folder (its best.yaml); default: the default run."""


class DiagnoseOptions(Options):
    """Options of a diagnosis."""

    OF: ClassVar[str] = "diagnose"
    spec: str | Path | dict[str, Any] | RunSpec | None = None
    """Run spec, or a study's folder (its best.yaml); default: the default run."""
    repeats: int = 4
    """Rounds of all probes, at least 3; up to twice as many if their spread is too large."""
    seconds: float = 0.5
    """Seconds of training between two readings of a probe, which has four; with --fastest two."""
    fastest: bool = False
    """Find what makes the run faster and leaves its curve alone instead: framework, workers,
    micro-batch, prefetch, compile; write the fastest as fastest.yaml."""


class ScaleOptions(LoggedOptions):
    """Options of a scaling study."""

    OF: ClassVar[str] = "scale"
    study: str | Path | dict[str, Any] | ScalingStudy | None = None
    """A study's file, or a named study; default: the shipped small model, weak and strong."""
    quick: bool = False
    """Run a version of a named study that is small enough for two cores."""
    predict: str | None = None
    """Worker counts to predict, as 8,16,64, at every measured batch size, on nodes as full as the
    fullest measured; or a CSV of cells with the columns of --fit but step_s."""
    until: str | None = None
    """Half width of intervals, as 10%: run more cells, those that narrow the predictions most,
    until the 90 % interval of each prediction of --predict is that narrow."""
    time_budget: Duration = None
    """Time for everything."""
    fit: str | None = None
    """Run nothing, fit the steps of this CSV: columns num_workers, num_nodes,
    batch_size_per_worker, step_s; optional: accumulate (passes of a step), model, gpu_type (one
    fit for each pair of them); rows of the same cell are repeats. Predictions, written to the file
    --out: step_s, low_s and high_s (90 %), samples_per_s, efficiency."""
    keep_code_change: bool = False
    """Continue a study although your code has changed; the column `code` says what a run had."""
    network: str | None = None
    """With --fit: how many times longer an all-reduce takes between hosts than inside, or a file of
    what raybench doctor --json printed."""


class CompareOptions(FollowedOptions):
    """Options of a comparison."""

    OF: ClassVar[str] = "compare"
    sides: list[str | Path | dict[str, Any] | RunSpec] = []
    """Present configuration, then its replacements: run specs, folders of studies (their
    best.yaml), or spaces of one configuration."""
    runs: int = 20
    """Maximum number of pairs."""
    time_budget: Duration = None
    """Time for everything."""
    smallest: str = "2%"
    """Smallest difference that matters; 0 for any."""
    session: str | None = None
    """File that keeps the error rate of many comparisons together below 5 %: each spends a part of
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
"""Names of values in the command line's help; by default the option's name."""
POSITIONAL = ("space", "spec", "study", "sides")
"""Options that are positional arguments of the command line."""
