"""The README's cluster commands, against a head started on this machine, with a token."""

import json
import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .commands import RAY, has_run, start, until
from .commands import head as running
from .host_cluster import command

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.apart, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A running head: its dashboard address, and the environment of its clients."""
    pytest.importorskip("torch")
    home = tmp_path_factory.mktemp("home")
    # Ray's sockets need a short path.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")}
    environment |= {"HOME": str(home), "RAY_AUTH_MODE": "token"}
    subprocess.run(
        [RAY, "get-auth-token", "--generate"],
        env=environment,
        check=True,
        capture_output=True,
        timeout=600,
    )
    port, dashboard = free_port(), free_port()
    words = shlex.split(command("ray start --head"))
    assert words[:3] == ["ray", "start", "--head"]
    # This host is the whole cluster: nothing of it listens beyond; one CPU is the driver's.
    ports = f"--port={port}", f"--dashboard-port={dashboard}"
    with running(*ports, "--num-cpus=3", "--include-dashboard=true", **environment):
        _wait_for(f"http://127.0.0.1:{dashboard}/api/version", home)
        environment["GCS"] = f"127.0.0.1:{port}"
        yield f"http://127.0.0.1:{dashboard}", environment


def _wait_for(url: str, home: Path) -> None:
    token = (home / ".ray" / "auth_token").read_text().strip()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + 600
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:
                json.load(reply)
                return
        except (urllib.error.URLError, OSError, ValueError):
            assert time.monotonic() < deadline, "the head did not start"
            time.sleep(0.5)


def test_without_the_token_it_is_refused(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = head
    stranger = environment | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [RAY, "job", "list", "--address", address],
        env=stranger,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0


def processes() -> list[psutil.Process]:
    """Those of this machine that have a command line."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"]]


def test_a_head_that_dies_is_said_within_seconds(
    head: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """The last test here: it takes the head away."""
    _, environment = head
    place, log = environment["GCS"], tmp_path / "log"
    given = ["--trials", "50", "--target", "0.9", "--set", "space.framework=[torch]"]
    process = start(
        "tune", "--address", place, *given, "--out", "out", cwd=tmp_path, log=log, **environment
    )
    port = place.rpartition(":")[2]
    (guard,) = (
        one for one in processes() if {"--block", f"--port={port}"} <= {*one.info["cmdline"]}
    )
    try:
        until(lambda: has_run(tmp_path / "out"), process, log)
        (store,) = (
            one for one in processes() if f"--gcs_server_port={port}" in one.info["cmdline"]
        )
        # Or it would end the raylet too, a second later, and Ray this driver without a word.
        guard.suspend()
        store.kill()
        assert process.wait(timeout=600) == 1, log.read_text()
    finally:
        guard.resume()
        process.kill()
    said = log.read_text().splitlines()[-1]
    assert said.startswith("raybench: ")
    assert f":{port})" in said
