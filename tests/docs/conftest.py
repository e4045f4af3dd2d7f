"""Fixtures for the pages whose commands are run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.walking import Walk


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    yield made
    made.close()
    print(made.story())  # shown if the test failed
