"""Done before any test module is imported; an object store for the tests."""

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

import pytest

# It settles the order in which LLVM's two users (Triton, TensorFlow) load; imports neither
# framework itself.
import raybench.training.tensorflow  # noqa: F401
from raybench.cluster.layout import num_local_cores
from raybench.report.figures.kinds import FIGURES
from raybench.report.page import document
from raybench.results import storage
from raybench.results.store import STUDY_FILE
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
    atexit._run_exitfuncs()  # Ray's among them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(EXIT_CODE, 1))


@pytest.fixture(scope="session", autouse=True)
def two_cores() -> Iterator[None]:
    """Have a machine of one core pass for one of two, which runs two workers too, if slowly."""
    with pytest.MonkeyPatch.context() as patch:
        if num_local_cores() < 2:
            for name in ("layout", "session"):
                module = importlib.import_module(f"raybench.cluster.{name}")
                patch.setattr(module, "num_local_cores", lambda: 2)
        yield


@pytest.fixture(scope="session")
def tensorflow_on_one_thread() -> None:
    """TensorFlow takes its number of threads once a process, before its first use."""
    with contextlib.suppress(ImportError):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Ray must not start, and nothing may be written beside the repository's files."""

    def refuse(*arguments, **options):
        raise AssertionError("Ray was about to start")

    import ray

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    pytest.importorskip("moto", reason="the local S3 server is moto: pip install 'moto[s3,server]'")
    found = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield found
    found.close()


@pytest.fixture
def one_picture(monkeypatch):
    """Pages show one figure: the others take seconds, and are drawn in tests of their own."""
    few = {"ledger": FIGURES["ledger"]}
    monkeypatch.setattr(document, "kinds_of", lambda results: few)


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
    """The text of a study's file."""
    results_folder(tmp_path / "sample", [])
    return (tmp_path / "sample" / STUDY_FILE).read_text()
