from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.search.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    with one.store:
        yield one
