"""Commands that prepare a study: doctor, init and data.

`raybench doctor` checks hardware, drivers and network, `raybench init` inspects a dataset and
writes a search space for it, and `raybench data` lists or removes the decoded datasets that are
cached on this machine.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.filesize import decimal

from raybench.cluster.signals import Interrupt
from raybench.data.store import (
    Entry,
    free_bytes,
    list_entries,
    remove_entry,
    remove_unfinished,
    store_folder,
)
from raybench.models.find import load_workload_dataset
from raybench.models.starter import DataSummary, space_text, start_for, summarize, summarize_dataset
from raybench.report.console import make_console, print_frame, say
from raybench.results.store import write_out
from raybench.runs.options import DataOptions, DoctorOptions, InitOptions
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import DONE, FAILED, Ended, ErrorCode, UserError, did_you_mean
from raybench.spec.text import command_line
from raybench.stats.clock import unix_seconds

GIB, MB = 2**30, 1e6
NO_PROBLEM = "No problems found."


def doctor(options: DoctorOptions, interrupt: Interrupt) -> Ended:
    """Run the `doctor` command: check the machines and print the findings.

    The exit code is 1 if there are problems.
    """
    from raybench.cluster.doctor import examine
    from raybench.runs.wait_watch import live_session

    console = make_console(sys.stdout)
    libraries = contextlib.redirect_stdout(sys.stderr)
    with libraries, live_session(options.address, interrupt, console) as session:
        findings = examine(session, options.address)
    for line in doctor_lines(findings):
        say(console, line)
    answer = findings["problems"] or [NO_PROBLEM]
    return Ended(DONE if findings["ok"] else FAILED, answer=answer, details=findings)


def doctor_lines(findings: dict[str, Any]) -> list[str]:
    """Return the lines to print: the hosts, then network, notes and problems."""
    lines = [line for facts in findings["hosts"] for line in _host_lines(facts)]
    for place, network in (("", findings["network"]), (" of one host", findings["inside"])):
        if network is None:
            continue
        backend = f"{network['through']} ({network['framework']})"
        interfaces = f" over {', '.join(network['interfaces'])}" if network["interfaces"] else ""
        lines.append(f"all-reduce of {network['workers']} workers{place} by {backend}{interfaces}:")
        lines += [
            f"  {size['bytes'] / 1024:,.0f} KiB in {1e3 * size['seconds']:.2f} ms "
            f"({size['bytes_per_s'] / MB:,.0f} MB/s)"
            for size in network["sizes"]
        ]
    lines += findings["notes"]
    if not findings["problems"]:
        return [*lines, NO_PROBLEM]
    return [*lines, "", *(f"Will not work: {problem}" for problem in findings["problems"])]


def _host_lines(facts: dict[str, Any]) -> Iterator[str]:
    yield (
        f"host {facts['host']} ({facts['address']}): {facts['cores']} cores, Ray has "
        f"{facts['ray_cpus']:g}, load {facts['load']:.1f}, niceness {facts['niceness']}"
    )
    yield (
        f"  free: memory {facts['free_memory_bytes'] / GIB:.1f} GiB, disk "
        f"{facts['free_disk_bytes'] / GIB:.1f} GiB; disk {facts['disk_bytes_per_s'] / MB:,.0f} MB/s"
    )
    yield f"  {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}"
    counts = [f"Ray {facts['ray_gpus']:g}"]
    counts += [f"{name} {len(library['names'])}" for name, library in facts["gpus"].items()]
    kinds = sorted(set(facts["gpus"]["nvml"]["names"]))
    yield f"  GPUs: {', '.join(counts)}{': ' if kinds else ''}{', '.join(kinds)}"
    for name, library in facts["gpus"].items():
        if library["names"]:
            versions = ", ".join(f"{key} {version}" for key, version in library["versions"].items())
            free = sum(library["free_bytes"]) / GIB
            yield f"    {name}: {versions}" + (f", {free:.0f} GiB free" if free else "")


def init(options: InitOptions) -> Ended:
    """Run the `init` command: print a summary of the data, and write a search space for it."""
    out = options.out
    if out.exists() and not options.force:
        raise UserError(
            f"{out} exists; name another file with --out, or overwrite it with --force.",
            ErrorCode.CONFLICT,
        )
    if not out.parent.is_dir():
        raise UserError(
            f"--out {out}: the folder {out.parent} does not exist; create it first.",
            ErrorCode.NOT_FOUND,
        )
    summary, workload = _inspect(options)
    for line in summary.lines:
        print(line)
    start = start_for(summary, options.framework, workload)
    write_out(out, space_text(summary, start, file=out))
    task = f"Task: {summary.task.replace('_', ' ')}; workload {start.workload} ({start.comment})."
    print(
        f"{task}\n\nWrote {out}: look through it, then run:\n"
        f"  {command_line('tune', out, '--dry-run')}\n"
        f"  {command_line('tune', out)}"
    )
    return Ended(DONE, answer=[*summary.lines, task], details={"wrote": out})


def _inspect(options: InitOptions) -> tuple[DataSummary, str | None]:
    """Inspect the data.

    Returns:
        - Summary of the data.
        - Name of the workload that loads the data; None if raybench loads them.
    """
    path = Path(options.data).expanduser()
    if any("\ud800" <= character <= "\udfff" for character in str(path)):  # not valid UTF-8
        raise UserError(
            f"{str(path)!r} is not valid UTF-8, as a space file has to be; rename it.",
            ErrorCode.INVALID_VALUE,
        )
    if ":" in options.data and not path.exists():
        for key in ("label", "task"):
            if getattr(options, key):
                raise UserError(
                    f"--{key} applies to data in files; {options.data} defines it itself.",
                    ErrorCode.CONFLICT,
                )
        _, dataset = load_workload_dataset(options.data, DatasetSpec(name="workload"))
        return summarize_dataset(dataset, {"name": "workload"}), options.data
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(
            f"{path}: is neither a file nor a folder; name your data.", ErrorCode.NOT_FOUND
        )
    return summarize(path.resolve(), labels=options.label, task=options.task), None


ALL = "all"
DAY = 86400  # seconds


def data(options: DataOptions) -> Ended:
    """Run the `data` command: list the cached datasets, or remove some of them."""
    entries = list_entries(store_folder())
    if options.unused_for is not None:
        cutoff_s = unix_seconds() - options.unused_for
        entries = [entry for entry in entries if entry.last_used < cutoff_s]
    return _remove_datasets(entries, options) if options.remove else _list_datasets(entries)


def _list_datasets(entries: Sequence[Entry]) -> Ended:
    console, store = make_console(sys.stdout), store_folder()
    if not entries:
        say(console, f"No datasets are kept in {store}.")
        return Ended(DONE, details={"folder": store, "entries": []})
    cells = pd.DataFrame(
        {
            "key": entry.key,
            "samples": f"{entry.about['samples']:,}",
            "size": decimal(entry.about["bytes"]),
            "last used": f"{(unix_seconds() - entry.last_used) / DAY:.1f} days ago",
            "made from": entry.about["path"],
            "with": _changed_options(entry.about["options"]),
        }
        for entry in entries
    )
    total = decimal(sum(entry.about["bytes"] for entry in entries))
    below = f"{total} in {store}, whose disk has {decimal(free_bytes())} left."
    title = "Datasets kept on this machine"
    print_frame(console, cells, title, drop=("samples", "last used"), below=below)
    documents = [
        {"key": entry.key, "last_used": entry.last_used} | entry.about for entry in entries
    ]
    return Ended(DONE, answer=[below], details={"folder": store, "entries": documents})


def _changed_options(options: dict[str, Any]) -> str:
    """Return the options of a dataset that differ from their defaults, as the text `key: value,
    ...`."""
    default = DatasetSpec().model_dump(mode="json")
    changed = {key: value for key, value in options.items() if value != default[key]}
    return ", ".join(f"{key}: {value}" for key, value in changed.items())


def _remove_datasets(entries: Sequence[Entry], options: DataOptions) -> Ended:
    """Remove the datasets whose keys were given with `--remove`."""
    console, keys = make_console(sys.stdout), options.remove
    by_key = {entry.key: entry for entry in entries}
    chosen = dict.fromkeys(key for name in keys for key in (by_key if name == ALL else [name]))
    for key in chosen:
        if key not in by_key:
            hint = did_you_mean(key, by_key, "`raybench data` lists them.")
            unused = "" if options.unused_for is None else " among those unused for so long"
            raise UserError(
                f"--remove {key}: no such dataset is kept here{unused}; {hint}", ErrorCode.NOT_FOUND
            )
    freed = 0
    for key in chosen:
        remove_entry(by_key[key].folder)
        freed += by_key[key].about["bytes"]
        say(console, f"Removed {key}: {by_key[key].about['path']}.")
    if ALL in keys and options.unused_for is None:
        freed += remove_unfinished(store_folder())
    say(console, f"{decimal(freed)} freed in {store_folder()}.")
    return Ended(DONE, details={"removed": [*chosen], "bytes": freed})
