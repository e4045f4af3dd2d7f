"""The jobs that a coordinator has loaded from its store, and the functions that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pliant.coordinator.service.inbox import Accepted, Sender
from pliant.core.job.evolve import evolve
from pliant.core.model.job import Job
from pliant.errors import BadInput
from pliant.stores.base import Store, Stored
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state

ENDED_MAX = 256  # ended jobs kept in memory; others are read when a request names them
PAGE_JOBS = 64  # of one read when a coordinator takes over
RESERVED = "@"  # first character of the store's streams that are not jobs; no job's name begins with it


@dataclass(slots=True)
class LoadedJob:
    """A job as last read or written. `tail` counts the events after its newest record."""

    job: Job | None
    revision: int
    tail: int
    stale: bool = False  # the store is ahead; read again before deciding


class LoadedJobs:
    """All live jobs, and the ended ones that were read or ended last."""

    def __init__(self) -> None:
        self._jobs: dict[str, LoadedJob] = {}
        self._ended: dict[str, None] = {}  # names, the one that was put first comes first

    def get(self, name: str) -> LoadedJob | None:
        return self._jobs.get(name)

    def put(self, name: str, known: LoadedJob) -> None:
        """Keep a job that was read or written. If it has ended, the ended job that was put first may be dropped."""
        self._jobs[name] = known
        self._ended.pop(name, None)
        if known.job is not None and known.job.state.ended:
            self._ended[name] = None
            if len(self._ended) > ENDED_MAX:
                oldest = next(iter(self._ended))
                del self._ended[oldest], self._jobs[oldest]

    def mark_stale(self, name: str) -> None:
        """Have a job read again before the next decision about it."""
        if (known := self._jobs.get(name)) is not None:
            known.stale = True

    def drop(self, name: str) -> None:
        """Forget a job that is not in the store any more."""
        self._jobs.pop(name, None)
        self._ended.pop(name, None)

    def clear(self) -> None:
        self._jobs.clear()
        self._ended.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def items(self) -> Iterator[tuple[str, LoadedJob]]:
        return iter(self._jobs.items())


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some live jobs. `unreadable` has the reasons by name. `last` is the last name read; empty at the end."""

    jobs: tuple[tuple[str, LoadedJob], ...]
    unreadable: tuple[tuple[str, str], ...]
    last: str


def read_job(store: Store, name: str) -> LoadedJob | None:
    """Read a job from the store; None if there is none."""
    stored = store.read(name)
    return None if stored is None else _loaded(stored)


def read_page(store: Store, after: str) -> JobPage:
    """Read the next live jobs whose names follow `after`."""
    jobs: list[tuple[str, LoadedJob]] = []
    unreadable: list[tuple[str, str]] = []
    page = store.read_page(after, PAGE_JOBS)
    for name, stored in page:
        if name.startswith(RESERVED):
            continue
        try:
            jobs.append((name, _loaded(stored)))
        except BadInput as error:
            unreadable.append((name, error.why))
    return JobPage(tuple(jobs), tuple(unreadable), page[-1][0] if len(page) == PAGE_JOBS else "")


def _loaded(stored: Stored) -> LoadedJob:
    return LoadedJob(stored_job(stored), stored.revision, len(stored.tail))


def stored_job(stored: Stored) -> Job:
    """Return the state of a job from its record and the events after it."""
    job = decode_state(stored.record, Job)
    for data in stored.tail:
        job = evolve(job, EVENTS.decode(data))
    return job


def accept_renewal(known: LoadedJob, sender: Sender, revision: int) -> Accepted:
    """Accept a renewal, with the durable step for a member that has an older view."""
    if known.job is None or sender.kind != "member" or revision >= known.revision:
        return Accepted(known.revision, None)
    return Accepted(known.revision, known.job.durable)
