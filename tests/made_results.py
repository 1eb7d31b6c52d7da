"""Made-up records of runs, results folders with them, and the screens of these studies."""

import contextlib
import io
import json
import platform
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from raybench.report.show import show
from raybench.report.study import load
from raybench.results.place import OWNER_FILE
from raybench.results.store import STUDY_FILE, Store
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, RunOutcome

ROOT = Path(__file__).parents[1]
OBJECTIVE = Objective(target=0.9, max_train_seconds=60.0)
BUDGET = Objective(kind="best_at_budget", max_train_seconds=60.0)
PHASE_SECONDS = {"queue": 1.0, "start": 8.0, "setup": 2.0, "compile": 3.0, "eval": 0.5}
PHASE_SECONDS |= {"checkpoint": 0.25, "report": 0.125}
POINT = {"epoch": 0.5, "train_loss": 1.0, "learning_rate": 1e-3, "samples_per_s": 100.0}


def run_line(
    trial,
    time_to_target_s=None,
    *,
    best_value=None,
    role="trial",
    source=None,
    failure=None,
    stop=None,
    outer_stop="scheduler",
    train_s=None,
    objective=OBJECTIVE,
    test_value=None,
    concurrent=0,
    slow=None,
    **spec,
):
    """Return the record line of a finished run; without a time to target it missed the target.

    The source of a run of the race, and of a confirming run, is the trial it is named after. Trials
    whose configuration is not given have learning rates that differ by less than labels show.
    """
    if best_value is None:
        best_value = 0.8 if time_to_target_s is None else 0.92
    train_s = train_s or time_to_target_s or 60.0
    if not (stop or failure) and time_to_target_s is not None:
        stop = "target"
    last = Evaluation(
        **POINT,
        index=0,
        samples=1000,
        train_s=train_s,
        value=best_value,
        best_value=best_value,
        time_to_target_s=time_to_target_s,
        stop=stop,
    )
    outcome = RunOutcome(
        evaluation=last,
        is_over=True,
        failure=failure,
        message=f"it was {failure}" if failure else None,
        ledger=PHASE_SECONDS | {"train": train_s, "input": 0.0625} | (slow or {}),
        wall_s=sum(PHASE_SECONDS.values()) + train_s,
        num_parameters=402_442,
        baseline_value=0.1,
        test_value=test_value,
        concurrent=concurrent,
    )
    if role in ("race", "confirm") and source is None:
        source = trial.partition("-")[0]
    number = (source or trial.partition("-")[0]).lstrip("0")
    if "learning_rate" not in spec and number.isdecimal():
        rate = RunSpec(objective=objective, **spec).learning_rate
        spec["learning_rate"] = rate * (1 + 1e-6 * int(number))
    run = outcome.record(
        trial, RunSpec(objective=objective, **spec), role=role, source=source, stopped_by=outer_stop
    )
    return run.line()


COLD = [run_line("0000", 30.0)]
"""The first trial of a study, which does not rank because it included a cold start."""


def raced(trial, search_s, times, alone=(), *, missed_s=20.0, **spec):
    """Return lines of a trial, its race runs (None is a miss at the cap) and its solo runs."""
    lines = [run_line(trial, search_s, **spec)]
    for number, time in enumerate(times):
        keys = {"role": "race", "train_s": time or missed_s, "concurrent": 1} | spec
        lines.append(run_line(f"{trial}-race{number}", time, outer_stop="cap", **keys))
    for number, time in enumerate(alone):
        keys = {"role": "confirm", "seed": 1000 + number, "test_value": 0.9 + 0.01 * number} | spec
        keys |= {"stop": None if time else "max_train_seconds", "train_s": time or missed_s}
        lines.append(run_line(f"{trial}-confirm{number}", time, **keys))
    return lines


NEAR = raced("0001", 2.0, [2.1, 1.9]), raced("0002", 2.5, [2.6, 2.4])
"""Two configurations that are tied, and that more runs may decide."""


def confirmed_trial(trial, times, *, missed_s=60.0, **spec):
    """Return lines of a trial and its confirmation runs; None is a miss after `missed_s`."""
    return raced(trial, 3.0, (), times, missed_s=missed_s, **spec)


def at_budget(trial, searched, confirmed=(), *, objective=BUDGET, failure="nan", **options):
    """Return lines of a trial and its confirmation runs at a budget by their values; None is a
    failed run, whose value is better than all others."""
    keys = {"objective": objective, "stop": "max_train_seconds"} | options
    best = 0.99 if objective.judged_by.direction == "max" else 0.1
    lines = [run_line(trial, best_value=searched, **keys)]
    for number, value in enumerate(confirmed):
        end = {"best_value": value, "test_value": 0.8} | keys
        if value is None:
            end = keys | {"best_value": best, "failure": failure, "stop": None}
        lines.append(run_line(f"{trial}-confirm{number}", role="confirm", **end))
    return lines


def curve(trial, accuracies):
    """Return evaluation lines of a run, one second and 100 samples apart."""
    return [
        Evaluation(
            **POINT, index=index, samples=100 * (index + 1), train_s=1.0 + index, value=accuracy
        ).line(trial)
        for index, accuracy in enumerate(accuracies)
    ]


def results_folder(folder, lines, *, objective=OBJECTIVE, study=None, **sections):
    """Write a study with these records and load it; `study` and `sections` are keys of its
    `study.yaml`."""
    store = Store(folder)
    content = {
        "study": {"objective": objective.model_dump(mode="json"), **(study or {})},
        **sections,
    }
    store.write_yaml(STUDY_FILE, content)
    for line in lines:
        store.append(line)
    store.close()
    return load(folder)


RMSE = {"metric": "rmse", "direction": "min", "baseline_value": 2.0, "max_train_seconds": 60.0}
RMSE_BUDGET = Objective(kind="best_at_budget", **RMSE)
RMSE_LINES = [
    line
    for trial, searched, confirmed in (
        ("0000", 0.40, [0.90, 0.95, 0.99]),
        ("0001", 0.55, [0.60, 0.62, 0.61]),
        ("0002", 0.50, [0.61, 0.66, 0.70]),
        ("0003", 0.58, [0.10, None, None]),
    )
    for line in (
        *curve(trial, [1.9, searched]),
        *at_budget(trial, searched, confirmed, objective=RMSE_BUDGET, failure="oom"),
    )
]


@contextlib.contextmanager
def readers_folder(folder, studies, *, columns):
    """Give a folder the examples, recorded studies (fixtures by name of the results), my_data.csv
    and a cache, and work there on 8 cores; yields the MonkeyPatch."""
    for name, fixture in studies.items():
        shutil.copytree(ROOT / "tests/fixtures" / fixture, folder / "results" / name)
    for example in (*ROOT.glob("examples/*.*"), *ROOT.glob("examples/scripts/*.py")):
        shutil.copy(example, folder)
    rows = [f"{n % 7},{'north' if n % 3 else 'south'},{n % 7 * 90.5}" for n in range(300)]
    (folder / "my_data.csv").write_text("\n".join(["rooms,side,price", *rows]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("RAYBENCH_CACHE", str(folder / "cache"))
        patch.setattr("raybench.cluster.layout.num_local_cores", lambda: 8)
        patch.chdir(folder)
        yield patch


def locked_by(folder, *, pid=1, host=None):
    """Write the file that names a process, on this host by default, as the owner of a folder."""
    owner = {"pid": pid, "host": host or platform.node(), "since": "now", "command": "x"}
    (folder / OWNER_FILE).write_text(json.dumps(owner))


def study_of(folder, *groups):
    """Write a study of several groups of lines, of which a slow trial 0000 is the first."""
    return results_folder(folder, [line for group in (COLD, *groups) for line in group])


def shown(results, *, width=300, verbose=True):
    """Return the screen that is printed at the end of a study."""
    console = Console(file=io.StringIO(), width=width)
    show(console, results, verbose=verbose)
    return console.file.getvalue()
