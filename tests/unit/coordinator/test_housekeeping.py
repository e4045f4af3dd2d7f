"""While a coordinator leads it archives old events and deletes old jobs, beside its decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pliant.coordinator import archiver, housekeeping
from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.history import JobHistory
from pliant.coordinator.housekeeping import Housekeeper
from pliant.coordinator.service.inbox import Accepted
from pliant.coordinator.service.pump import Service
from pliant.core import messages as m
from pliant.core.messages import Command
from pliant.core.model.job import JobSpec, Target
from pliant.errors import StoreError
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Segment, Store
from pliant.stores.sqlite import SqliteStore

DAY_S = 86400.0


@dataclass
class House:
    """A coordinator's service with its housekeeper, on a real store and a real folder. `wall` is the time."""

    store: Store
    archive: Archive
    folder: Path
    wall: float = 1000.0
    keep_ended_s: float | None = 30 * DAY_S
    owner: str = "c1"
    service: AsyncService = field(init=False)
    keeper: Housekeeper = field(init=False)

    def __post_init__(self) -> None:
        inner = Service(self.store, self.owner, lambda: self.wall)
        self.service = AsyncService(inner, GenerationKeys(self.store), lambda *_: None, lambda *_: None)
        self.keeper = Housekeeper(self.service, self.store, self.archive, self.keep_ended_s, lambda: self.wall)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.service.start(30.0)
            try:
                await body()
            finally:
                await self.service.close(30.0)

        asyncio.run(whole())

    async def send(self, name: str, command: Command) -> None:
        reply = await self.service.execute(name, command)
        assert isinstance(reply.answer, Accepted), reply

    async def grow(self, name: str, changes: int) -> None:
        """Give a job so many more events."""
        found = self.service.service.job(name)
        at = found[0].target.size if found is not None else 0
        if found is None:
            await self.send(name, m.Create(name, JobSpec(1, 1000, Target(1))))
        for number in range(changes):
            await self.send(name, m.Resize(Target((at + number) % 900 + 2)))

    async def work(self) -> None:
        """Everything, as after an hour."""
        self.keeper._swept_at = None
        await self.keeper.work()

    def jobs(self) -> tuple[str, ...]:
        return tuple(name for name in self.store.jobs() if not name.startswith("@"))

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (archiver, housekeeping):
        monkeypatch.setattr(each, "SEGMENT_EVENTS", 40)
        monkeypatch.setattr(each, "KEPT_EVENTS", 10)
    monkeypatch.setattr(archiver, "ENDED_EVENTS", 5)
    monkeypatch.setattr(housekeeping, "PAUSE_S", 0.0)


@contextmanager
def opened(tmp_path: Path) -> Iterator[House]:
    with SqliteStore(tmp_path / "store.db") as store:
        folder = tmp_path / "archive"
        yield House(store, Archive(FolderFiles(folder), store.identity), folder)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with opened(tmp_path) as found:
        yield found


def all_events(house: House, name: str) -> int:
    history = JobHistory(house.store, house.archive)
    found, after = 0, 0
    while page := history.events(name, after, 1000):
        after = page[-1].revision
        found += len(page)
    return found


def test_a_live_job_keeps_its_newest_events_and_the_rest_is_archived(house: House) -> None:
    async def body() -> None:
        await house.grow("demo", 30)
        await house.work()
        assert house.files() == []
        await house.grow("demo", 200)
        await house.keeper.work()
        found = house.service.service.job("demo")
        assert found is not None
        segments = house.store.segments("demo")
        assert len(segments) == len(house.files()) >= 3
        assert found[1] - segments[-1].last < 40 + 10 + 65  # a segment, the newest, and the tail of the record
        assert all_events(house, "demo") == found[1]
        await house.keeper.work()
        assert house.store.segments("demo") == segments

    house.run(body)


def test_an_ended_job_is_archived_at_once_and_deleted_after_its_time(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        await house.grow("old", 60)
        await house.send("old", m.Cancel("enough"))
        await house.grow("live", 60)
        await house.work()
        revision = house.store.segments("old")[-1].last
        assert all_events(house, "old") > revision
        house.wall += 29 * DAY_S
        await house.work()
        assert "old" in house.jobs()
        house.wall += 2 * DAY_S
        with caplog.at_level(logging.INFO):
            await house.work()
        assert house.jobs() == ("live",)
        assert [path for path in house.files() if "/old/" in str(path)] == []
        assert "old: deleted, because it ended more than 30 days ago; its checkpoints stay" in caplog.text

    house.run(body)


def test_jobs_that_are_not_loaded_are_archived_and_deleted_too(house: House) -> None:
    async def fill() -> None:
        for name in ("one", "two"):
            await house.grow(name, 60)
            await house.send(name, m.Cancel("enough"))

    house.run(fill)
    later = House(house.store, house.archive, house.folder, house.wall)

    async def body() -> None:
        assert later.service.service.names() == ()
        await later.work()
        assert {segment for name in ("one", "two") for segment in house.store.segments(name)}
        later.wall += 31 * DAY_S
        await later.send("one", m.Create("one", JobSpec(1, 2)))  # runs again
        await later.work()
        assert house.jobs() == ("one",)
        assert all_events(later, "one") > 60

    later.run(body)


def test_a_sweep_passes_on_all_names_and_the_ended_jobs_that_it_reads(house: House) -> None:
    async def fill() -> None:
        await house.grow("one", 1)
        await house.send("one", m.Cancel("enough"))
        await house.grow("two", 1)

    house.run(fill)
    later = House(house.store, house.archive, house.folder, house.wall)
    names: list[frozenset[str]] = []
    ended: list[str] = []

    async def end_tokens(jobs: frozenset[str]) -> None:
        names.append(jobs)

    later.keeper = Housekeeper(later.service, later.store, later.archive, end_tokens=end_tokens)
    later.keeper.on_ended = lambda known: ended.append(known.job.name if known.job else "")

    async def body() -> None:
        await later.work()
        assert (names, ended) == ([frozenset({"one", "two"})], ["one"])

    later.run(body)


def test_jobs_are_kept_if_the_operator_says_so(house: House) -> None:
    house.keep_ended_s = None
    house.__post_init__()

    async def body() -> None:
        await house.grow("old", 3)
        await house.send("old", m.Cancel("enough"))
        house.wall += 10_000 * DAY_S
        await house.work()
        assert house.jobs() == ("old",)

    house.run(body)


def test_segments_that_a_killed_process_left_are_removed_with_the_next_sweep(house: House) -> None:
    async def body() -> None:
        await house.grow("gone", 60)
        await house.send("gone", m.Cancel("enough"))
        await house.grow("live", 100)
        await house.work()
        stored = house.store.read("gone")
        assert stored is not None
        house.store.delete("gone", stored.revision)  # killed before it removed the files
        house.service.service._jobs.drop("gone")
        await house.work()
        assert [path.parent.name for path in house.files()] == ["live"] * len(house.store.segments("live"))
        assert house.store.segments("live")

    house.run(body)


def test_a_deletion_stands_if_the_archive_is_away(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> int:
        raise StoreError("the bucket is away")

    async def body() -> None:
        await house.grow("old", 60)
        await house.send("old", m.Cancel("enough"))
        await house.work()
        with monkeypatch.context() as patch:
            patch.setattr(Archive, "remove", away)
            assert isinstance((await house.keeper.delete("old")).answer, Accepted)
        assert "its segments are removed later: the bucket is away" in caplog.text
        assert house.files()
        await house.work()
        assert house.files() == []

    house.run(body)


def test_a_problem_is_logged_once_and_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> Segment:
        raise StoreError("the disk is full")

    async def body() -> None:
        await house.grow("demo", 100)
        with monkeypatch.context() as patch:
            patch.setattr(Archive, "write", full)
            await house.work()
            await house.work()
        assert caplog.text.count("old events stay in the store: the disk is full") == 1
        await house.work()
        assert house.store.segments("demo")

    house.run(body)


def test_a_standby_touches_nothing(house: House, tmp_path: Path) -> None:
    async def body() -> None:
        await house.grow("demo", 100)
        with SqliteStore(tmp_path / "store.db") as second:
            standby = House(second, house.archive, house.folder, owner="c2")
            await standby.service.start(30.0)
            await standby.keeper.work()
            assert house.store.segments("demo") == ()
            await standby.service.close(30.0)

    house.run(body)


def test_a_record_that_cannot_be_read_is_left_alone(house: House, caplog: pytest.LogCaptureFixture) -> None:
    from pliant.stores.base import Write

    house.store.write([Write("odd", 0, (b"{}",), b"of another version", live=False)])

    async def body() -> None:
        house.wall += 10_000 * DAY_S
        await house.work()
        assert house.jobs() == ("odd",)
        assert "odd cannot be read and is left as it is" in caplog.text

    house.run(body)


def test_the_loop_works_until_it_is_cancelled(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.0)

    async def body() -> None:
        await house.grow("demo", 100)
        running = asyncio.create_task(house.keeper.run())
        while not house.store.segments("demo"):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    house.run(body)
