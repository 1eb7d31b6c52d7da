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

import pytest

from .commands import RAY
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
