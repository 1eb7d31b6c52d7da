"""clock_skew.py's group without Ray: two processes, one of which hears "go on" later."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trees

DELAYS_MS = (0, 5, 20)
LIMIT_S = 180.0


def free_ports(number: int) -> list[str]:
    """Return ports that nobody listens on now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def gaps_of(folder: Path, number: int) -> list[float]:
    """Return the seconds between the first and the last rank's entry into training, in order."""
    times = [[float(t) for t in file.read_text().split()] for file in folder.glob("*.times")]
    assert len(times) == number, f"{len(times)} ranks noted their times"
    assert len({len(one) for one in times}) == 1, "the ranks trained unequally often"
    return [max(moment) - min(moment) for moment in zip(*times, strict=True)]


def without_ray(tree: Path, spec: dict[str, Any]) -> dict[int, tuple[float, float]]:
    """Train `spec` on its workers' processes, the last of which hears everything later.

    Returns, for every delay in ms, the median ms of training and between the ranks' entries.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name), int(spec["num_workers"])
        ports, environment = free_ports(number), trees.environment(tree, SKEW_FOLDER=name)
        files = [folder / f"{rank}.json" for rank in range(number)]
        delays = json.dumps([delay / 1e3 for delay in DELAYS_MS])
        content = json.dumps(spec)
        waiting, release = os.pipe()
        processes = []
        for rank, file in enumerate(files):
            script = str(trees.HERE / "skew_rank.py")
            command = [sys.executable, script, content, str(rank), delays, str(file), *ports]
            with file.with_suffix(".log").open("w") as log:
                processes.append(
                    subprocess.Popen(command, stdin=waiting, stderr=log, env=environment)
                )
        os.close(waiting)
        deadline = time.monotonic() + LIMIT_S
        while not all(file.exists() for file in files):
            failed = any(process.poll() is not None for process in processes)
            if failed or time.monotonic() > deadline:
                for process in processes:
                    process.kill()
                logs = [file.with_suffix(".log").read_text()[-2000:] for file in files]
                raise RuntimeError(f"a rank failed: {logs}")
            time.sleep(0.02)
        os.close(release)
        for process in processes:
            process.wait(timeout=30)
        slices = json.loads(files[0].read_text())
        gaps = gaps_of(folder, number)
    # The first slice follows no command, and has what is done once in it.
    rows = list(zip(slices, gaps, strict=True))[1:]
    medians = {}
    for delay in DELAYS_MS:
        own = [(train, gap) for (heard, train), gap in rows if round(1e3 * heard) == delay]
        trained, apart = (1e3 * statistics.median(values) for values in zip(*own, strict=True))
        medians[delay] = (trained, apart)
    return medians
