"""What the tests of runs share."""

import pytest

from raybench.cluster import run_client
from tests.cluster.fake_pool import time


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a pool that stands here are answered at once, on its clock."""
    monkeypatch.setattr(run_client.ray, "get", lambda answer: answer)
    monkeypatch.setattr(run_client, "time", time)
