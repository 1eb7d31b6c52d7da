"""Both frameworks on one thread, as in a worker of one core."""

import contextlib

import pytest
from framework_models import backend


@pytest.fixture(scope="session", autouse=True)
def one_thread(tensorflow_on_one_thread: None) -> None:
    """Set the threads before any test of the process uses a framework."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(params=["torch", "tensorflow"])
def framework(request: pytest.FixtureRequest) -> str:
    """Each framework; a test is skipped where it is not installed."""
    backend(request.param)
    name: str = request.param
    return name
