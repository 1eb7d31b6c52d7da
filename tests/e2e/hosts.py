"""Several hosts on one machine, for tests of clusters: Linux namespaces behind a bridge.

Each host has its own network, processes, name, /etc/hosts, /dev/shm, /tmp/ray, home and temporary
folder; the hosts share the rest of the disk. A host lives as long as its first process, which ends
when the pipe to the test closes: the system then removes processes, links and mounts, even if the
test was killed. Nothing has a name outside its namespace, so test runs do not disturb each other.

    with Hosts(2) as hosts:
        hosts[1].run("ping", "-c1", hosts[0].address)
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil

SUBNET = "10.214.77"
GATEWAY = f"{SUBNET}.254"
MAX_HOSTS = 9
PRIVATE = Path("/tmp/ray")  # where Ray keeps its sessions; on each host a file system of its own
HOME, TEMPORARY = PRIVATE / "home", PRIVATE / "tmp"
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
ENTER = ("setpriv", "--pdeathsig", "KILL", "nsenter")
"""Beginning of a command that runs on a host. The command is killed with its parent; otherwise, one
that was stopped (SIGSTOP) would outlive the test."""
SWITCH_SPACES = ("--net", "--fork", "--kill-child")
HOST_SPACES = (*SWITCH_SPACES, "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
PROBE = "ip link add probe0 type veth peer name probe1 && ip link add probe2 type bridge"
SWITCH = f"""
set -e
ip link add switch type bridge
ip address add {GATEWAY}/24 dev switch
ip link set switch up
echo ready
exec cat
"""
# `cat` waits for the end of the pipe. With SIGCHLD ignored, adopted children leave no zombies.
HOST = f"""
set -e
mount -t tmpfs tmpfs {PRIVATE}
mount -t tmpfs tmpfs /dev/shm
mkdir {HOME} {TEMPORARY}
printf "$2" > {PRIVATE}/hosts
mount --bind {PRIVATE}/hosts /etc/hosts
echo "$1" > /proc/sys/kernel/hostname
ip link set lo up
trap '' CHLD
echo ready
exec cat
"""
NAMES = "127.0.0.1 localhost\\n" + "".join(
    f"{SUBNET}.{number} host{number}\\n" for number in range(1, MAX_HOSTS + 1)
)


@functools.cache
def why_not() -> str | None:
    """Return why no hosts can be made on this machine; None if they can."""
    if sys.platform != "linux":
        return "several hosts on one machine need Linux"
    if os.geteuid() != 0:
        return "several hosts on one machine need root"
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"several hosts on one machine need the command {tool} (iproute2, util-linux)"
    PRIVATE.mkdir(exist_ok=True)  # a place to mount on
    done = subprocess.run(
        ["unshare", *HOST_SPACES, "sh", "-c", PROBE], capture_output=True, text=True
    )
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"this system cannot make hosts: {said}" if done.returncode else None


class Host:
    """A simulated host, made by `Hosts`."""

    def __init__(self, number: int, anchor: "subprocess.Popen[str]", switch: int) -> None:
        self.name, self.address = f"host{number}", f"{SUBNET}.{number}"
        self._port, self._anchor, self._switch = f"port{number}", anchor, switch
        self._first = psutil.Process(anchor.pid).children()[0].pid
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(self._first))
        _inside(switch, "ip", "link", "add", self._port, *peer)
        _inside(switch, "ip", "link", "set", self._port, "master", "switch", "up")
        _inside(self._first, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        _inside(self._first, "ip", "link", "set", "eth0", "up")
        _inside(self._first, "ip", "route", "add", "default", "via", GATEWAY)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of this host's processes."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PYTEST_"))}
        own = {"HOME": str(HOME), "TMPDIR": str(TEMPORARY), "RAY_TMPDIR": "/tmp"}
        return kept | own | more

    def command(self, *words: str | Path, cwd: Path | None = None) -> list[str]:
        """Return the words that run a command on this host."""
        inside = ("--net", "--mount", "--uts", "--ipc", "--pid")
        go = ("sh", "-c", 'cd "$0" && exec "$@"', str(cwd or Path.cwd()))
        return [*ENTER, f"--target={self._first}", *inside, *go, *map(str, words)]

    def run(
        self, *words: str | Path, cwd: Path | None = None, timeout: float = 60, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words, cwd=cwd),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def slow(self, rate: str | None) -> None:
        """Limit the rate at which the host sends, as `100mbit`; None removes the limit."""
        queue = ("qdisc", "replace", "dev", "eth0", "root")
        kind = ("pfifo_fast",) if rate is None else ("tbf", "rate", rate)
        limits = () if rate is None else ("burst", "256kb", "latency", "400ms")
        _inside(self._first, "tc", *queue, *kind, *limits)


class Hosts:
    """Context manager: several hosts that are connected by a switch, and removed on exit."""

    def __init__(self, number: int) -> None:
        assert number <= MAX_HOSTS, "/etc/hosts names no more"
        self._number, self._hosts = number, list[Host]()
        self._stack = ExitStack()
        self._switch = 0

    def __enter__(self) -> Self:
        try:
            self._switch = self._anchor("switch", SWITCH_SPACES, SWITCH).pid
            self._switch = psutil.Process(self._switch).children()[0].pid
            for number in range(1, self._number + 1):
                anchor = self._anchor(f"host{number}", HOST_SPACES, HOST)
                self._hosts.append(Host(number, anchor, self._switch))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def _anchor(self, name: str, spaces: tuple[str, ...], script: str) -> "subprocess.Popen[str]":
        anchor = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", script, "sh", name, NAMES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests alone
        )
        self._stack.callback(_end, anchor)
        assert anchor.stdout.readline() == "ready\n", f"{name} was not made"
        return anchor


def _end(anchor: "subprocess.Popen[str]") -> None:
    anchor.kill()
    anchor.wait()
    for pipe in (anchor.stdin, anchor.stdout):
        if pipe is not None:
            pipe.close()


def _inside(target: int, *words: str) -> None:
    """Run a command in the network of a process."""
    done = subprocess.run(
        ["nsenter", f"--target={target}", "--net", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
