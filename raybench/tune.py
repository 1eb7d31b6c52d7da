"""`python -m raybench.tune`: search a space for the configuration that gets there soonest."""

import argparse
import importlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from raybench import cli
from raybench.core.documents import read_mapping
from raybench.core.errors import UserError
from raybench.core.space import Space, possible_values
from raybench.core.study import StudySpec, load_study
from raybench.results.export import export
from raybench.results.load import StudyResults, load
from raybench.results.show import show
from raybench.results.store import STUDY_FILE, Store
from raybench.results.tables import ranked

DEFAULT_SPACE = "digits"


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench tune", description=__doc__)
    result.add_argument(
        "space",
        nargs="?",
        default=DEFAULT_SPACE,
        metavar="SPACE.yaml",
        help="search space: a file, or a shipped name (default: digits)",
    )
    cli.add_common(result, out="results/<name of the space>")
    result.add_argument("--trials", type=int, help="number of trials")
    result.add_argument("--time-budget", type=float, metavar="SECONDS", help="end the search then")
    result.add_argument("--workers", metavar="1,2,4", help="worker counts to search")
    result.add_argument("--gpus-per-worker", type=int, metavar="N", help="0 or 1")
    result.add_argument(
        "--target", metavar="ACCURACY", help="validation accuracy to reach, as 0.95, or auto"
    )
    result.add_argument(
        "--seed-from",
        type=Path,
        metavar="DIR",
        help="results folder of an earlier study of the same task: the sampler learns from it",
    )
    confirm = result.add_mutually_exclusive_group()
    confirm.add_argument(
        "--confirm", metavar="top=3,repeats=3", help="train the best few again with new seeds"
    )
    confirm.add_argument(
        "--no-confirm", action="store_true", help="leave the result unconfirmed: one trial each"
    )
    result.add_argument("--price", type=float, metavar="MONEY", help="per worker-hour")
    result.add_argument("--concurrency", type=int, help="trials at the same time")
    result.add_argument(
        "--isolation",
        choices=("none", "process"),
        default="none",
        help="process: new worker processes for every trial (slower; for code that leaks)",
    )
    result.add_argument("--fresh", action="store_true", help="do not continue: start beside it")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: tune(options))


def tune(options: argparse.Namespace) -> int:
    """Search, confirm, write the results, print them."""
    study, space, name = read_study(options)
    from raybench.search.check import check_task, searched
    from raybench.search.grid import check_grid
    from raybench.search.reference import earlier_target
    from raybench.search.seed_from import load_earlier
    from raybench.search.study_folder import choose_folder

    frameworks = [str(value) for value in searched(study, space, "framework")]
    first = {key: possible_values(dimension)[0] for key, dimension in space.items()}
    dataset = check_task(study.run_spec(first), frameworks)
    check_grid(study, space)
    # The handle itself: what Ray prints to sys.stdout is sent elsewhere meanwhile.
    console = Console(file=sys.stdout)
    wanted = options.out or Path("results") / name
    if not options.fresh and (wanted / STUDY_FILE).is_file():
        study = earlier_target(study, read_mapping(wanted / STUDY_FILE))
    folder = choose_folder(wanted, study, fresh=options.fresh)
    earlier = load_earlier(options.seed_from, study) if options.seed_from else None
    if options.dry_run:
        from raybench.search.factor import study_factors
        from raybench.search.plan import print_plan

        print_plan(console, study, space, dataset, folder, study_factors(study, space))
        return cli.DONE
    with Store(folder) as store:
        interrupted = _run(options, study, space, store, console, dataset.num_classes, earlier)
        results = load(folder)
        export(results, store)
    show(console, results)
    if interrupted:
        console.print("interrupted: the same command continues.", highlight=False)
        return cli.INTERRUPTED
    return cli.DONE if len(ranked(results.trials)) else cli.FAILED


def read_study(options: argparse.Namespace) -> tuple[StudySpec, Space, str]:
    """Return the validated study of the command line, its space, and its name."""
    from raybench.search.study_folder import shipped_space

    path = shipped_space(options.space) or Path(options.space)
    flags: dict[str, Any] = {
        "search.trials": options.trials,
        "search.time_budget_s": options.time_budget,
        "search.concurrency": options.concurrency,
        "search.seed": options.seed,
        "objective.target": options.target,
        "price": options.price,
        "gpus_per_worker": options.gpus_per_worker,
        "workload": options.workload,
    }
    settings = [f"{key}={value}" for key, value in flags.items() if value is not None]
    if options.workers is not None:
        settings.append(f"space.num_workers=[{options.workers}]")
    settings += _confirm_settings(options.confirm, options.no_confirm)
    study, space = load_study(path, [*settings, *options.settings])
    return study, space, path.stem


def _confirm_settings(wanted: str | None, unwanted: bool) -> list[str]:
    """Return `--confirm top=3,repeats=3` and `--no-confirm` as `--set` has them."""
    if unwanted:
        return ["confirm.top=0"]
    parts = [] if wanted is None else wanted.split(",")
    if not all("=" in part for part in parts):
        raise UserError(f"--confirm {wanted}: write it as top=3,repeats=3, or only one of them.")
    return [f"confirm.{part.strip()}" for part in parts]


def _run(
    options: argparse.Namespace,
    study: StudySpec,
    space: Space,
    store: Store,
    console: Console,
    num_classes: int,
    earlier: StudyResults | None,
) -> bool:
    """Run what is left of the study; return whether it was interrupted."""
    from raybench.cluster.session import Session
    from raybench.search.check import check_room, default_concurrency, first_groups, searched
    from raybench.search.environment import prepare_environment

    prepare_environment()
    began = time.perf_counter()
    # Ray's processes take seconds to come up, Ray Tune and Optuna one to import: at once.
    threading.Thread(target=importlib.import_module, args=["raybench.search.phases"]).start()
    with Session(address=options.address) as session:
        check_room(study, space, session.capacity)
        concurrency = study.search.concurrency or default_concurrency(
            study, space, session.capacity
        )
        session.hub.prepare.remote(
            searched(study, space, "framework"), first_groups(study, space, session.capacity)
        )
        from raybench.search.control import Control
        from raybench.search.phases import Phases

        control = Control(study.search.time_budget_s, began=began)
        control.listen()
        phases = Phases(
            space,
            session,
            store,
            console,
            control,
            num_classes=num_classes,
            concurrency=concurrency,
            keep_groups=options.isolation == "none",
        )
        phases.run(study, earlier)
    return control.interrupted


if __name__ == "__main__":
    sys.exit(main())
