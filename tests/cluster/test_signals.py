"""Effect of signals on a command, each test in a process of its own."""

import os
import signal
import subprocess
import sys
import time

import pytest

from raybench.cluster.ray_internals.local_ray import is_running
from tests.factories import wait_for

HEAD = """
import os, signal, subprocess, sys, time
from raybench.cluster import signals
from raybench.cluster.signals import Interrupt
signals.WATCH_S, signals.LAST_WORDS_S = 0.05, 0.2
interrupt = Interrupt()
"""


def run(
    body: str, *signals: int, pause_s: float = 0.3, answers: bool = False
) -> "tuple[int, str, str]":
    """Run a script, send it signals, and return its exit code, stdout and stderr.

    Args:
        body: Code after `HEAD`; prints a line when it is ready for the first signal.
        signals: Signals to send, in order.
        pause_s: Seconds after each signal. Two equal signals in quick succession may be merged.
        answers: Whether the script prints a line per signal, which is awaited instead.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # `communicate` returns everything after the first line
        start_new_session=True,
    )
    process.stdout.readline()
    printed = b""
    for position, number in enumerate(signals, 1):
        process.send_signal(number)
        if answers and position < len(signals):
            printed += process.stdout.readline()
        else:
            time.sleep(pause_s)
    out, err = process.communicate(timeout=600)
    return process.returncode, (printed + out).decode(), err.decode()


INTERRUPTED = (130, "", "raybench: interrupted.\n")
SLEEPS = """
from raybench.commands import cli
def command():
    print("ready", flush=True)
    time.sleep(20)
with interrupt.listening():
    cli.leave(cli.run_command(command))
"""
FAILS = """
from raybench.commands import cli
def command():
    with interrupt.heard():
        try:
            print("ready", flush=True)
            time.sleep(20)
        except KeyboardInterrupt:
            raise ImportError("of an extension") from None
with interrupt.listening():
    cli.leave(cli.run_command(command))
"""


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (SLEEPS, signal.SIGINT),
        (SLEEPS, signal.SIGHUP),
        (FAILS, signal.SIGTERM),  # a library that turns the interrupt into an error of its own
    ],
)
def test_first_signal_before_any_run_ends_the_command(body, number):
    assert run(body, number) == INTERRUPTED


def test_signal_during_an_import_keeps_the_exit_code(tmp_path):
    (tmp_path / "early.py").write_text("""
import os, signal, sys, time
from raybench.cluster.signals import Interrupt
with Interrupt().listening():
    try:
        # `exec`, as in the import of a module with a dataclass.
        exec("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)")
    except KeyboardInterrupt:
        sys.exit(130)
""")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "early"]
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 130


REMEMBERS = """
with interrupt.listening():
    interrupt.defer()
    print("ready", flush=True)
    time.sleep(1.0)
    print(interrupt.is_set)
"""
RAISES = """
interrupt = Interrupt(owns_process=False)
try:
    with interrupt.listening():
        interrupt.defer()
        print("ready", flush=True)
        while not interrupt.is_set:
            time.sleep(0.05)
        print("remembered", flush=True)
        time.sleep(20)
except KeyboardInterrupt:
    print("continues")
"""
BLOCKS = """
from raybench.cluster.signals import without_hangup
with interrupt.listening():
    interrupt.defer()
    with without_hangup():
        child = subprocess.Popen(["sleep", "60"])
    os.kill(child.pid, signal.SIGHUP)
    time.sleep(0.3)
    print("ready", flush=True)
    print(child.poll())
    child.kill()
"""


@pytest.mark.parametrize(
    ("body", "signals", "printed"),
    [
        (REMEMBERS, [signal.SIGHUP] * 2, "True\n"),  # a closing terminal sends it twice
        (BLOCKS, [], "None\n"),  # the child does not receive the hangup
    ],
)
def test_deferred_signal_is_remembered(body, signals, printed):
    assert run(body, *signals) == (0, printed, "")


def num_messages(err: str) -> int:
    """Return the number of lines of stderr; each must be a message of raybench."""
    lines = err.splitlines()
    assert all(line.startswith("raybench: ") for line in lines), err
    return len(lines)


def test_second_signal_in_a_process_of_the_user_raises():
    result = run(RAISES, signal.SIGINT, signal.SIGINT, answers=True)
    assert result == (0, "remembered\ncontinues\n", "")


IN_PYTHON = "time.sleep(20)"
IN_C = """
    for _ in range(30):
        ctypes.CDLL(None).usleep(900_000)
"""


@pytest.mark.parametrize(
    ("waits", "pause_s", "can_continue"),
    [(IN_PYTHON, 0.3, True), (IN_C, 0.05, False)],
    ids=["python", "c"],
)
def test_second_signal_ends_the_command_and_its_children(waits, pause_s, can_continue):
    """While a C library does not return to Python, its handler would see one signal only.

    The signals differ, because the kernel merges equal ones if the process is not scheduled between
    them, as on a busy machine.
    """
    body = f"""
import ctypes
interrupt.can_continue = {can_continue}
with interrupt.listening():
    interrupt.defer()
    child = subprocess.Popen(["sleep", "60"])
    print(f"ready\\n{{child.pid}}", flush=True)
    {waits}
    print("over")
"""
    code, out, err = run(body, signal.SIGINT, signal.SIGTERM, pause_s=pause_s)
    assert (code, num_messages(err)) == (130, 1)
    assert ("command" in err) is can_continue
    wait_for(lambda: not is_running(int(out)), 20)


@pytest.mark.parametrize(("signals", "code"), [([], 1), ([signal.SIGTERM], 130)])
def test_command_ends_at_once_when_its_dependency_is_gone(signals, code):
    """A signal to the whole process group ends Ray too, so there is nothing to wait for."""
    body = f"""
child = subprocess.Popen(["sleep", "60"])
with interrupt.listening(), interrupt.needing(lambda: child.poll() and 'it is gone'):
    interrupt.defer()
    print("ready", flush=True)
    while {bool(signals)} and not interrupt.is_set:
        time.sleep(0.05)
    child.kill()
    time.sleep(20)
    print("over")
"""
    ended_with, out, err = run(body, *signals)
    assert (ended_with, out, num_messages(err)) == (code, "", 1)
    assert ("it is gone" in err) is (not signals)
