"""What signals do to a command, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raybench.cluster.ray_internals.local_ray import is_running

HEAD = """
import os, signal, subprocess, sys, time
from raybench.cluster.signals import Interrupt
interrupt = Interrupt()
"""


def run(
    body: str, *signals: int, pause_s: float = 0.3, answers: bool = False
) -> "tuple[int, str, str]":
    """Start a script that prints a line when it is ready, send the signals, wait for its end.

    Signals follow each other after a pause, or, if the script `answers` each with a line, after
    that: on a busy machine two equal signals in quick succession are one.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what `readline` does not return is left for `communicate`
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    said = b""
    for count, number in enumerate(signals, 1):
        process.send_signal(number)
        if answers and count < len(signals):
            said += process.stdout.readline()
        else:
            time.sleep(pause_s)
    out, err = process.communicate(timeout=600)
    return process.returncode, (said + out).decode(), err.decode()


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
        (SLEEPS, signal.SIGTERM),
        (SLEEPS, signal.SIGHUP),
        (FAILS, signal.SIGTERM),  # a library that takes it for a failure of its own
    ],
)
def test_before_anything_has_started_the_first_ends_the_command(body: str, number: int) -> None:
    assert run(body, number) == INTERRUPTED


def test_the_exit_code_is_ours_where_a_signal_came_in_the_midst_of_an_import(
    tmp_path: Path,
) -> None:
    (tmp_path / "early.py").write_text("""
import os, signal, sys, time
from raybench.cluster.signals import Interrupt
with Interrupt().listening():
    try:
        exec("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)")  # as a dataclass is made
    except KeyboardInterrupt:
        sys.exit(130)
""")
    seen = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "early"]
    assert subprocess.run(words, cwd=tmp_path, env=seen, check=False).returncode == 130


REMEMBERS = """
with interrupt.listening():
    interrupt.defer()
    print("ready", flush=True)
    time.sleep(1.5)
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
    print("goes on")
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
        (REMEMBERS, [signal.SIGTERM], "True\n"),
        (REMEMBERS, [signal.SIGHUP] * 2, "True\n"),  # a terminal that closes says so twice
        (BLOCKS, [], "None\n"),  # the child never hears of a closed terminal
    ],
)
def test_later_a_signal_is_remembered(body: str, signals: list[int], printed: str) -> None:
    assert run(body, *signals) == (0, printed, "")


def lines_of_ours(err: str) -> int:
    """Return how many lines there are, of which each must be raybench's own."""
    lines = err.splitlines()
    assert all(line.startswith("raybench: ") for line in lines), err
    return len(lines)


def test_in_a_process_of_the_users_the_second_raises() -> None:
    found = run(RAISES, signal.SIGINT, signal.SIGINT, answers=True)
    assert found == (0, "remembered\ngoes on\n", "")


@pytest.mark.parametrize("can_continue", [True, False])
def test_the_second_ends_it_and_all_below_it_at_once(can_continue: bool) -> None:
    body = f"""
interrupt.can_continue = {can_continue}
with interrupt.listening():
    interrupt.defer()
    child = subprocess.Popen(["sleep", "60"])
    print("ready", flush=True)
    print(child.pid, flush=True)
    time.sleep(20)
"""
    code, out, err = run(body, signal.SIGINT, signal.SIGTERM)
    assert (code, lines_of_ours(err)) == (130, 1)
    assert ("command" in err) is can_continue
    assert not is_running(int(out))


def test_two_in_quick_succession_are_two_while_the_main_thread_waits() -> None:
    """In a library that does not come back to Python: there two signals are one."""
    body = """
with interrupt.listening():
    interrupt.defer()
    import ctypes
    print("ready", flush=True)
    for _ in range(3):
        ctypes.CDLL(None).usleep(900_000)
    print("over")
"""
    code, out, err = run(body, signal.SIGINT, signal.SIGINT, pause_s=0.05)
    assert (code, lines_of_ours(err)) == (130, 1)
    assert "over" not in out


def test_without_what_it_needs_it_ends_at_once() -> None:
    """A signal to the whole group has ended Ray too: there is nothing to wait for."""
    body = """
with interrupt.listening():
    interrupt.defer()
    child = subprocess.Popen(["sleep", "60"])
    with interrupt.needing(lambda: child.poll() and 'it is gone'):
        print("ready", flush=True)
        while not interrupt.is_set:
            time.sleep(0.05)
        child.kill()
        time.sleep(20)
        print("over")
"""
    code, out, err = run(body, signal.SIGTERM)
    assert (code, lines_of_ours(err)) == (130, 1)
    assert "over" not in out


def test_when_what_it_needs_is_killed_one_sentence_says_so() -> None:
    body = """
child = subprocess.Popen(["sleep", "60"])
interrupt.can_continue = True
with interrupt.listening(), interrupt.needing(lambda: child.poll() and 'it is gone'):
    interrupt.defer()
    print("ready", flush=True)
    child.kill()
    time.sleep(20)
"""
    code, _, err = run(body)
    assert code == 1
    (line,) = err.splitlines()
    assert "it is gone" in line
