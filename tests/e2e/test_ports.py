"""A local search listens on this machine alone, and only to who has its token."""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from .watched import Watched

pytestmark = [pytest.mark.ray, pytest.mark.all]
LOOPBACK = ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
SPACE = """
workload: mnist_small
dataset: {name: digits, image_size: 28}
objective: {kind: time_to_target, target: 0.999, max_train_seconds: 2}
search: {trials: 60, early_stopping: false}
confirm: {race: 0}
space:
  learning_rate: {low: 1.0e-3, high: 6.0e-3, log: true}
fixed: {framework: FRAMEWORK, num_workers: WORKERS, batch_size_per_worker: 32}
"""
GET_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
TENSORFLOW_SERVERS = 2
"""TensorFlow's own servers of a group of two workers: it binds them to all addresses, and nothing
in it changes that (README)."""
HOSTILE = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "known-to-all"}
"""What the environment may say; a local Ray of ours has a token of its own all the same."""


@dataclass(frozen=True)
class Socket:
    """A listening socket of one process."""

    address: str
    port: int
    pid: int
    program: str


def listening(pids: set[int]) -> list[Socket]:
    """Return the TCP sockets on which the processes listen."""
    done = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True)
    found = []
    for line in done.stdout.splitlines():
        local = line.split()[3]
        address, _, port = local.rpartition(":")
        for program, pid in re.findall(r'\("([^"]*)",pid=(\d+),', line):
            if int(pid) in pids:
                found.append(Socket(address, int(port), int(pid), program))
    return found


def sample(run: Watched, seconds: float) -> set[Socket]:
    """Return every socket that was there at some moment."""
    found: set[Socket] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert run.process.poll() is None, run.printed
        found |= set(listening(run.pids()))
        time.sleep(0.2)
    return found


def start(framework: str, num_workers: int, folder: Path) -> Watched:
    """Start a search that goes on for longer than the test looks at it."""
    if shutil.which("ss") is None:
        pytest.skip("no ss on this machine")
    pytest.importorskip(framework)
    text = SPACE.replace("FRAMEWORK", framework).replace("WORKERS", str(num_workers))
    (folder / "small.yaml").write_text(text)
    return Watched("tune", "small.yaml", cwd=folder)


def test_nothing_listens_on_the_network(tmp_path: Path) -> None:
    with start("tensorflow", 2, tmp_path) as run:
        run.wait_for_line("search 1/")
        found = sample(run, 3)
    assert_only_here(found, by_workers=TENSORFLOW_SERVERS)


def assert_only_here(found: set[Socket], *, by_workers: int) -> None:
    """Hold that all but so many sockets of workers are bound to this machine's own addresses."""
    programs = {socket.program for socket in found}
    assert {"gcs_server", "raylet"} <= programs, "ss saw the processes of this search"
    assert len(found) > 4
    elsewhere = [socket for socket in found if socket.address not in LOOPBACK]
    # The kernel keeps 15 letters of a name.
    of_workers = [socket for socket in elsewhere if "ray::RayTrainWo" in socket.program]
    assert len(of_workers) <= by_workers, [(socket, name_of(socket)) for socket in of_workers]
    elsewhere = [socket for socket in elsewhere if socket not in of_workers]
    assert not elsewhere, [(socket, name_of(socket)) for socket in elsewhere]


def test_a_client_without_the_token_is_refused_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from . import commands

    grpc = pytest.importorskip("grpc")
    for key, value in (HOSTILE | {"HOME": str(tmp_path / "home")}).items():
        monkeypatch.setitem(commands.ENVIRONMENT, key, value)
    (tmp_path / "home").mkdir()
    with start("torch", 2, tmp_path) as run:
        run.wait_for_line("search 1/")
        assert_only_here(sample(run, 3), by_workers=0)
        sockets = listening(run.pids())
        gcs = next(socket for socket in sockets if socket.program == "gcs_server")
        address, token = f"127.0.0.1:{gcs.port}", token_of(gcs.pid)
        assert token not in (HOSTILE["RAY_AUTH_TOKEN"], "")
        assert ask(address, token) is grpc.StatusCode.OK, "the question is right, and so the token"
        for wrong in (None, "", HOSTILE["RAY_AUTH_TOKEN"], token[:-1] + "_"):
            assert ask(address, wrong) is grpc.StatusCode.UNAUTHENTICATED, wrong
        study = (tmp_path / "results" / "small" / "study.yaml").read_text()
    assert token not in study + run.printed, "the token is nobody else's"
    left = [file for file in (tmp_path / "home").rglob("*") if file.name == "auth_token"]
    assert not left, "no token in the user's home folder"


def name_of(socket: Socket) -> str:
    """What a process calls itself now; Ray's workers are named by what they run."""
    file = Path(f"/proc/{socket.pid}/cmdline")
    return file.read_text(errors="replace") if file.exists() else socket.program


def token_of(pid: int) -> str:
    """Return the token of a running Ray process, from where its loader takes it."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    assert environment.get("RAY_AUTH_MODE") == "token"
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"].strip()
    file = environment.get("RAY_AUTH_TOKEN_PATH") or f"{environment['HOME']}/.ray/auth_token"
    assert not Path(file).stat().st_mode & 0o077, "the token's file is the user's alone"
    return Path(file).read_text().splitlines()[0].strip()


def ask(address: str, token: str | None) -> object:
    """Ask a GCS for its cluster's id; return the status of the call."""
    import grpc
    from ray.core.generated import gcs_service_pb2

    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            GET_CLUSTER_ID,
            request_serializer=gcs_service_pb2.GetClusterIdRequest.SerializeToString,
            response_deserializer=gcs_service_pb2.GetClusterIdReply.FromString,
        )
        try:
            call(gcs_service_pb2.GetClusterIdRequest(), metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK
