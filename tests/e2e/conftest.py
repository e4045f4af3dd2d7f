"""Fixtures for tests of whole coordinators."""

from collections.abc import Iterator

import pytest

from e2e.running import WRITTEN, Running, start


@pytest.fixture(scope="session", autouse=True)
def _no_secret_in_anything_written() -> Iterator[None]:
    """Logs, answers, stores, metrics, arguments: whatever the session's coordinators wrote has no token's secret."""
    yield
    assert WRITTEN.leaks() == []


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator that loses no member, however long the module's tests take."""
    with start(home=tmp_path_factory.mktemp("home"), lease_ttl_s=3600.0) as running:
        yield running
