"""Fixtures shared by the tests of runs and of the worker pool; support for async tests."""

import asyncio
import inspect

import pytest

from raybench.cluster import run_client
from tests.cluster.fake_pool import time


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `ray.get` and the clock of `run_client`, for runs on a `FakePool` without Ray."""
    monkeypatch.setattr(run_client.ray, "get", lambda answer: answer)
    monkeypatch.setattr(run_client, "time", time)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
