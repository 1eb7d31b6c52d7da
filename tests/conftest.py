"""Fixtures of all tests, and settings that must precede the import of test modules."""

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

import pytest

# Fixes the order in which the two users of LLVM (Triton, TensorFlow) load; imports neither
# framework.
import raybench.training.tensorflow  # noqa: F401
from raybench.data.memory import num_local_cores
from raybench.report.figures import FIGURES
from raybench.report.page import document
from raybench.results import storage
from raybench.results.store import STUDY_FILE
from raybench.runs import preflight
from raybench.training.machine import GpusSeen
from tests.made_results import results_folder
from tests.s3_server import S3Server

EXIT_CODE = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[EXIT_CODE] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process without the destructors of native libraries if Ray and TensorFlow share it.

    After all tests had passed, such a process crashed once while they were unloaded (SIGSEGV); no
    command of raybench loads both, and how commands end is tested in processes of their own.
    """
    if hasattr(config, "workerinput") or not {"ray", "tensorflow"} <= sys.modules.keys():
        return
    atexit._run_exitfuncs()  # includes Ray's handlers
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(EXIT_CODE, 1))


@pytest.fixture(scope="session", autouse=True)
def two_cores() -> Iterator[None]:
    """Let a machine with one core count as two, so that tests with two workers run."""
    with pytest.MonkeyPatch.context() as patch:
        if num_local_cores() < 2:
            for name in ("layout", "session"):
                module = importlib.import_module(f"raybench.cluster.{name}")
                patch.setattr(module, "num_local_cores", lambda: 2)
        yield


@pytest.fixture(scope="session")
def tensorflow_on_one_thread() -> None:
    """Limit TensorFlow to one thread, which is possible only before its first use in a process."""
    with contextlib.suppress(ImportError):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Change to an empty folder and fail if Ray starts."""

    def refuse(*arguments, **options):
        raise AssertionError("Ray was about to start")

    import ray

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    pytest.importorskip("moto", reason="the local S3 server is moto: pip install 'moto[s3,server]'")
    s3_server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield s3_server
    s3_server.close()


@pytest.fixture
def one_picture(monkeypatch):
    """Draw one figure per page; other tests draw the others, which take seconds."""
    figures = {"ledger": FIGURES["ledger"]}
    monkeypatch.setattr(document, "kinds_of", lambda results: figures)


@pytest.fixture
def said():
    return []


@pytest.fixture
def url(server, tmp_path, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "this machine"))
    monkeypatch.setattr(storage, "COPY_S", 0.3)
    return server.url()


@pytest.fixture
def study(tmp_path):
    """The text of a study file."""
    results_folder(tmp_path / "sample", [])
    return (tmp_path / "sample" / STUDY_FILE).read_text()


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that TensorFlow does not see."""
    visible = {"torch": GpusSeen(names=("H100", "H100")), "tensorflow": GpusSeen()}
    monkeypatch.setattr(preflight, "gpus_of_framework", visible.__getitem__)
