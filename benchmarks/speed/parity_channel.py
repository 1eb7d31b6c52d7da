"""Sockets by which parity.py starts epochs of a plain script and receives their seconds."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 300.0
"""Time after which a script is assumed not to answer."""


def serve(port: int, rank: int, train: Callable[[int], float]) -> None:
    """Train each requested epoch and answer its seconds, until the channel closes."""
    with socket.create_connection(("127.0.0.1", port)) as channel, channel.makefile("rw") as stream:
        stream.write(f"{rank}\n")
        stream.flush()
        for line in stream:
            stream.write(f"{train(int(line))}\n")
            stream.flush()


class Script:
    """The processes of a plain script, one per rank; each of them connects to `port`."""

    def __init__(self, num_workers: int, log: Path) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(LIMIT_S)
        self.port = self._server.getsockname()[1]
        self._num_workers, self._log = num_workers, log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []

    def start(self, commands: list[list[str]], environments: list[dict[str, str]]) -> None:
        """Start the commands and wait until every rank has connected."""
        with self._log.open("w") as log:
            for command, environment in zip(commands, environments, strict=True):
                self._processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
                )
        for _ in range(self._num_workers):
            try:
                channel, _ = self._server.accept()
            except TimeoutError:
                raise self._failure() from None
            channel.settimeout(LIMIT_S)
            self._channels.append(channel)
        self._streams = [channel.makefile("rw") for channel in self._channels]
        for stream in self._streams:
            stream.readline()

    def train(self, epoch: int) -> float:
        """Let all ranks train an epoch; return the seconds of the slowest rank."""
        for stream in self._streams:
            stream.write(f"{epoch}\n")
            stream.flush()
        answers = [stream.readline() for stream in self._streams]
        if not all(answers):
            raise self._failure()
        return max(map(float, answers))

    def end(self) -> None:
        """Close the channel, and wait until the processes have saved their weights."""
        for channel in self._channels:
            channel.shutdown(socket.SHUT_RDWR)
        for process in self._processes:
            if process.wait(timeout=LIMIT_S):
                raise self._failure()

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for channel in self._channels:
            channel.close()
        self._server.close()

    def _failure(self) -> RuntimeError:
        return RuntimeError(f"the plain script failed: {self._log.read_text()[-3000:]}")
