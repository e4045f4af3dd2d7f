"""Stores that an older version wrote: opened, killed while they are migrated, and used by a coordinator."""

import gzip
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from e2e.running import start
from pliant.coordinator.service.loaded_jobs import stored_job
from pliant.core import messages as m
from pliant.core.model.job import JobState
from pliant.credentials import make_token, write_token
from pliant.errors import StoreError
from pliant.stores.base import Write
from pliant.stores.sqlite import SqliteStore, schema
from pliant.wire.api import EVENTS

FOLDER = Path(__file__).parent
STORES = sorted(FOLDER.glob("store-version-*.db.gz"))
EVENTS_WRITTEN = 19


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store as an older version left it, with a live job at step 5."""
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    path.chmod(0o600)
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def written(path: Path) -> list[bytes]:
    """The events of the job in the file of version 2, without any code of ours."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT e.data FROM events e JOIN jobs j ON j.id = e.job WHERE j.name = 'demo' ORDER BY e.revision"
        )
        return [bytes(data) for (data,) in found]


def check(path: Path, before: list[bytes]) -> None:
    """Everything is there, can be decoded, and can be written on."""
    with SqliteStore(path) as store:
        found = store.events("demo", 0, 1000)
        assert [entry.data for entry in found] == before
        events = [EVENTS.decode(entry.data) for entry in found]
        assert sum(isinstance(event, m.StepsCommitted) for event in events) == 3
        stored = store.read("demo")
        assert stored is not None
        assert stored_job(stored).durable.step == 5
        assert {*store.jobs()} == {"@tokens", "@peers", "demo"}
        store.write([Write("another", 0, (b"{}",), b"record")])
    assert version(path) == len(schema.MIGRATIONS)


def test_a_store_of_an_older_version_is_migrated_with_all_that_is_in_it(path: Path) -> None:
    before = written(path)
    assert len(before) == EVENTS_WRITTEN
    assert version(path) < len(schema.MIGRATIONS)
    check(path, before)


def test_a_migration_killed_at_any_statement_loses_nothing(path: Path, tmp_path: Path) -> None:
    original, before = path.read_bytes(), written(path)
    kills = 0
    while True:
        kills += 1
        copy = tmp_path / f"killed-{kills}" / "store.db"
        copy.parent.mkdir()
        copy.write_bytes(original)
        program = [sys.executable, str(FOLDER / "migrating.py"), str(copy), str(kills)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        if done.stdout == "lived\n":
            break
        assert done.returncode == -9, done.stderr
        check(copy, before)
    assert kills > 10, "few statements were reached"


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="Use the newer Pliant that wrote it"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_coordinator_goes_on_with_a_job_of_an_older_version(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_token(home / "token", make_token())  # of another home: the coordinator adopts it
    with start(f"sqlite:{path}", home=home, lease_ttl_s=3600.0) as running:
        client = running.client()
        found = client.job("demo")
        assert (found.job.step, found.job.state) == (5, JobState.RUNNING)
        client.send("demo", m.Cancel("upgraded"))
        assert len(client.events("demo", 0, 1000)) > EVENTS_WRITTEN
        assert [line.label for line in client.tokens() if line.job == "demo"] == ["old"]
