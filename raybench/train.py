"""`python -m raybench.train`: train one run spec, print its curve and ledger, save the model."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from raybench import cli
from raybench.backends.saved import MODEL_FILES
from raybench.core.clock import PHASES
from raybench.core.documents import apply_settings, read_mapping, to_yaml, validate
from raybench.core.errors import UserError
from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.export import export
from raybench.results.load import describe, load
from raybench.results.provenance import command, machine, versions
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store

TRIAL = "0000"


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench train", description=__doc__)
    result.add_argument(
        "spec", nargs="?", type=Path, metavar="SPEC.yaml", help="run spec; none: the defaults"
    )
    cli.add_common(result, out="results/train-<name of the spec>")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: train(options))


def train(options: argparse.Namespace) -> int:
    """Train, save, print."""
    from raybench.search.check import check_task

    spec = read_spec(options)
    dataset = check_task(spec, [spec.framework])
    console = Console(file=sys.stdout)
    if options.dry_run:
        console.print(to_yaml(spec.document()), highlight=False, soft_wrap=True)
        console.print(f"{dataset.num_train_samples:,} training samples an epoch", highlight=False)
        return cli.DONE
    name = options.spec.stem if options.spec else "default"
    folder = options.out or Path("results") / f"train-{name}"
    if (folder / RECORDS_FILE).is_file() and not _is_own(folder):
        raise UserError(f"{folder}: holds a search; name another folder with --out.")
    with Store(folder) as store:
        record = _run(options, spec, store, console)
        export(load(folder), store)
    _print_outcome(console, record, folder)
    if record.stop == "interrupted":
        return cli.INTERRUPTED
    return cli.FAILED if record.failure else cli.DONE


def read_spec(options: argparse.Namespace) -> RunSpec:
    """Return the run spec of the command line."""
    defaults = RunSpec().document()
    content: dict[str, Any] = (
        read_mapping(options.spec)
        if options.spec
        else {key: defaults[key] for key in ("dataset", "objective")}
    )
    settings = list(options.settings)
    for key, value in (("workload", options.workload), ("seed", options.seed)):
        if value is not None:
            settings.insert(0, f"{key}={value}")
    source = str(options.spec) if options.spec else "run spec"
    return validate(RunSpec, apply_settings(content, settings), source)


def _run(options: argparse.Namespace, spec: RunSpec, store: Store, console: Console) -> RunRecord:
    from raybench.cluster.run_once import run_once
    from raybench.cluster.session import Session
    from raybench.cluster.signals import Interrupt

    interrupt = Interrupt()
    with Session(address=options.address) as session:
        session.capacity.refuse_infeasible_spec(spec)
        store.clear()
        store.write_yaml(
            STUDY_FILE,
            {
                "study": {"objective": spec.objective.model_dump(mode="json"), "run": True},
                "command": command(),
                "versions": versions(),
                "machine": machine(),
            },
        )
        interrupt.listen()
        console.print(f"{describe(spec.document())}, seed {spec.seed}", highlight=False)
        console.print(_HEAD, highlight=False)

        def on_evaluation(name: str, evaluation: Evaluation) -> None:
            store.append(evaluation.line(name))
            console.print(_curve_line(evaluation), highlight=False)

        record, weights = run_once(
            session.hub,
            spec,
            TRIAL,
            "search",
            on_evaluation=on_evaluation,
            outer_stop=interrupt.reason,
            save=True,
        )
    store.append(record.line())
    if weights is not None:
        store.write_bytes(MODEL_FILES[spec.framework], weights)
    return record


_HEAD = "  epoch    samples   train s     loss  accuracy   samples/s  learning rate"


def _curve_line(evaluation: Evaluation) -> str:
    return (
        f"{evaluation.epoch:7.2f} {evaluation.samples:10,} {evaluation.train_s:9.2f} "
        f"{evaluation.train_loss:8.4f} {100 * evaluation.accuracy:8.2f}% "
        f"{evaluation.samples_per_s:11,.0f} {evaluation.learning_rate:14.4g}"
    )


def _print_outcome(console: Console, record: RunRecord, folder: Path) -> None:
    phases = "  ".join(f"{phase} {record.ledger[phase]:.2f}" for phase in PHASES)
    lines = [f"ledger, s: {phases}  | wall {record.wall_s:.2f}"]
    target = record.spec["objective"]["target"]
    if record.failure:
        lines.append(f"failed: {record.failure} ({record.message})")
    elif record.time_to_target_s is not None:
        lines.append(f"target {100 * target:g} % after {record.time_to_target_s:.2f} s of training")
    elif target is not None:
        lines.append(f"target {100 * target:g} % not reached (ended by {record.stop})")
    if record.test_accuracy is not None:
        lines.append(f"test accuracy {100 * record.test_accuracy:.2f} %")
        name = MODEL_FILES[record.spec["framework"]]
        lines.append(f"model: {folder / name}, load it with raybench.load_model('{folder}')")
    lines.append(f"results: {folder}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _is_own(folder: Path) -> bool:
    if not (folder / STUDY_FILE).is_file():
        return not (folder / RECORDS_FILE).stat().st_size
    return bool(read_mapping(folder / STUDY_FILE).get("study", {}).get("run"))


if __name__ == "__main__":
    sys.exit(main())
