"""One `raybench diagnose`, from its arguments to the verdict."""

import argparse
import sys
from functools import partial

from rich.console import Console

from raybench.cluster.capacity import local_capacity
from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.core.documents import to_yaml
from raybench.core.errors import DONE, FAILED, INTERRUPTED, UserError
from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset
from raybench.results.console import make_console, say
from raybench.results.export import export
from raybench.results.label import describe
from raybench.results.load import load
from raybench.results.place import check_place, shown
from raybench.results.provenance import command, machine, versions
from raybench.results.storage import open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.scaling.probes import Probes, probe_spec
from raybench.scaling.shares import FEWEST_ROUNDS
from raybench.search.pipeline.live_session import live_session
from raybench.search.pipeline.preflight import check_address, check_gpus, check_task
from raybench.search.pipeline.probe_runs import ProbeRuns
from raybench.search.pipeline.show_verdict import VERDICT_FILE, print_verdict, verdict_document
from raybench.search.pipeline.train import holds_own, names_target, read_spec
from raybench.search.pipeline.waits import Waits

MARK = "diagnosis"


def diagnose(options: argparse.Namespace, interrupt: Interrupt) -> int:
    """Train the probes, print and keep the verdict; return the exit code."""
    spec = read_spec(options)
    _check(options, spec)
    check_address(options.address)
    name = options.spec.stem if options.spec else "default"
    place = check_place(options.out or f"results/diagnose-{name}")
    if chosen_address(options.address) is None:
        local_capacity().refuse_infeasible(spec.placement.group)
        check_gpus([spec.placement])
    objective, dataset = check_task(
        spec, [spec.framework], is_target_ours=not names_target(options)
    )
    spec = spec.model_copy(update={"objective": objective})
    _check_data(spec, dataset)
    console = make_console(file=sys.stdout)
    if options.dry_run:
        _print_plan(console, spec, dataset)
        return DONE
    with open_storage(place, warn=partial(say, console)) as storage:
        folder = storage.folder
        if (folder / RECORDS_FILE).is_file() and not holds_own(folder, MARK):
            raise UserError(f"{place}: holds another study; name another folder with --out.")
        with Store(folder, storage.check) as store:
            interrupt.defer()
            runs = _measure(options, spec, dataset, store, console, interrupt)
            store.check()
            export(load(folder), store)
            if runs.num_rounds < FEWEST_ROUNDS:
                say(console, f"Interrupted before {FEWEST_ROUNDS} rounds: there is no verdict.")
            else:
                verdict = runs.verdict()
                store.write_yaml(VERDICT_FILE, verdict_document(verdict, runs), comment=VERDICT)
                print_verdict(console, verdict, runs)
        say(console, f"results: {shown(storage.place, folder)}")
    if interrupt.is_set:
        return INTERRUPTED
    return DONE if runs.num_rounds >= FEWEST_ROUNDS else FAILED


VERDICT = "What bounds the training, by raybench diagnose; seconds of a step of each round below."


def _check(options: argparse.Namespace, spec: RunSpec) -> None:
    if spec.num_workers > 1 and not spec.exchange_gradients:
        raise UserError(
            "exchange_gradients: false: diagnose itself measures a training with and without the "
            "exchange of gradients; leave the key out."
        )
    if spec.replicas_per_process > 1:
        raise UserError(
            "strategy: single_process: diagnose compares a training with one that exchanges no "
            "gradients, which replicas of one process cannot; set strategy: distributed."
        )
    if options.repeats < FEWEST_ROUNDS:
        raise UserError(
            f"--repeats {options.repeats}: fewer than {FEWEST_ROUNDS} rounds show no spread; ask "
            f"for {FEWEST_ROUNDS} or more."
        )
    if not 0.01 <= options.seconds <= 3600:
        raise UserError(f"--seconds {options.seconds:g}: must be from 0.01 to 3600.")


def _check_data(spec: RunSpec, dataset: Dataset) -> None:
    """Raise UserError for data of which there are no synthetic ones to compare with."""
    one_array = not isinstance(dataset.train.inputs, dict)
    if dataset.task != "classification" or not one_array or dataset.train.dtype.kind == "i":
        what = dataset.task.replace("_", " ") if one_array else "inputs by name"
        if one_array and dataset.task == "classification":
            what = "tokens"
        raise UserError(
            f"dataset {spec.dataset.name}: diagnose compares with synthetic data, which there are "
            f"of images and vectors with classes, not of {what}; measure its speed with "
            "python -m raybench.scale."
        )


def _print_plan(console: Console, spec: RunSpec, dataset: Dataset) -> None:
    console.print(to_yaml(spec.document()), soft_wrap=True)
    names = Probes.of(spec).names
    for probe, name in names.items():
        data = probe_spec(spec, probe, dataset, steps=1).dataset
        exchange = "gradients exchanged" if probe.exchanges else "no exchange"
        say(
            console,
            f"{name}: {exchange}, dataset {data.name}, batch {probe.batch_size_per_worker} a "
            "worker",
        )


def _measure(
    options: argparse.Namespace,
    spec: RunSpec,
    dataset: Dataset,
    store: Store,
    console: Console,
    interrupt: Interrupt,
) -> ProbeRuns:
    with live_session(options.address, interrupt, console) as session:
        session.capacity.refuse_infeasible(spec.placement.group)
        store.clear()
        content = {"objective": spec.objective.model_dump(mode="json"), MARK: spec.document()}
        store.write_yaml(
            STUDY_FILE,
            {
                "study": content,
                "command": command(),
                "versions": versions(),
                "machine": machine(),
            },
        )
        say(console, f"{describe(spec)}: {len(Probes.of(spec).names)} probes in turns")
        waits = Waits(console, session.stop_waiting)
        with waits.watch(session, is_over=lambda: interrupt.is_set, wait_s=options.wait):
            runs = ProbeRuns(session.pool, spec, dataset, store, waits, interrupt)
            runs.pilot(options.seconds)
            for number in range(2 * options.repeats):
                if interrupt.is_set or (number >= options.repeats and runs.is_sure):
                    break
                runs.round(number)
                if runs.num_rounds >= FEWEST_ROUNDS:
                    say(console, f"round {number + 1}: {runs.so_far()}")
    return runs
