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
    """Examine the machines and print the findings; exit code 1 means that there are problems."""
    from raybench.cluster.doctor import examine
    from raybench.runs.wait_watch import live_session

    console = make_console(sys.stdout)
    libraries = contextlib.redirect_stdout(sys.stderr)
    with libraries, live_session(options.address, interrupt, console) as session:
        found = examine(session, options.address)
    for line in lines_of(found):
        say(console, line)
    answer = found["problems"] or [WELL]
    return Ended(DONE if found["ok"] else FAILED, answer=answer, details=found)


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return the lines to print: some per host, then the network, notes and problems."""
    lines = [line for facts in found["hosts"] for line in _host(facts)]
    for where, network in (("", found["network"]), (" of one host", found["inside"])):
        if network is None:
            continue
        how = f"{network['through']} ({network['framework']})"
        over = f" over {', '.join(network['interfaces'])}" if network["interfaces"] else ""
        lines.append(f"all-reduce of {network['workers']} workers{where} by {how}{over}:")
        lines += [
            f"  {one['bytes'] / 1024:,.0f} KiB in {1e3 * one['seconds']:.2f} ms "
            f"({one['bytes_per_s'] / MB:,.0f} MB/s)"
            for one in network["sizes"]
        ]
    lines += found["notes"]
    if not found["problems"]:
        return [*lines, WELL]
    return [*lines, "", *(f"Will not work: {problem}" for problem in found["problems"])]


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
    counts += [f"{name} {len(seen['names'])}" for name, seen in facts["gpus"].items()]
    kinds = sorted(set(facts["gpus"]["nvml"]["names"]))
    yield f"  GPUs: {', '.join(counts)}{': ' if kinds else ''}{', '.join(kinds)}"
    for name, seen in facts["gpus"].items():
        if seen["names"]:
            versions = ", ".join(f"{key} {version}" for key, version in seen["versions"].items())
            free = sum(seen["free_bytes"]) / GIB
            yield f"    {name}: {versions}" + (f", {free:.0f} GiB free" if free else "")
