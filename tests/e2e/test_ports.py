"""A local search listens on this machine only, and needs its token; test_live_session.py checks the
sockets of workers."""

import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from .watched import Watched

pytestmark = [pytest.mark.ray, pytest.mark.all]
LOOPBACK = ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
SPACE = f"""
workload: {Path(__file__).with_name("own_loops.py")}:plain
objective: {{target: 0.9}}
search: {{trials: 2}}
space: {{learning_rate: [0.001, 0.003]}}
fixed: {{framework: python, model: {{slowness: 20}}}}
"""
TENSORFLOW_SERVERS = 2
"""Number of TensorFlow's own servers of a group of two workers. TensorFlow binds them to all
addresses, which no setting changes (README)."""
HOSTILE = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "known-to-all"}
"""Settings of the environment in spite of which a local Ray has its own token."""


@dataclass(frozen=True)
class Socket:
    """A listening socket of one process."""

    address: str
    port: int
    pid: int
    program: str


def listening(pids: set[int]) -> list[Socket]:
    """Return the TCP sockets on which the processes listen."""
    if shutil.which("ss") is None:
        pytest.skip("no ss on this machine")
    done = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True)
    found = []
    for line in done.stdout.splitlines():
        local = line.split()[3]
        address, _, port = local.rpartition(":")
        for program, pid in re.findall(r'\("([^"]*)",pid=(\d+),', line):
            if int(pid) in pids:
                found.append(Socket(address, int(port), int(pid), program))
    return found


def assert_only_here(found: set[Socket], *, tensorflow: Collection[int] = ()) -> None:
    """Check that all sockets are bound to loopback addresses, except TensorFlow's own in the
    processes `tensorflow`."""
    assert {"gcs_server", "raylet"} <= {socket.program for socket in found}, "ss saw the processes"
    assert len(found) > 4
    elsewhere = [socket for socket in found if socket.address not in LOOPBACK]
    assert sum(socket.pid in tensorflow for socket in elsewhere) <= TENSORFLOW_SERVERS
    ours = [(socket, name_of(socket)) for socket in elsewhere if socket.pid not in tensorflow]
    assert not ours, ours


def test_a_local_ray_has_a_token_of_its_own_whatever_the_environment_says(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "small.yaml").write_text(SPACE)
    environment = HOSTILE | {"HOME": str(tmp_path / "home")}
    with Watched("tune", "small.yaml", cwd=tmp_path, **environment) as run:
        run.wait_for_line("search 0/")
        sockets = listening({run.process.pid, *(process.pid for process in run.left())})
        assert_only_here(set(sockets))
        gcs = next(socket for socket in sockets if socket.program == "gcs_server")
        environment = psutil.Process(gcs.pid).environ()
        assert environment["RAY_AUTH_MODE"] == "token"
        token = environment["RAY_AUTH_TOKEN"]
        assert token not in (HOSTILE["RAY_AUTH_TOKEN"], "")
        study = (tmp_path / "results" / "small" / "study.yaml").read_text()
    assert token not in study + run.printed
    left = [file for file in (tmp_path / "home").rglob("*") if file.name == "auth_token"]
    assert not left, "no token in the user's home folder"


def name_of(socket: Socket) -> str:
    """Return the current command line of a process; that of a Ray worker is its task."""
    file = Path(f"/proc/{socket.pid}/cmdline")
    return file.read_text(errors="replace") if file.exists() else socket.program
