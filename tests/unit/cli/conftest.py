from collections.abc import Callable, Iterator

import pytest

from unit.cli.program import Done, Running, coordinator, invoke


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One coordinator for all the tests of a file."""
    with coordinator(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture
def pliant(running: Running, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Commands that find this coordinator by their environment."""
    for name in ("PLIANT_TOKEN_FILE", "PLIANT_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(running.home))
    monkeypatch.setenv("PLIANT_COORDINATOR", running.url)
    return invoke
