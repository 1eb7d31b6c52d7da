"""A local S3 server in its own process, behind a TCP proxy that can be closed."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Door:
    """TCP proxy to a port; while shut, it refuses connections and closes open ones."""

    def __init__(self, behind):
        self.behind, self.port = behind, free_port()
        self._open, self._listener = [], None
        self.open()

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def shut(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open = []

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.behind))
            self._open += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._hand_on, args=pair, daemon=True).start()

    @staticmethod
    def _hand_on(source, sink):
        with contextlib.suppress(OSError):
            while content := source.recv(2**16):
                sink.sendall(content)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class S3Server:
    """S3 server with the environment variables of its clients; `url` returns a new folder."""

    def __init__(self, log):
        self._port, self._number = free_port(), 0
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
            stdout=self._log,
            stderr=self._log,
        )
        self.log = log
        deadline = time.monotonic() + 60
        while True:
            try:
                self._ask("PUT", "/bucket", b"")
                break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()
                assert self._process.poll() is None, log.read_text()
                time.sleep(0.1)
        self.door = Door(self._port)
        self.environment = {
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": "fake-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.door.port}",
        }

    def url(self):
        self._number += 1
        return f"s3://bucket/studies/digits{self._number}"

    def refuse(self, refused):
        """Refuse all credentials, or accept any."""
        self._ask("POST", "/moto-api/reset-auth", b"0" if refused else b"inf")

    def close(self):
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _ask(self, method, path, content):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=content,
            method=method,
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(request, timeout=10).close()
