"""A Ray cluster on several hosts, started and used as the README's cluster section says."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.test_readme import CLUSTER_COMMANDS, ROOT

from .hosts import Host

RAY = Path(sys.executable).with_name("ray")
STARTS_S, RUNS_S = 600.0, 600.0
TOKEN = {"RAY_AUTH_MODE": "token"}
NODE = TOKEN | {"RAY_worker_niceness": "0"}
"""Environment of a node: what its workers train is not what gives way to the tests beside them."""
TOKEN_FILE = "$HOME/.ray/auth_token"


def command(beginning: str) -> str:
    """Return the README's cluster command that begins so."""
    (found,) = [line for line in CLUSTER_COMMANDS if line.startswith(beginning)]
    return found


def start_head(host: Host, cpus: int) -> None:
    """Start Ray's head on a host, with a token; others send jobs to it."""
    done(host.run(RAY, *shlex.split(command("ray get-auth-token"))[1:], **TOKEN))
    words = shlex.split(command("ray start --head"))
    done(host.run(RAY, *words[1:], f"--num-cpus={cpus}", timeout=STARTS_S, **NODE))


def start_node(host: Host, head: Host, cpus: int, *more: str) -> None:
    """Bring a host into the head's cluster, with the head's token."""
    token = done(head.run("sh", "-c", f"cat {TOKEN_FILE}"))
    keep = f"mkdir -p $HOME/.ray && umask 077 && printf %s '{token}' > {TOKEN_FILE}"
    done(host.run("sh", "-c", keep))
    words = shlex.split(command("ray start --address").replace("HEAD", head.address))
    done(host.run(RAY, *words[1:], f"--num-cpus={cpus}", *more, timeout=STARTS_S, **NODE))


def job_line(out: Path, *more: str) -> list[str]:
    """Return the README's job, for hosts that have the packages: its results in `out`."""
    line = command("ray job submit").replace("HEAD", "10.214.77.1")
    line = line.replace("--runtime-env deploy/runtime_env.yaml ", "")
    line = line.replace("--workers 1,2 ", "")
    line = line.replace("/shared/results/digits", str(out))
    words = shlex.split(line)
    words[words.index("python")] = sys.executable
    return [*words[1:], *more]


def submit(
    host: Host, words: list[str], *, timeout: float = RUNS_S, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Submit a job from a host, as soon as the head takes one: its agent is up a bit later."""
    deadline = time.monotonic() + STARTS_S
    while True:
        ended = host.run(RAY, *words, cwd=ROOT, timeout=timeout, **TOKEN, **environment)
        is_early = "No available agent" in ended.stdout + ended.stderr
        if not is_early or time.monotonic() > deadline:
            return ended
        time.sleep(0.5)


def raybench(
    host: Host, *words: str | Path, timeout: float = RUNS_S, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of raybench on a host of the cluster, with `--address auto`."""
    name, *rest = map(str, words)
    given = (sys.executable, "-m", f"raybench.{name}", *rest, "--address", "auto")
    return host.run(*given, cwd=ROOT, timeout=timeout, **TOKEN, **environment)


def done(ended: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command printed; fails the test if it failed."""
    assert ended.returncode == 0, f"{ended.args}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
