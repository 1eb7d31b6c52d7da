"""Options of all commands, one class per command, for the command line and the Python API.

The classes convert arguments to the types of the options. Whether the values are valid for a study
or a run is checked when the study or the run is built.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationInfo

from raybench.spec.dataset_spec import Task
from raybench.spec.documents import Document, parse_settings, parse_yaml
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.own_loop import LAUNCH_MARKS, MARK, is_own_loop
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import StudySpec
from raybench.spec.text import clean, seconds_of


@dataclass(frozen=True)
class Argument:
    """Command-line properties of an option, in addition to its name, type and default."""

    metavar: str | None = None
    """Name of the value in the help text."""
    parse: Callable[[str], Any] | None = None
    """Function that converts the text of the value; by default, the (first) type of the option."""
    flag: str | None = None
    """Name of the flag; by default the name of the option."""
    is_positional: bool = False
    nargs: str | None = None
    """Number of values after one flag, in the notation of argparse."""


def duration(value: Any) -> Any:
    """Convert a string such as `30min`, `2h` or `90` to seconds; return other types unchanged."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        return float(value)
    if (seconds := seconds_of(value)) is None:
        raise ValueError("is not a duration; write it as 90s, 30min, 2h, 1d or 8w")
    return seconds


def share(value: Any, info: ValidationInfo) -> Any:
    """Convert a share such as `2%` or `0.02` to a fraction."""
    if value is None:
        return None
    text, fraction = str(value), math.nan
    with contextlib.suppress(ValueError):
        fraction = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 <= fraction < 1.0:
        raise UserError(
            f"--{info.field_name} {text}: must be a share below 100%, such as 2% or 0.02.",
            ErrorCode.INVALID_VALUE,
        )
    return fraction


class Budget(NamedTuple):
    """Maximum total cost of small runs: a fraction of the large run's compute (`share`), or
    training seconds (`s`)."""

    amount: float
    unit: Literal["share", "s"] = "share"

    def __str__(self) -> str:
        return f"{self.amount:.4g}{'' if self.unit == 'share' else 's'}"


def budget(value: Any, info: ValidationInfo) -> Any:
    """Convert `10%` or `0.1` to a share of the large run's compute, and `2h` to seconds."""
    seconds = seconds_of(value) if isinstance(value, str) and value[-1:].isalpha() else None
    if seconds is not None:
        return Budget(seconds, "s")
    if value is None or isinstance(value, Budget):
        return value
    try:
        return Budget(share(value, info))
    except UserError:
        raise UserError(
            f"--plan {clean(str(value))[:40]}: write it as a share of the large run, such as 10%, "
            "or as a training time, such as 2h.",
            ErrorCode.INVALID_VALUE,
        ) from None


def number_or_word(value: Any) -> Any:
    """Convert a string to a number if possible; return any other value unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def text(value: Any) -> Any:
    """Convert a path, a number or a list of numbers to a string as on the command line: `8,16`."""
    if isinstance(value, list | tuple | range):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, PurePath | int | float) else value


def importable(value: Any) -> Any:
    """Convert a class or function to the name under which workers import it."""
    if inspect.isfunction(value):
        file, name = inspect.getsourcefile(value), value.__qualname__
        if "<" in name or not file or not Path(file).is_file():  # a lambda, or from a notebook
            raise UserError(
                f"train {name}: workers import it, which they cannot from a notebook or if it is a "
                "lambda or defined in another function; write the function at the top level of a "
                "file.",
                ErrorCode.USER_CODE,
            )
        return f"{file}:{name}"
    if not isinstance(value, type):
        return value
    if value.__module__ == "__main__":
        raise UserError(
            f"workload {value.__name__}: workers import it, which they cannot from a notebook "
            "or the script itself; write the class in a file of its own.",
            ErrorCode.USER_CODE,
        )
    return f"{value.__module__}:{value.__qualname__}"


def one_or_more(value: Any) -> Any:
    """Convert a single value to a list with one item; return several values as a list."""
    if isinstance(value, list | tuple | range):
        return list(value)
    return value if value is None else [value]


def worker_counts(value: Any) -> Any:
    """Convert worker counts (`1,2,4`, a number or a sequence) to a list."""
    return one_or_more(parse_yaml(f"[{value}]", "--workers") if isinstance(value, str) else value)


def confirmation(value: Any) -> Any:
    """Convert a string such as `race=24,fresh=3` to a dict; False means no confirmation."""
    if isinstance(value, bool):
        return None if value else {"race": 0}
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else value
    settings = value.split(",")
    if not all("=" in setting for setting in settings):
        raise UserError(
            f"--confirm {value}: write it as race=40,fresh=5, or only one of them.",
            ErrorCode.INVALID_VALUE,
        )
    return parse_settings([setting.replace(" ", "") for setting in settings])


def changes(value: Any) -> Any:
    """Convert the `KEY=VALUE` strings of `--set` to a dict."""
    return parse_settings(value) if isinstance(value, list) else value


def meanings(value: Any) -> Any:
    """Convert the `COLUMN=KEY` strings of `--column` to a dict."""
    return parse_settings(value, "--column") if isinstance(value, list) else value


TIME = "90|30min|2h"
Duration = Annotated[float | None, BeforeValidator(duration), Argument(TIME, parse=str)]
TimeBudget = Annotated[
    Annotated[float, Field(gt=0)] | None,
    BeforeValidator(duration),
    Argument(TIME, parse=str),
]
Text = Annotated[str | None, BeforeValidator(text)]
Tools = Annotated[list[str], BeforeValidator(one_or_more), Argument("TOOL")]
Spec = str | Path | dict[str, Any] | RunSpec


class Options(Document):
    """Base class of the options of a command."""

    OF: ClassVar[str]
    """Name of the command."""


class TrialOptions(Options):
    """Options shared by every command that runs trials."""

    settings: Annotated[
        dict[str, Any], BeforeValidator(changes), Argument("KEY=VALUE", flag="set")
    ] = {}
    """Set any key to a value in YAML syntax; repeatable."""
    out: Annotated[Text, Argument("DIR")] = None
    """Results folder, or a URL: s3://, gs://, abfs:// (default: a folder in results/)."""
    workload: Annotated[str | None, BeforeValidator(importable)] = None
    """Workload to train: a name shipped with raybench, or your own module:Class."""
    train: Annotated[str | None, BeforeValidator(importable), Argument("FILE.py:FUNCTION")] = None
    """Function with your own training loop, FILE.py:FUNCTION; it receives a raybench.Run."""
    command: str | None = None
    """Training command to run, such as "python train.py --lr {learning_rate}"; it prints the metric
    in lines of JSON, such as {"accuracy": 0.91, "samples": 50000}."""
    launch: Literal["torchrun"] | None = None
    """Start the command once per worker with the environment of torchrun (RANK, WORLD_SIZE,
    MASTER_ADDR, ...); rank 0 prints the metric (default: one process for all workers)."""
    metric_pattern: Annotated[str | None, Argument("REGEX")] = None
    """Regular expression that finds the metric in the command's output, as its first group."""
    address: str | None = None
    """Address of a Ray cluster, such as auto (default: start Ray on this machine)."""
    wait: Duration = None
    """Maximum total time that a run may wait for resources (default: unlimited)."""
    seed: int | None = None
    """Seed of the search or the training."""
    dry_run: bool = False
    """Print the plan and exit."""

    def trained(self, *, below: str = "") -> dict[str, Any]:
        """Return the settings that determine what to train.

        Args:
            below: Prefix of the keys.

        Raises:
            UserError: More than one of `--workload`, `--train` and `--command` is given, `--train`
                is not FILE.py:FUNCTION, or `--launch` is given without `--command`.
        """
        flags = {"--workload": self.workload, "--train": self.train, "--command": self.command}
        named = [name for name, value in flags.items() if value is not None]
        if len(named) > 1:
            raise UserError(
                f"{' and '.join(named)}: each names what to train; keep one of them.",
                ErrorCode.CONFLICT,
            )
        if self.train is not None and not is_own_loop(self.train):
            raise UserError(
                f"--train {self.train}: write it as FILE.py:FUNCTION, such as train.py:train.",
                ErrorCode.INVALID_VALUE,
            )
        if self.launch is not None and self.command is None:
            raise UserError(
                "--launch: starts the command of --command, which is missing.", ErrorCode.MISSING
            )
        mark = MARK if self.launch is None else LAUNCH_MARKS[self.launch]
        command = None if self.command is None else f"{mark}{self.command.removeprefix(MARK)}"
        workload = self.workload if self.train is None else self.train
        settings = {"workload": workload if command is None else command}
        settings["objective.metric_pattern"] = self.metric_pattern
        return {f"{below}{key}": value for key, value in settings.items() if value is not None}


class FollowedOptions(TrialOptions):
    """Options shared by every command that displays the progress of its runs."""

    progress: Literal["screen", "jsonl"] = "screen"
    """Progress display; jsonl writes one JSON object per line to stderr."""


class LoggedOptions(FollowedOptions):
    """Options shared by every command that logs to experiment trackers."""

    log: Tools = []
    """Also log the runs to tensorboard, mlflow or wandb while they train; repeatable."""


class ResumedOptions(LoggedOptions):
    """Options shared by the commands that resume a study and check its code: `tune` and `scale`."""

    keep_code_change: bool = False
    """Resume even though your code has changed; the column `code` marks the version of each run."""


class SpecOptions(TrialOptions):
    """Options shared by the commands that train one run spec: `train` and `diagnose`."""

    spec: Annotated[Spec | None, Argument("SPEC.yaml", is_positional=True)] = None
    """Run spec, or a study's folder, whose best.yaml is used (default: the default run spec)."""


class TuneOptions(ResumedOptions):
    """Options of a search."""

    OF: ClassVar[str] = "tune"
    space: Annotated[
        str | Path | dict[str, Any] | StudySpec, Argument("SPACE.yaml", is_positional=True)
    ] = "digits"
    """Search space: a file, or a name shipped with raybench."""
    trials: int | None = None
    """Number of trials."""
    time_budget: TimeBudget = None
    """Maximum total time, including confirmation."""
    workers: Annotated[
        list[Any] | None, BeforeValidator(worker_counts), Argument("1,2,4", parse=str)
    ] = None
    """Worker counts to search."""
    gpus_per_worker: float | None = None
    """GPUs per worker: 0, 1 or a fraction."""
    target: Annotated[str | float | None, BeforeValidator(number_or_word)] = None
    """Value of the validation metric to reach, such as 0.95, or auto."""
    first: Annotated[list[Spec], BeforeValidator(one_or_more), Argument("SPEC.yaml")] = []
    """Run spec to try before all other trials (as `search.first`); repeatable."""
    seed_from: Text = None
    """Earlier results of the same task to start the sampler from: the folder or URL of a study, of
    a training, or of runs that `raybench import` has read from a CSV or an Optuna storage."""
    confirm: Annotated[
        dict[str, Any] | None,
        BeforeValidator(confirmation),
        Argument("race=24,fresh=3", parse=str),
    ] = None
    """Number of confirmation runs with new seeds: race=N runs of the best configurations, to find
    the winner, and fresh=N runs of the winner alone."""
    no_confirm: bool = False
    """Skip confirmation; the result then rests on a single run per configuration."""
    more: int | None = None
    """Skip the search and add MORE repeat runs, in total, for the configurations that are still
    tied (rerun the same command to resume after Ctrl-C or the time budget)."""
    price: Annotated[float | None, Argument("MONEY")] = None
    """Price of a worker-hour; winners are then also reported in money."""
    concurrency: int | None = None
    """Maximum number of concurrent trials."""
    isolation: Literal["none", "process"] = "none"
    """With process, start new worker processes for every trial (slower; for code that leaks)."""
    verbose: bool = False
    """Print every table at the end."""
    fresh: bool = False
    """Start a new study instead of resuming the existing one."""

    def study_settings(self) -> dict[str, Any]:
        """Return the settings of the study by key: those of flags, then those of `--set`.

        Raises:
            UserError: Flags contradict each other.
        """
        confirm = dict(self.confirm or {})
        if self.no_confirm and self.confirm is not None:
            raise UserError(
                "--no-confirm and --confirm contradict each other; keep one of them.",
                ErrorCode.CONFLICT,
            )
        if self.no_confirm:
            confirm = {"race": 0}
        if confirm.get("race") == 0 and "fresh" in confirm:
            settings = ",".join(f"{key}={value}" for key, value in confirm.items())
            raise UserError(
                f"--confirm {settings}: fresh runs repeat the winner of a race, and there is no "
                "race; set race=2 or more, or write --no-confirm.",
                ErrorCode.CONFLICT,
            )
        flags = {
            "search.trials": self.trials,
            # With --more, the time budget limits the added runs, not the finished search.
            "search.time_budget_s": None if self.more else self.time_budget,
            "search.concurrency": self.concurrency,
            "search.seed": self.seed,
            "objective.target": self.target,
            "price": self.price,
            "gpus_per_worker": self.gpus_per_worker,
            "space.num_workers": self.workers,
            **{f"confirm.{key}": value for key, value in confirm.items()},
        }
        set_flags = {key: value for key, value in flags.items() if value is not None}
        return set_flags | self.trained() | self.settings


class TrainOptions(SpecOptions, LoggedOptions):
    """Options of a single training run."""

    OF: ClassVar[str] = "train"


class DiagnoseOptions(SpecOptions):
    """Options of a diagnosis."""

    OF: ClassVar[str] = "diagnose"
    repeats: Annotated[int, Field(ge=3)] = 4
    """Number of runs of each probe (a short run that times steps), at least 3; up to twice as many
    if the spread hides the answer."""
    seconds: Annotated[float, Field(ge=0.01, le=3600)] = 0.5
    """Training seconds of each interval of a probe: four intervals, or two with --fastest."""
    fastest: bool = False
    """Find the fastest way to run the same training, and write it to fastest.yaml. Framework,
    workers, micro-batch, prefetch and compile are varied; they leave the learning curve
    unchanged."""


class ScaleOptions(ResumedOptions):
    """Options of a scaling study."""

    OF: ClassVar[str] = "scale"
    study: Annotated[
        str | Path | dict[str, Any] | ScalingStudy | None,
        Argument("STUDY.yaml|NAME", is_positional=True),
    ] = None
    """Scaling study: a file, or a name shipped with raybench (default: weak and strong scaling of
    the shipped small model)."""
    quick: bool = False
    """Shorten the default study, or one shipped with raybench, to suit a machine with two cores."""
    predict: Annotated[Text, Argument("8,16,64|FILE.csv")] = None
    """Predict step times for these worker counts, such as 8,16,64, at every measured batch size
    (each node then has as many workers as the fullest measured node), or for the rows of a CSV file
    with the columns num_workers, num_nodes and batch_size_per_worker."""
    until: Annotated[float | None, BeforeValidator(share), Argument("SHARE", parse=str)] = None
    """After the study, keep measuring the configurations that narrow the predictions of --predict
    most, until the half-width of every 90 % interval is at most this share of its prediction, such
    as 10%."""
    time_budget: TimeBudget = None
    """Maximum total time."""
    fit: Text = None
    """Run nothing; fit the step times in this CSV file with the columns num_workers, num_nodes,
    batch_size_per_worker and step_s, and optionally accumulate (passes per step), model and
    gpu_type (one fit per pair of model and gpu_type). Rows that differ only in step_s are repeats.
    --out names a file for the predictions: step_s, low_s and high_s (90 %), samples_per_s,
    efficiency."""
    network: Annotated[float | None, Field(ge=0.01, le=1000), Argument("RATIO")] = None
    """With --fit: ratio of the time of an all-reduce between hosts to its time within a host."""


class CompareOptions(FollowedOptions):
    """Options of a comparison."""

    OF: ClassVar[str] = "compare"
    sides: Annotated[list[Spec], Argument("A B", is_positional=True)] = []
    """Current configuration, then its possible replacements: run specs, folders of studies (their
    best.yaml), or spaces with a single configuration."""
    runs: int = 20
    """Maximum number of runs of each configuration."""
    time_budget: TimeBudget = None
    """Maximum total time."""
    smallest: Annotated[float, BeforeValidator(share), Argument(parse=str)] = 0.02
    """Smallest relative difference that matters, such as 2%; 0 looks for any difference."""
    metric: Literal["samples_per_s"] | None = None
    """Compare training throughput instead of the objective (time to the target, or best value)."""
    session: Text = None
    """File shared by several comparisons, which keeps their joint error rate below 5 %."""


class PlanOptions(Options):
    """Options of a plan."""

    OF: ClassVar[str] = "plan"
    folders: Annotated[list[str | Path], Argument("DIR", is_positional=True)]
    """Results folders or URLs of scaling studies, all of the same training and one per kind of
    machine; some of these studies may have only short runs without a target."""
    prices: Annotated[str | Path | dict[str, Any] | None, Argument("FILE")] = None
    """YAML file with machines and their prices (default: the price in the study, or
    worker-seconds)."""
    budget: Annotated[float | None, Field(gt=0), Argument("MONEY")] = None
    """Maximum cost of the training job."""
    deadline: TimeBudget = None
    """Maximum duration of the training job."""
    predict: Annotated[Text, Argument("8,16,64|FILE.csv")] = None
    """Worker counts to consider besides the measured ones (default: the next two doublings)."""
    out: Annotated[str, Argument("FILE")] = "plan.html"
    """HTML file to write."""


class ForecastOptions(Options):
    """Options for predicting a large run from small runs."""

    OF: ClassVar[str] = "forecast"
    runs: Annotated[list[str], Argument("RUNS", is_positional=True)] = []
    """Results folders of small models, and CSV files with one row per small run: parameters,
    samples (or tokens), batch, learning_rate, loss."""
    to: Annotated[Path | None, Argument("FILE")] = None
    """Search space of the large model; a copy of it with the learning rates to try is written to
    --out (default: NAME-forecast.yaml)."""
    parameters: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Number of parameters of the large model (default: counted in the model that --to names)."""
    samples: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Training samples of the large run; for a language model, tokens (default: computed from the
    epochs that --to fixes)."""
    loss: bool = False
    """Predict only the loss and the compute-optimal size; the small runs then need neither learning
    rate nor batch."""
    compute: Annotated[float | None, Field(gt=0, allow_inf_nan=False), Argument("FLOPS")] = None
    """With --loss: floating-point operations of the large run, instead of parameters and
    samples."""
    plan: Annotated[Budget | None, BeforeValidator(budget), Argument("COST", parse=str)] = None
    """Choose the small runs to make next, with this total cost: a share of the large run's compute,
    such as 10%, or training time, such as 2h."""
    within: Annotated[float | None, Field(gt=1, allow_inf_nan=False), Argument("FACTOR")] = None
    """With --plan: stop choosing runs once the best learning rate and batch size of the large run
    are expected to be known within this factor."""
    figure: Annotated[Path | None, Argument("FILE.png")] = None
    """Draw the small runs, the fitted scaling laws and the prediction to this file."""
    out: Annotated[Path | None, Argument("FILE")] = None
    """File to write: the space of --to, or the runs of --plan (.csv: a table; .yaml: a space for
    raybench tune, one file per study of small models)."""


class InitOptions(Options):
    """Options for inspecting a dataset."""

    OF: ClassVar[str] = "init"
    data: Annotated[str, Argument("PATH_OR_CLASS", is_positional=True)]
    """Folder of images or text files; .csv, .parquet, .npz or .txt file; folder that Hugging Face's
    save_to_disk has written; or module:Class of a workload with load_dataset."""
    label: Annotated[list[str], Argument("COLUMN")] = []
    """Column of a table to predict; several columns (--label a --label b, or a,b) form a vector."""
    task: Task | None = None
    """Learning task (default: inferred from the labels)."""
    framework: Literal["torch", "tensorflow"] | None = None
    """Framework to search (default: all installed)."""
    out: Annotated[Path, Argument("FILE")] = Path("space.yaml")
    """File to write."""
    force: bool = False
    """Overwrite an existing file."""


class ImportOptions(Options):
    """Options for importing runs that another tool recorded."""

    OF: ClassVar[str] = "import"
    source: Annotated[str, Argument("RUNS.csv|optuna.db", is_positional=True)]
    """CSV file with one row per run, or Optuna storage (a journal, a SQLite file or a URL; #NAME
    selects a study)."""
    name: Annotated[str, Argument("NAME", flag="as")]
    """Name of the new study in results/, or a folder."""
    metric: str | None = None
    """Name of the metric (default: the only one among the columns)."""
    direction: Literal["max", "min"] | None = None
    """Whether larger or smaller values of the metric are better (default: that of a known metric,
    or of the Optuna study)."""
    target: float | None = None
    """Value of the metric that runs reached after the seconds in the column time_to_target_s."""
    columns: Annotated[
        dict[str, str], BeforeValidator(meanings), Argument("COLUMN=KEY", flag="column")
    ] = {}
    """Meaning of a column whose name does not reveal it: a key such as learning_rate or model.NAME,
    the metric, time_to_target_s, seconds, samples, or none to skip the column; repeatable."""


class ReportOptions(Options):
    """Options of a report."""

    OF: ClassVar[str] = "report"
    folders: Annotated[list[str], Argument("DIR", is_positional=True)]
    """Results folder, or its URL."""
    verbose: bool = False
    """Print every table."""
    compare: bool = False
    """Write one page that compares several folders."""
    out: Annotated[str | None, Argument("FILE")] = None
    """File that --compare writes (default: compare.html in the current folder)."""
    png: bool = False
    """Also write every figure to the folder as a PNG file."""
    log: Tools = []
    """Also log the runs to tensorboard, mlflow or wandb; repeatable."""


class DoctorOptions(Options):
    """Options for checking the hardware."""

    OF: ClassVar[str] = "doctor"
    address: str | None = None
    """Address of the Ray cluster to check, such as auto (default: this machine)."""


class DataOptions(Options):
    """Options for listing or removing decoded datasets."""

    OF: ClassVar[str] = "data"
    remove: Annotated[list[str], Argument("KEY", nargs="+")] = []
    """Remove these datasets, or `all`; running commands keep what they have opened."""
    unused_for: Annotated[
        Annotated[float, Field(gt=0)] | None,
        BeforeValidator(duration),
        Argument("12h|30d|8w", parse=str),
    ] = None
    """List or remove only datasets that no command has opened for this long."""


OPTIONS: dict[str, type[Options]] = {
    options.OF: options
    for options in (
        *(TuneOptions, TrainOptions, ScaleOptions, DiagnoseOptions, CompareOptions),
        *(PlanOptions, ForecastOptions, InitOptions),
        *(ImportOptions, ReportOptions, DoctorOptions, DataOptions),
    )
}
"""Class of the options of each command, keyed by the name of the command."""
