"""Options of every command, a class each: the command line and Python's functions are made of them.

Text of the command line and the values of a Python call become an option's type here, once. What an
option means for a study or a run is checked where that is built.
"""

import contextlib
import inspect
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ValidationInfo

from raybench.spec.dataset_spec import Task
from raybench.spec.documents import Document, parse_settings, parse_yaml
from raybench.spec.errors import UserError
from raybench.spec.own_loop import MARK, is_own_loop
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import StudySpec
from raybench.spec.text import clean, seconds_of


@dataclass(frozen=True)
class Argument:
    """An option on the command line, where its name, type and default do not say it all."""

    metavar: str | None = None
    """Name of the value in the help."""
    parse: Callable[[str], Any] | None = None
    """Reads one value; by default the first type of the option does, or each value of a list."""
    flag: str | None = None
    """Name of the flag, where it is not the option's."""
    is_positional: bool = False
    nargs: str | None = None
    """Number of values after one flag, as argparse has it."""


def duration(given: Any) -> Any:
    """Return the seconds of a text such as `30min` or `2h`, and any other value as it is."""
    return (seconds_of(given) or float(given)) if isinstance(given, str) else given


def age(text: str) -> float:
    """Return the seconds of an age such as `30d`."""
    seconds = seconds_of(text)
    if seconds is None:
        raise ArgumentTypeError(f"{text} is no age such as 12h, 30d or 8w")
    return seconds


def deadline_seconds(given: Any) -> Any:
    """Return the seconds of a deadline, a number or a text such as `2h`."""
    seconds = None if given is None else seconds_of(str(given))
    if given is not None and seconds is None:
        raise UserError(f"--deadline {clean(str(given))[:40]}: write it as 90s, 30min, 2h or 1d.")
    return seconds


def share(given: Any, info: ValidationInfo) -> Any:
    """Return `2%` or `0.02` as a share."""
    if given is None:
        return None
    text, value = str(given), math.nan
    with contextlib.suppress(ValueError):
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 <= value < 1.0:
        raise UserError(
            f"--{info.field_name} {text}: must be a share below all, such as 2% or 0.02."
        )
    return value


def number_or_word(given: Any) -> Any:
    """Return the number that a text holds, and any other text as it is."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def text(given: Any) -> Any:
    """Return a path, a number or a list of numbers as the command line writes it: `8,16,64`."""
    if isinstance(given, list | tuple | range):
        return ",".join(map(str, given))
    return str(given) if isinstance(given, PurePath | int | float) else given


def importable(given: Any) -> Any:
    """Return the name by which workers import a class or a function."""
    if inspect.isfunction(given):
        return f"{inspect.getsourcefile(given)}:{given.__qualname__}"
    if not isinstance(given, type):
        return given
    if given.__module__ == "__main__":
        raise UserError(
            f"workload {given.__name__}: workers import it, which they cannot from a notebook "
            "or the script itself; write the class in a file of its own."
        )
    return f"{given.__module__}:{given.__qualname__}"


def one_or_more(given: Any) -> Any:
    """Return a list: of one value, if that is given alone."""
    if isinstance(given, list | tuple | range):
        return list(given)
    return given if given is None else [given]


def worker_counts(given: Any) -> Any:
    """Return the worker counts of `1,2,4`, of one number, or of several."""
    return one_or_more(parse_yaml(f"[{given}]", "--workers") if isinstance(given, str) else given)


def confirmation(given: Any) -> Any:
    """Return the keys of `race=24,fresh=3` and their values."""
    if not isinstance(given, str):
        return dict(given) if isinstance(given, Mapping) else given
    parts = given.split(",")
    if not all("=" in part for part in parts):
        raise UserError(f"--confirm {given}: write it as race=40,fresh=5, or only one of them.")
    return parse_settings([part.replace(" ", "") for part in parts])


def changes(given: Any) -> Any:
    """Return the keys and values of a list of `--set KEY=VALUE`."""
    return parse_settings(given) if isinstance(given, list) else given


TIME = "90|30min|2h"
Duration = Annotated[float | None, BeforeValidator(duration), Argument(TIME, parse=duration)]
Text = Annotated[str | None, BeforeValidator(text)]
Tools = Annotated[list[str], BeforeValidator(one_or_more), Argument("TOOL")]
Spec = str | Path | dict[str, Any] | RunSpec


class Options(Document):
    """Base of the options of a command."""

    OF: ClassVar[str]
    """Name of the command."""


class TrialOptions(Options):
    """Options shared by every command that runs trials."""

    settings: Annotated[
        dict[str, Any], BeforeValidator(changes), Argument("KEY=VALUE", flag="set")
    ] = {}
    """Change any key, KEY=VALUE, the value is YAML; repeatable."""
    out: Annotated[Text, Argument("DIR")] = None
    """Results folder, or a URL: s3://, gs://, abfs:// (default: one below results/)."""
    workload: Annotated[str | None, BeforeValidator(importable)] = None
    """Workload to train: a shipped name, or module:Class."""
    train: Annotated[str | None, BeforeValidator(importable), Argument("FILE.py:FUNCTION")] = None
    """A training loop of your own to run, FILE.py:FUNCTION: it is given a raybench.Run."""
    command: str | None = None
    """A command to run, such as "python train.py --lr {learning_rate}": it prints what it reaches
    in lines of JSON, {"accuracy": 0.91, "samples": 50000}."""
    metric_pattern: Annotated[str | None, Argument("REGEX")] = None
    """Regular expression for a line that prints the metric; its first group is the number."""
    address: str | None = None
    """A Ray cluster to use, e.g. auto; else one is started."""
    wait: Duration = None
    """Maximum total time a run may wait for resources (default: unlimited)."""
    seed: int | None = None
    """Seed of the search or the training."""
    dry_run: bool = False
    """Print the plan, start nothing."""

    def trained(self, *, below: str = "") -> dict[str, Any]:
        """Return the keys that say what to train, each `below` another, as `settings` has them.

        Raises:
            UserError: Several of `--workload`, `--train` and `--command` are given.
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
        return {f"{below}{key}": one for key, one in found.items() if one is not None}


class FollowedOptions(TrialOptions):
    """Options shared by every command that shows its runs one by one."""

    progress: Literal["screen", "jsonl"] = "screen"
    """Progress display; jsonl: JSON objects, one a line, on stderr."""


class LoggedOptions(FollowedOptions):
    """Options shared by every command that writes to other tools."""

    log: Tools = []
    """Write the runs to tensorboard, mlflow or wandb too, while they are trained; repeatable."""


class TuneOptions(LoggedOptions):
    """Options of a search."""

    OF: ClassVar[str] = "tune"
    space: Annotated[
        str | Path | dict[str, Any] | StudySpec, Argument("SPACE.yaml", is_positional=True)
    ] = "digits"
    """Search space: a file, or a shipped name."""
    trials: int | None = None
    """Number of trials."""
    time_budget: Duration = None
    """Time for everything, confirmation included."""
    workers: Annotated[
        list[Any] | None, BeforeValidator(worker_counts), Argument("1,2,4", parse=str)
    ] = None
    """Worker counts to search."""
    gpus_per_worker: float | None = None
    """GPUs per worker: 0, 1 or a part."""
    target: Annotated[str | float | None, BeforeValidator(number_or_word)] = None
    """Validation metric to reach: 0.95, or auto."""
    first: Annotated[list[Spec], BeforeValidator(one_or_more), Argument("SPEC.yaml")] = []
    """Run spec of your own to run before all other trials (as `search.first`); repeatable."""
    seed_from: Text = None
    """Results of the same task for the sampler to learn from: the folder or URL of an
    earlier study or training, a CSV (columns named as settings, with time_to_target_s or the
    metric), or an Optuna storage (a journal, a SQLite file, a URL; #NAME of one of several)."""
    confirm: Annotated[
        dict[str, Any] | None,
        BeforeValidator(confirmation),
        Argument("race=24,fresh=3", parse=str),
    ] = None
    """Runs with new seeds: of the best few to find the winner, then of the
    winner alone."""
    no_confirm: bool = False
    """Leave the result unconfirmed: one trial each."""
    more: int | None = None
    """No search: run what is statistically tied in a finished study so many times more, in all
    (after Ctrl-C or the time budget the same command runs the rest)."""
    price: Annotated[float | None, Argument("MONEY")] = None
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

    def study_settings(self) -> dict[str, Any]:
        """Return the keys of a study that the options change, and their values; see `trained`."""
        confirm = dict(self.confirm or {})
        if self.no_confirm and self.confirm is not None:
            raise UserError("--no-confirm: not with --confirm, which asks for the opposite.")
        if self.no_confirm:
            confirm = {"race": 0}
        if confirm.get("race") == 0 and "fresh" in confirm:
            wanted = ",".join(f"{key}={one}" for key, one in confirm.items())
            raise UserError(
                f"--confirm {wanted}: fresh runs are of a race's winner, and there is no race; "
                "name race=2 or more, or write --no-confirm."
            )
        flags = {
            "search.trials": self.trials,
            # With --more it limits the added runs, not the search that is finished.
            "search.time_budget_s": None if self.more else self.time_budget,
            "search.concurrency": self.concurrency,
            "search.seed": self.seed,
            "objective.target": self.target,
            "price": self.price,
            "gpus_per_worker": self.gpus_per_worker,
            "space.num_workers": self.workers,
            **{f"confirm.{key}": one for key, one in confirm.items()},
        }
        given = {key: one for key, one in flags.items() if one is not None}
        return given | self.trained() | self.settings


class TrainOptions(LoggedOptions):
    """Options of one training."""

    OF: ClassVar[str] = "train"
    spec: Annotated[Spec | None, Argument("SPEC.yaml", is_positional=True)] = None
    """Run spec, or a study's folder (its best.yaml); none: the defaults."""


class DiagnoseOptions(TrialOptions):
    """Options of a diagnosis."""

    OF: ClassVar[str] = "diagnose"
    spec: Annotated[Spec | None, Argument("SPEC.yaml", is_positional=True)] = None
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
    study: Annotated[
        str | Path | dict[str, Any] | ScalingStudy | None,
        Argument("STUDY.yaml|NAME", is_positional=True),
    ] = None
    """A study's file, or a named study; none: the shipped small model, weak and strong."""
    quick: bool = False
    """A named study small enough for two cores."""
    predict: Annotated[Text, Argument("8,16,64|FILE.csv")] = None
    """Numbers of workers, as 8,16,64: at every batch size measured, on nodes as full as the fullest
    measured; or a CSV of cells with the columns of --fit but step_s."""
    until: Annotated[float | None, BeforeValidator(share), Argument("SHARE", parse=str)] = None
    """Width of intervals, as 10%: run further cells, those that narrow the predictions most, until
    the 90 % interval of each that --predict asks for is at most so much to each side."""
    time_budget: Duration = None
    """Time for everything."""
    fit: Text = None
    """Run nothing, fit the steps of this CSV: columns num_workers, num_nodes,
    batch_size_per_worker, step_s; also read: accumulate (passes of a step), model, gpu_type (one
    fit for each pair of them); rows of the same cell are repeats. Predictions, which --out names a
    file for: step_s, low_s and high_s (90 %), samples_per_s, efficiency."""
    keep_code_change: bool = False
    """Continue although your code has changed since; the column `code` tells the runs apart."""
    network: Annotated[Text, Argument("RATIO|FILE")] = None
    """With --fit: how many times longer an all-reduce takes between hosts than inside, or a file of
    what raybench doctor --json printed."""


class CompareOptions(FollowedOptions):
    """Options of a comparison."""

    OF: ClassVar[str] = "compare"
    sides: Annotated[list[Spec], Argument("A B", is_positional=True)] = []
    """Present configuration, then what would replace it: run specs, folders of studies (their
    best.yaml), or spaces of one configuration."""
    runs: int = 20
    """Pairs at most."""
    time_budget: Duration = None
    """Time for everything."""
    smallest: Annotated[float, BeforeValidator(share), Argument(parse=str)] = 0.02
    """The least difference that matters, such as 2%; 0 looks for any."""
    session: Text = None
    """Keep the error of many comparisons together below 5 %, in this file: each spends a part of
    it."""


class PlanOptions(Options):
    """Options of a plan."""

    OF: ClassVar[str] = "plan"
    folders: Annotated[list[str | Path], Argument("DIR", is_positional=True)]
    """Results of scaling studies of one training, or their URLs: one folder, or one for each kind
    of machine, of which some may be short runs without a target."""
    prices: Annotated[str | Path | dict[str, Any] | None, Argument("FILE")] = None
    """prices.yaml: machines and what they cost (default: the study's own price, or
    worker-seconds)."""
    budget: Annotated[float | None, Argument("MONEY")] = None
    """What a job may cost."""
    deadline: Annotated[
        float | None, BeforeValidator(deadline_seconds), Argument("TIME", parse=str)
    ] = None
    """When it must be done: 90s, 30min, 2h."""
    predict: Annotated[Text, Argument("8,16,64|FILE.csv")] = None
    """Worker counts to plan with beside those measured (default: the next two doublings)."""
    out: Annotated[str, Argument("FILE")] = "plan.html"
    """File to write the page to."""


class TransferOptions(Options):
    """Options of a search of a large model that follows searches of small ones."""

    OF: ClassVar[str] = "transfer"
    studies: Annotated[list[str], Argument("DIR", is_positional=True)] = []
    """Searches of smaller models."""
    to: Annotated[Path, Argument("FILE")]
    """Search space of the large model."""
    trials: int = 6
    """Trials of the large model."""
    size: Annotated[float | None, Argument("PARAMETERS")] = None
    """Parameters of the large model; by default counted, where it is given by layers."""
    out: Annotated[Path | None, Argument("FILE")] = None
    """File to write (default: FILE-transferred.yaml)."""


class InitOptions(Options):
    """Options of a first look at data."""

    OF: ClassVar[str] = "init"
    data: Annotated[str, Argument("PATH_OR_CLASS", is_positional=True)]
    """Folder of images or texts, .csv, .parquet, .npz or .txt file, folder of Hugging Face's
    save_to_disk, or module:Class of a workload with load_dataset."""
    label: Annotated[list[str], Argument("COLUMN")] = []
    """Column to learn, of a table; several (--label a --label b, or a,b) are a vector."""
    task: Task | None = None
    """What to learn (default: inferred from the labels)."""
    framework: Literal["torch", "tensorflow"] | None = None
    """Search one alone (default: all installed)."""
    out: Annotated[Path, Argument("FILE")] = Path("space.yaml")
    """File to write."""
    force: bool = False
    """Write over the file if it is there."""


class ReportOptions(Options):
    """Options of a report."""

    OF: ClassVar[str] = "report"
    folders: Annotated[list[str], Argument("DIR", is_positional=True)]
    """A results folder, or the URL of one."""
    verbose: bool = False
    """Print every table."""
    compare: bool = False
    """Write one page of several folders side by side."""
    out: Annotated[str | None, Argument("FILE")] = None
    """File that --compare writes (default: compare.html here)."""
    png: bool = False
    """Write every figure as a PNG file into the folder too."""
    log: Tools = []
    """Write the runs to tensorboard, mlflow or wandb too; repeatable."""


class DoctorOptions(Options):
    """Options of a check of machines."""

    OF: ClassVar[str] = "doctor"
    address: str | None = None
    """A Ray cluster to look at, e.g. auto; else this machine."""


class DataOptions(Options):
    """Options of the list of decoded datasets."""

    OF: ClassVar[str] = "data"
    remove: Annotated[list[str], Argument("KEY", nargs="+")] = []
    """Remove these, or `all`; never one that a running command uses."""
    unused_for: Annotated[float | None, Argument("AGE", parse=age)] = None
    """Only those that no command has opened for so long: 12h, 30d, 8w."""


OPTIONS: dict[str, type[Options]] = {
    one.OF: one
    for one in (
        *(TuneOptions, TrainOptions, ScaleOptions, DiagnoseOptions, CompareOptions),
        *(PlanOptions, TransferOptions, InitOptions, ReportOptions, DoctorOptions, DataOptions),
    )
}
"""Options by command."""
