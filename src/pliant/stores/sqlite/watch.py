"""Watches of one handle: told by the handle of what it wrote, and by a thread of what others wrote.

The thread is there only while there are watches. It asks SQLite for `data_version`, which costs a look at shared
memory, and reads revisions only when that has changed. Two threads tell, so each watch has a lock of its own
around its callback: the revisions it is told only grow, and no lock of ours is held that another thread needs
for anything else.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pliant.errors import PliantError
from pliant.stores.base import Told

__all__ = ["REVISION", "Watch", "Watches"]

log = logging.getLogger(__name__)

REVISION = "SELECT max(revision) FROM events WHERE job = (SELECT id FROM jobs WHERE name = ?)"


@dataclass(slots=True, eq=False)
class Watch:
    """One callback, and up to where it has been told."""

    job: str
    after: int
    callback: Told
    stopped: bool = False
    lock: Any = field(default_factory=threading.RLock)  # a callback that is told while being told must not hang

    def tell(self, revision: int) -> None:
        with self.lock:
            if self.stopped or revision <= self.after:
                return
            self.after = revision
            try:
                self.callback(self.job, revision)
            except Exception:
                # why: the write stands; raising would tell its writer that it failed, and other watchers nothing.
                log.exception("A watch on job %s raised at revision %d.", self.job, revision)


class Watches:
    """`connect` opens a connection for the thread; `poll_s` is how long what others wrote may go unnoticed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], poll_s: float) -> None:
        self._connect = connect
        self._poll_s = poll_s
        self._changed = threading.Condition()  # guards all below; never held while a callback runs
        self._by_job: dict[str, list[Watch]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._asked = 0
        self._looked = 0

    def __bool__(self) -> bool:
        return bool(self._by_job)

    def add(self, watch: Watch) -> Callable[[], None]:
        """Call first, then read the revision and tell: what is written in between is told by the thread."""
        with self._changed:
            self._by_job.setdefault(watch.job, []).append(watch)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="pliant-store-watch", daemon=True)
                self._thread.start()
        return lambda: self._stop(watch)

    def _stop(self, watch: Watch) -> None:
        with self._changed:
            if watch.stopped:
                return
            watch.stopped = True
            others = self._by_job[watch.job]
            others.remove(watch)
            if not others:
                del self._by_job[watch.job]
            if not self._by_job:
                self._changed.notify_all()

    def tell(self, job: str, revision: int) -> None:
        """Call after a commit, on whatever thread made it or noticed it."""
        with self._changed:
            told = tuple(self._by_job.get(job, ()))
        for watch in told:
            watch.tell(revision)

    def settle(self, timeout_s: float) -> bool:
        """Call to wait until all that was written before this call has been told. False: not in this time."""
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None or self._looked >= wanted, timeout_s)

    def close(self) -> None:
        """Call before the file is closed; no callback is called afterwards."""
        with self._changed:
            self._closed = True
            for watches in self._by_job.values():
                for watch in watches:
                    watch.stopped = True
            self._by_job.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        eye = _Eye(self._connect)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._is_wanted, self._poll_s)
                    if not self._by_job:
                        self._thread = None
                        self._changed.notify_all()
                        return
                    asked, jobs = self._asked, tuple(self._by_job)
                for job, revision in eye.look(jobs):
                    self.tell(job, revision)
                with self._changed:
                    self._looked = asked
                    self._changed.notify_all()
        finally:
            eye.close()

    def _is_wanted(self) -> bool:
        return not self._by_job or self._asked > self._looked


class _Eye:
    """The thread's own connection: made when needed, made again after an error."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._is_blind = False

    def look(self, jobs: tuple[str, ...]) -> list[tuple[str, int]]:
        """The revisions of these jobs, if anything at all was written since the last look."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return []
            rows = [(job, self._connection.execute(REVISION, (job,)).fetchone()[0]) for job in jobs]
            self._version, self._is_blind = version, False
        except (sqlite3.Error, PliantError) as error:
            if not self._is_blind:  # once, and not at every look
                log.warning("Watches are not told of what others write until the store can be read again: %s", error)
            self._is_blind = True
            self.close()
            return []
        return [(job, revision) for job, revision in rows if revision is not None]

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection, self._version = None, None
