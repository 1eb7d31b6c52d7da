"""The commands as Python functions: `raybench.tune(space)` does the same as `raybench tune SPACE`.

Each function prints the output of the command (in a notebook, in a single output that updates),
writes the same results folder, and returns the results as `raybench.load` does. Repeating a call
resumes an interrupted study. This process is connected to Ray until the function returns. Ctrl-C
raises KeyboardInterrupt after the results so far have been written.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.cluster.signals import Interrupt
from raybench.commands.cli import run_with_options
from raybench.spec.documents import plain_data
from raybench.spec.errors import FAILED, INTERRUPTED, ErrorCode, StudyError, UserError

if TYPE_CHECKING:
    from raybench.report.scaling_report import PlanReport
    from raybench.report.study import StudyResults
    from raybench.runs.options import TrialOptions
    from raybench.spec.run import RunSpec
    from raybench.spec.scaling_study import ScalingStudy
    from raybench.spec.study import StudySpec
    from raybench.training.own import Run

Place = str | Path | None
COMMAND_LINE_ONLY = ("settings", "fit", "verbose")
"""Options that only the command line accepts."""
RESULTS = "results/study"
"""Results folder beside which `data` is written to a file if `out` is a URL or not given."""
SETTINGS = (str, int, float, list, type(None))
"""Types of plain values. A dict `data` with only such values contains no samples but the arguments
for `load_dataset`."""


@dataclass(frozen=True)
class DryRun:
    """Plan that a function returns for `dry_run=True`; `print` shows the output of the command."""

    text: str
    """Output of the command."""
    plan: Mapping[str, Any]
    """Plan as plain data. For `tune`, this is the study with the additional keys `num_trials` and
    `at_most_s`, an upper bound on the duration in seconds (None if unknown)."""
    words: Sequence[str] = ()
    """Sentences with notes and warnings, for example about values that were left out."""

    def __str__(self) -> str:
        return self.text


def tune(
    space: "str | Path | dict[str, Any] | StudySpec" = "digits",
    *,
    workload: str | type | None = None,
    train: "str | Callable[[Run], object] | None" = None,
    command: str | None = None,
    data: Any = None,
    out: Place = None,
    trials: int | None = None,
    workers: Sequence[int] | int | None = None,
    target: float | str | None = None,
    time_budget: float | str | None = None,
    more: int | None = None,
    seed: int | None = None,
    address: str | None = None,
    fresh: bool = False,
    dry_run: bool = False,
    **changes: Any,
) -> "StudyResults":
    """Search a space for the configuration that reaches the target fastest, and confirm it.

    Args:
        space: Search space: a file, the name of a space shipped with raybench, or the content of
            a file as a dict.
        workload: Name of a workload, `module:Class`, or a subclass of Workload. The class must be
            defined in a file, because workers import it.
        train: Your own training loop instead of a workload: a function that is defined in a file,
            or `FILE.py:FUNCTION`.
        command: Training command to run instead, such as `"python train.py --lr {learning_rate}"`.
        data: A `Dataset`, a dict of arrays (`x_train`, `y_train`, ...), a DataFrame with a column
            `label`, or a PyTorch or Hugging Face dataset. It is written to a file beside the
            results. A dict of plain values is passed to the workload's `load_dataset` as arguments.
        out: Results folder or URL.
        trials: Number of trials. Like `workers`, `target`, `time_budget` and `seed`, it defaults to
            the value in the space.
        workers: Worker counts to search.
        target: Value of the validation metric to reach, such as 0.95, or `"auto"`.
        time_budget: Maximum total time, including confirmation: seconds, or a string like `"2h"`.
        more: Total number of runs to add for the configurations of a finished study that are still
            tied. In that case, no search is run.
        seed: Seed of the search.
        address: Address of a Ray cluster, such as `"auto"`. By default, Ray starts on this machine.
        fresh: Whether to start a new study instead of resuming the one in `out`.
        dry_run: Whether to return the plan without running anything.
        **changes: Other options of the command by name, such as `confirm={"race": 12}`. All other
            names are keys of the space, as for `--set`: `optimizer="lamb"`,
            `**{"objective.hold": 2}`.

    Returns:
        The results. With `dry_run=True`, nothing is run and the plan is returned (`DryRun`).

    Raises:
        UserError: The input is invalid.
        StudyError: All runs have failed, or the study cannot continue.

    Example:
        >>> plan = raybench.tune("digits", trials=20, workers=[1, 2], dry_run=True)
        >>> plan.plan["num_trials"]
        20
    """
    return _run("tune", **locals())


def train(
    spec: "str | Path | dict[str, Any] | RunSpec | None" = None,
    *,
    data: Any = None,
    out: Place = None,
    seed: int | None = None,
    address: str | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> "StudyResults":
    """Train one run spec and save its model, which `raybench.load_model(out)` loads.

    Args:
        spec: Run spec: a file, its content, or a study's folder, whose best.yaml is used. By
            default, all keys have their default values.
        data: See `tune`.
        out: Results folder or URL.
        seed: Seed of the training.
        address: See `tune`.
        dry_run: Whether to return the plan without running anything.
        **changes: Other options of the command, and keys of the run spec such as `epochs=20`.

    Returns:
        The results. With `dry_run=True`, nothing is run and the plan is returned (`DryRun`).

    Raises:
        UserError: The input is invalid.
        StudyError: The run has failed, or cannot start.

    Example:
        >>> raybench.train(optimizer="lamb", epochs=20, dry_run=True).plan["optimizer"]
        'lamb'
    """
    return _run("train", **locals())


def scale(
    study: "str | Path | dict[str, Any] | ScalingStudy | None" = None,
    *,
    data: Any = None,
    out: Place = None,
    quick: bool = False,
    predict: str | Sequence[int] | None = None,
    time_budget: float | str | None = None,
    address: str | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> "StudyResults":
    """Measure how training scales with workers and batch sizes.

    Args:
        study: Scaling study: a file, its content, or the name of a study shipped with raybench.
            The default study measures weak and strong scaling of the shipped small model.
        data: See `tune`.
        out: Results folder or URL.
        quick: Whether to shorten the default study, or a study shipped with raybench, to suit a
            machine with two cores.
        predict: Worker counts for which to predict step times, such as `[8, 16]`, or a CSV file
            with the columns num_workers, num_nodes and batch_size_per_worker.
        time_budget: Maximum total time: seconds, or a string like `"2h"`.
        address: See `tune`.
        dry_run: Whether to return the plan without running anything.
        **changes: Other options of the command, and keys of the study such as
            `num_workers=[1, 2]`.

    Returns:
        The results. With `dry_run=True`, nothing is run and the plan is returned (`DryRun`).

    Raises:
        UserError: The input is invalid.
        StudyError: All runs have failed, or the study cannot continue.

    Example:
        >>> plan = raybench.scale(num_workers=[1, 2], scaling="weak", repeats=2, dry_run=True)
        >>> print(plan)
        0000  torch 1x64 adam 0.001  global batch 64  weak
        0001  torch 2x64 adam 0.001  global batch 128  weak
        ...
        2 cells, 2 repeats: 4 runs, ...
    """
    return _run("scale", **locals())


def plan(
    *folders: str | Path,
    prices: "str | Path | dict[str, Any] | None" = None,
    budget: float | None = None,
    deadline: str | float | None = None,
    predict: "str | Sequence[int] | None" = None,
) -> "PlanReport":
    """Choose which machines to rent for a training, and how many, from scaling studies of it.

    Args:
        *folders: Results folders or URLs of scaling studies, all of the same training.
        prices: A file of machines and their prices, or its content. By default, the price in the
            study is used; without one, cost is counted in worker-seconds.
        budget: Maximum cost of the training.
        deadline: Maximum duration of the training, in seconds or as a string such as `"2h"`.
        predict: Worker counts to consider in addition to the measured ones, or a CSV file with one
            row per configuration.

    Returns:
        The plan: `.answers` and `.table` are DataFrames, `.words` the answers in sentences, and
        `.plot()` draws the plan. Nothing is written.

    Raises:
        UserError: The input is invalid, or the studies do not suffice for a plan.

    Example:
        >>> machines = {"small": {"workers": 4, "price": 0.36}}
        >>> plan = raybench.plan("results/batch_size_vs_workers", prices=machines)
        >>> fastest = plan.answers.iloc[0]
        >>> print(fastest["answer"], fastest["num_workers"], fastest["global_batch_size"])
        fastest 1 64
    """
    from raybench.commands.recorded import planned
    from raybench.runs.options import PlanOptions
    from raybench.spec.documents import validate

    given = {"prices": prices, "budget": budget, "deadline": deadline, "predict": predict}
    return planned(validate(PlanOptions, {"folders": list(folders), **given}, "raybench.plan"))


def diagnose(
    spec: "str | Path | dict[str, Any] | RunSpec | None" = None,
    *,
    data: Any = None,
    out: Place = None,
    fastest: bool = False,
    address: str | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> "StudyResults":
    """Find the bottleneck of a training: compute, communication or input.

    Args:
        spec: Run spec, as for `train`.
        data: See `tune`.
        out: Results folder or URL.
        fastest: Whether to find the fastest way to run the same training instead. The settings that
            leave its learning curve unchanged are varied: framework, workers, micro-batch, prefetch
            and compile.
        address: See `tune`.
        dry_run: Whether to return the plan without running anything.
        **changes: Other options of the command, and keys of the run spec such as `num_workers=2`.

    Returns:
        The results. With `dry_run=True`, nothing is run and the plan is returned (`DryRun`).

    Raises:
        UserError: The input is invalid, or the training cannot be diagnosed.
        StudyError: A probe has failed.

    Example:
        >>> print(raybench.diagnose(num_workers=2, dry_run=True))
        workload: mnist_small
        ...
        as_it_is: ...
    """
    return _run("diagnose", **locals())


def compare(
    *sides: "str | Path | dict[str, Any] | RunSpec",
    out: Place = None,
    runs: int = 20,
    smallest: float | str = 0.02,
    metric: str | None = None,
    time_budget: float | str | None = None,
    address: str | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> "StudyResults":
    """Test by paired runs whether configuration B is better than configuration A.

    Args:
        *sides: Configurations, A first: run specs, results folders (whose `best.yaml` is used) or
            spaces with a single configuration.
        out: Results folder or URL.
        runs: Maximum number of runs of each configuration.
        smallest: Smallest relative difference that matters, such as 0.02 or `"2%"`; 0 looks for any
            difference.
        metric: `"samples_per_s"` to compare training throughput instead of the objective.
        time_budget: Maximum total time: seconds, or a string like `"2h"`.
        address: See `tune`.
        dry_run: Whether to return the plan without running anything.
        **changes: Other options of the command, and run-spec keys to set in all configurations.

    Returns:
        The results; `.comparison` is the outcome. With `dry_run=True`, nothing is run and the plan
        is returned (`DryRun`).

    Raises:
        UserError: The input is invalid.
        StudyError: The runs of a configuration have failed.

    Example:
        >>> before, after = {"optimizer": "adam"}, {"optimizer": "lamb"}
        >>> print(raybench.compare(before, after, runs=10, dry_run=True))
        A  torch 1x64 adam 0.001  (side A)
        B  torch 1x64 lamb 0.001  (side B)
        up to 10 runs of each side ...
    """
    return _run("compare", **(locals() | {"sides": list(sides)}))


def _run(name: str, /, *, changes: dict[str, Any], **arguments: Any) -> "StudyResults":
    """Run a command and return its results; for a dry run, return the plan as a `DryRun`."""
    options, interrupt = call_options(name, arguments | changes), Interrupt(owns_process=False)
    printed = io.StringIO()
    screen = contextlib.redirect_stdout(printed if options.dry_run else sys.stdout)
    with interrupt.listening(), screen:
        ended = run_with_options(options, interrupt)
    if options.dry_run:
        plan: Any = DryRun(printed.getvalue().rstrip("\n"), ended.details["plan"], ended.answer)
        dry_run: StudyResults = plan  # for type checkers, which cannot see dry_run
        return dry_run
    if ended.code == INTERRUPTED:
        raise KeyboardInterrupt
    from raybench.report.study import load

    assert ended.place is not None
    results = load(ended.place)
    if ended.code == FAILED:
        failed = [run for run in results.runs.values() if run.failure]
        reason = f": {failed[0].failure} ({failed[0].message})" if failed else ""
        raise StudyError(f"{ended.place}: has no result{reason}.")
    return results


def call_options(name: str, arguments: dict[str, Any]) -> "TrialOptions":
    """Convert the arguments of a Python API call to command options; `data` is written to a file.

    Args:
        name: Name of the command.
        arguments: Arguments of the call: options by name, `data`, and keys of the command's input
            file (the space, run spec or scaling study).

    Raises:
        UserError: An option has the wrong type, or the data cannot be written to a file.
    """
    from raybench.runs.options import OPTIONS, TrialOptions
    from raybench.spec.documents import validate

    kind, options, settings = OPTIONS[name], dict[str, Any](), dict[str, Any]()
    for key, value in _with_data_in_a_file(name, arguments).items():
        if key in COMMAND_LINE_ONLY:
            raise UserError(
                f"raybench.{name}: {key} is an option of the command line only; leave it out.",
                ErrorCode.INVALID_OPTION,
            )
        if key not in kind.model_fields:
            settings[key] = plain_data(value, f"raybench.{name}: {key}")
        else:  # convert arrays of worker counts and NumPy scalars
            options[key] = plain_data(value, key) if hasattr(value, "tolist") else value
    validated = validate(kind, options, f"raybench.{name}")
    assert isinstance(validated, TrialOptions)
    return validated.model_copy(update={"settings": settings})


def _with_data_in_a_file(name: str, call_arguments: dict[str, Any]) -> dict[str, Any]:
    """Write the samples in `data`, if there are any, to a file.

    Returns:
        The arguments of the call. If a file was written, the key `dataset` (`base.dataset` for
        `scale`) refers to it and replaces `data`.
    """
    arguments = dict(call_arguments)
    data = arguments.pop("data", None)
    if data is None:
        return arguments
    if type(data) is dict and all(isinstance(value, SETTINGS) for value in data.values()):
        return arguments | {"data": data}  # arguments of the workload's load_dataset
    from raybench.data.python_data import FOLDER, spec_of

    out = str(arguments.get("out") or RESULTS)
    folder = Path(RESULTS if "://" in out else out).parent / FOLDER
    key = "base.dataset" if name == "scale" else "dataset"
    return {key: spec_of(data, arguments.pop("label", None), folder)} | arguments
