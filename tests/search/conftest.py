from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.search.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Its space is taken apart where a test asks for it."""
    one = Stage(tmp_path, apart=getattr(request, "param", False))
    with one.store:
        yield one
