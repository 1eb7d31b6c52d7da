"""What the tests of data share."""

import pytest

from raybench.data import store
from tests.data.making import close_datasets


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """Keep stored datasets of this test alone."""
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(store, "_in_use", {})
    yield tmp_path / "store"
    close_datasets()
