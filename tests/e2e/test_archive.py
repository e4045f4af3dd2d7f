"""A coordinator with a long history: it starts, archives, is killed, and every command still reads all of it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, expected_digest, make_line
from pliant.core.data.sample_order import Order
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Job, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.base import Write
from pliant.stores.sqlite import SqliteStore
from pliant.wire.api import EVENTS
from pliant.wire.codec import encode_state
from unit.cli.program import coordinator, real, until

MEMBER, AGENT = MemberId("vm-g1.0"), AgentId("vm")
STEPS = 20_000
GRID = Grid(samples=4000, batch=4, slots=2, epochs=21)
ORDER = Order(7, 4000)


def commands(steps: int) -> Iterator[Command]:
    yield m.Create("long", JobSpec(1, 2, Target(1)))
    yield m.AgentJoin(AGENT, 1)
    yield m.Join(MEMBER, AGENT, Terms(GRID, 7))
    parent = GENESIS
    for step in range(1, steps + 1):
        line = make_line(parent, 1, step, GRID.cursor(step), GRID.size(step), expected_digest(GRID, ORDER, step))
        parent = line.lineage
        yield m.Report(MEMBER, 0, 1, (line,), frozenset({MEMBER}) if step == 1 else None)


def write_history(path: Path, steps: int) -> int:
    """Write a job that has committed so many steps. Return its revision."""
    job: Job | None = None
    events: list[Event] = []
    now = 1.8e9
    for command in commands(steps):
        now += 0.1
        decision = decide(job, command, now)
        assert not isinstance(decision, Rejection)
        for event in decision:
            job = evolve(job, event)
        events += decision
        if not isinstance(command, m.Report) or command.holders is not None:
            assert job is not None
            job, more = settle_all(job, now)
            events += more
    assert job is not None
    with SqliteStore(path) as store:
        encoded = tuple(EVENTS.encode(event) for event in events)
        return store.write([Write("long", 0, encoded, encode_state(job))])[0].revision


def rows(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return int(
            connection.execute(
                "SELECT count(*) FROM events e JOIN jobs j ON e.job = j.id AND name = 'long'"
            ).fetchone()[0]
        )


@pytest.mark.long
def test_old_events_are_archived_while_it_serves_and_read_by_every_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    path, archive = home / "store.db", home / "store.db.archive"
    revision = write_history(path, STEPS)
    with coordinator(home, "--store", f"sqlite:{path}", "--lease-ttl-s", "3600") as first:
        until(lambda: archive.exists() and any(archive.rglob("*.segment")), "a segment")
        first.process.send_signal(signal.SIGKILL)  # in the middle of it, perhaps between a segment and its trim
    with coordinator(home, "--store", f"sqlite:{path}", "--lease-ttl-s", "3600") as running:
        until(lambda: rows(path) < 8192 + 1024 + 100, "the archiving of old events")
        env = running.env()
        audit = real(env, "audit", "long", "--json")
        assert audit.code == 0, audit
        assert {"ok": True, "steps": STEPS, "samples": 4 * STEPS}.items() <= json.loads(audit.out).items()
        lines = real(env, "events", "long", "--json").out.splitlines()
        numbers = [json.loads(line)["revision"] for line in lines]
        assert numbers[:revision] == [*range(1, revision + 1)]
        assert real(env, "events", "long", "--after", "8190", "--json").out.splitlines()[:5] == lines[8190:8195]
        assert json.loads(real(env, "report", "long", "--json").out)["steps"] == STEPS
        with running.client() as client:
            stream = client.follow("long", 8000)
            assert [next(stream)[0] for _ in range(400)] == [*range(8001, 8401)]  # across the end of a segment
    for segment in archive.rglob("*.segment"):
        assert segment.stat().st_mode & 0o077 == 0
    move_away_and_miss_it(home, path, archive)


def move_away_and_miss_it(home: Path, path: Path, archive: Path) -> None:
    """Without its archive a coordinator starts and decides; only the old events are missing, with a reason."""
    archive.rename(home / "elsewhere")
    with coordinator(home, "--store", f"sqlite:{path}") as running:
        missing = real(running.env(), "audit", "long")
        assert missing.code != 0
        assert "Put the archive back" in missing.err
        assert real(running.env(), "status", "long").code == 0
    with coordinator(home, "--store", f"sqlite:{path}", "--archive", str(home / "elsewhere")) as running:
        assert real(running.env(), "audit", "long").code == 0
        assert real(running.env(), "cancel", "long").code == 0
        with running.client() as client:
            client.send("long", m.Leave(MEMBER, 0, "the job is cancelled"))
            assert client.job("long").job.state.ended
        assert real(running.env(), "jobs", "delete", "long").out == "Deleted long.\n"
        assert [*(home / "elsewhere").rglob("*.segment")] == []


def test_an_archive_that_others_can_write_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "store.db.archive").mkdir()
    (home / "store.db.archive").chmod(0o777)
    env = {**os.environ, "PLIANT_HOME": str(home)}
    done = real(env, "coordinator", "--listen", "127.0.0.1:0")
    assert done.code == 2
    assert "The archive" in done.err


@pytest.mark.parametrize(("days", "kept"), [("0", True), ("0.00001", False)])
def test_ended_jobs_are_kept_as_long_as_the_operator_says(tmp_path: Path, days: str, kept: bool) -> None:
    home = tmp_path / "home"
    with coordinator(home, "--store", f"sqlite:{home / 'store.db'}") as running:
        for name in ("over", "live"):
            assert real(running.env(), "jobs", "create", name, "--workers", "1").code == 0
        assert real(running.env(), "cancel", "over").code == 0
    with coordinator(home, "--store", f"sqlite:{home / 'store.db'}", "--keep-ended", days) as running:

        def names() -> list[str]:
            with running.client() as client:
                return [line.name for line in client.jobs()]

        if kept:
            until(lambda: "live" in names(), "the list")
            assert names() == ["live", "over"]
        else:
            until(lambda: names() == ["live"], "the deletion")
            assert "over: deleted, because it ended more than 1e-05 days ago" in running.log.read_text()
