"""What the tests of data share."""

import pytest


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """Keep stored datasets of this test alone."""
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"
