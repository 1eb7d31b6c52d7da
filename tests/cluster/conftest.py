"""What the tests of runs and of the pool share."""

import asyncio
import inspect

import pytest

from raybench.cluster import run_client
from tests.cluster.fake_pool import time


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a pool that stands here are answered at once, on its clock."""
    monkeypatch.setattr(run_client.ray, "get", lambda answer: answer)
    monkeypatch.setattr(run_client, "time", time)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine to its end, in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
