"""Lists of jobs include ended ones, which the coordinator has not loaded."""

import asyncio

import pytest

from pliant.coordinator.api.ended_jobs import CHUNK, EndedJobs
from pliant.coordinator.service.inbox import Pumped
from pliant.coordinator.service.loaded_jobs import read_job
from pliant.coordinator.store_thread import StoreThread
from pliant.core import messages as m
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.errors import StoreUnavailable
from pliant.stores.base import Write
from unit.coordinator.shaky import Desk, desk

NAMES = [f"job-{number:04}" for number in range(2 * CHUNK + 3)]


def create(name: str) -> m.Create:
    return m.Create(name, JobSpec(1, 6, Target(6)))


def with_ended_jobs() -> Desk:
    one = desk()
    for name in NAMES:
        one.tell(0.0, create(name), m.Cancel("enough"), job=name)
    one.tell(0.0, create("live"), job="live")
    one.store.inner.write([Write("@tokens", 0, (b"{}",), b"{}"), Write("broken", 0, (b"{}",), b"nonsense", live=False)])
    return one


def test_ended_jobs_are_listed_read_once_and_forgotten_when_they_change() -> None:
    one = with_ended_jobs()
    two = Desk(one.store, "c2")
    two.pump(10.0)

    async def play() -> None:
        thread = StoreThread("test")
        jobs = EndedJobs(two.service, one.store, thread)
        ended = [(name, JobState.CANCELLED) for name in NAMES]
        assert [(line.name, line.state) for line in await jobs.lines(await jobs.names())] == ended
        one.store.trouble["read"] = [None, StoreUnavailable("only the job that cannot be decoded is read again")]
        assert [(line.name, line.state) for line in await jobs.lines(await jobs.names())] == ended
        one.store.trouble.clear()

        two.tell(10.1, create(NAMES[0]), job=NAMES[0])  # its next attempt is live, so it is loaded
        assert [line.name for line in await jobs.lines(await jobs.names())] == NAMES[1:]
        jobs.note_pump(Pumped((), changed=(NAMES[0],)), leads=True)
        assert NAMES[0] not in jobs._lines

        jobs.note_pump(Pumped(()), leads=False)  # another coordinator may change them
        one.store.trouble["read"] = [StoreUnavailable("it is read again")]
        with pytest.raises(StoreUnavailable):
            await jobs.lines(await jobs.names())
        thread.close()

    asyncio.run(play())


def test_an_ended_job_that_was_read_for_another_reason_is_not_read_again_for_a_list() -> None:
    one = with_ended_jobs()
    two = Desk(one.store, "c2")
    two.pump(10.0)

    async def play() -> None:
        thread = StoreThread("test")
        jobs = EndedJobs(two.service, one.store, thread)
        known = read_job(one.store, NAMES[0])
        assert known is not None
        jobs.remember(known)
        one.store.trouble["read"] = [StoreUnavailable("it is not read")]
        assert [line.name for line in await jobs.lines([NAMES[0]])] == [NAMES[0]]
        jobs.note_pump(Pumped((), changed=(NAMES[0],)), leads=True)
        with pytest.raises(StoreUnavailable):
            await jobs.lines([NAMES[0]])
        thread.close()

    asyncio.run(play())
