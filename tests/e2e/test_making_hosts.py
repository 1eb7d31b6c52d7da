"""The hosts that tests are run on: what they share, how they are cut off, that none is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .hosts import Host, Hosts, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
LISTEN = "import socket, time; a = socket.create_server(('0.0.0.0', 7000)); time.sleep(99)"
CALL = "import socket; socket.create_connection(('{}', 7000), timeout=2)"
MAKER = """
import os, sys
import signal
from pathlib import Path
import psutil
from tests.e2e.hosts import Hosts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with Hosts(2) as hosts:
    outside = hosts[1].start("sleep", "1000", log=Path(os.devnull))
    while not (asleep := hosts[1].processes("sleep")):
        pass
    if "stopped" in sys.argv:
        asleep[0].suspend()  # what started it from outside stops with it
        while psutil.Process(outside.pid).status() != psutil.STATUS_STOPPED:
            pass
    print(*(os.readlink(f"/proc/{host._first}/ns/net") for host in hosts), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as made:
        yield made


def calls(caller: Host, name: str) -> bool:
    return caller.run(sys.executable, "-c", CALL.format(name)).returncode == 0


def listen(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    host.start(sys.executable, "-c", LISTEN, log=log)
    deadline = time.monotonic() + 120
    while not calls(host, "localhost"):
        assert time.monotonic() < deadline, log.read_text()


def test_hosts_share_the_disk_alone(hosts: Hosts, tmp_path: Path) -> None:
    first, second = hosts
    assert second.run("cat", "/proc/sys/kernel/hostname").stdout == "host2\n"
    first.run("sh", "-c", f"touch /tmp/ray/own $HOME/own /dev/shm/own {tmp_path}/shared")
    seen = second.run("sh", "-c", f"ls /tmp/ray $HOME /dev/shm {tmp_path}").stdout
    assert "shared" in seen
    assert "own" not in seen
    first.start("sleep", "1000", log=tmp_path / "log")
    assert not second.processes("sleep")
    assert "sleep" not in second.run("ps", "-e").stdout


def test_a_host_is_cut_off_and_comes_back(hosts: Hosts, tmp_path: Path) -> None:
    first, second = hosts
    listen(first, tmp_path)
    assert calls(second, "host1")
    first.cut()
    assert not calls(second, "host1")
    first.join()
    deadline = time.monotonic() + 120
    while not calls(second, "host1"):  # who was not found is asked for again after a while
        assert time.monotonic() < deadline
    second.slow("1mbit")
    second.slow(None)


def test_a_host_loses_its_power_and_another_comes(hosts: Hosts, tmp_path: Path) -> None:
    first, second = hosts
    listen(first, tmp_path)
    listen(second, tmp_path)
    second.kill()
    assert not second.processes()
    assert not calls(first, "host2")
    assert calls(hosts.add(), "host1")


@pytest.mark.parametrize("inside", ["running", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_whatever_ends_the_maker(number: int, inside: str) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, inside],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert maker.stdout is not None
    spaces = set(maker.stdout.readline().split())
    assert len(spaces) == 2
    assert spaces <= alive_spaces()
    maker.send_signal(number)
    maker.wait(timeout=600)
    deadline = time.monotonic() + 120
    while spaces & alive_spaces():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive_spaces() -> set[str]:
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                found.add(str(Path(f"/proc/{entry.name}/ns/net").readlink()))
            except OSError:  # it has ended
                continue
    return found
