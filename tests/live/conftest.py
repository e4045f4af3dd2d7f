"""One nursery for all tests in a process: importing torch takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from live.crowd import Crowd, Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    found = Nursery(tmp_path_factory.mktemp("nursery") / "log.txt")
    yield found
    found.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


__all__ = ["Crowd", "home", "nursery"]
