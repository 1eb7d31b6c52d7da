"""Fixtures of the data tests."""

import pytest


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """A dataset cache of this test only."""
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"
