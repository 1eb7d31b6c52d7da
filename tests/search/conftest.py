from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.search.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made_up = Stage(tmp_path)
    with made_up.store:
        yield made_up
