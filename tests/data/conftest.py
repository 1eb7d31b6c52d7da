"""What the tests of data share."""

import pytest


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """Keep stored datasets of this test alone."""
    from raybench.data import store as build

    folder = tmp_path / "store"
    monkeypatch.setenv("RAYBENCH_CACHE", str(folder))
    monkeypatch.setattr(build, "_in_use", {})
    return folder
