"""`raybench doctor`: check hardware, drivers and network."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from raybench.cluster.signals import Interrupt
from raybench.report.console import make_console, say
from raybench.runs.options import DoctorOptions
from raybench.spec.errors import DONE, FAILED, Ended

GIB, MB = 2**30, 1e6
WELL = "Nothing is wrong."


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
    for line in lines_of(findings):
        say(console, line)
    answer = findings["problems"] or [WELL]
    return Ended(DONE if findings["ok"] else FAILED, answer=answer, details=findings)


def lines_of(findings: dict[str, Any]) -> list[str]:
    """Return the lines to print: first those of each host, then network, notes and problems."""
    lines = [line for facts in findings["hosts"] for line in _host(facts)]
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
        return [*lines, WELL]
    return [*lines, "", *(f"Will not work: {problem}" for problem in findings["problems"])]


def _host(facts: dict[str, Any]) -> Iterator[str]:
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
