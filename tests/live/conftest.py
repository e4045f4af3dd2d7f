"""One fork server for all tests in a process: importing torch takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from live.crowd import Crowd, ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    found = ForkServer(tmp_path_factory.mktemp("fork_server") / "log.txt")
    yield found
    found.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


__all__ = ["Crowd", "fork_server", "home"]
