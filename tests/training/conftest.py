"""Fixtures of the training tests: both frameworks, each on one thread as in a worker."""

import contextlib
import gc

import pytest
from framework_models import model_module


@pytest.fixture(scope="session", autouse=True)
def one_thread(tensorflow_on_one_thread: None) -> None:
    """Set the number of threads before any test of the process uses a framework."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    # The objects of the imports, as `cluster.worker` does: every run of a training loop ends with
    # a garbage collection, which takes 0.3 s with both frameworks.
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["torch", "tensorflow"])
def framework(request: pytest.FixtureRequest) -> str:
    """Name of each framework in turn; the test is skipped if it is not installed."""
    model_module(request.param)
    name: str = request.param
    return name
