"""Fixtures of the SQLite store: small stores, small disks, another user, a disk that fails."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pliant.stores.base import Store, Write, Written

PROGRAMS = Path(__file__).parent
OTHER_USER = 65534


def first(job: str = "a", *events: bytes, record: bytes = b"r") -> Write:
    return Write(job, 0, events or (b"e1",), record)


def put(store: Store, *writes: Write) -> None:
    """Write where a conflict would be a mistake of the test."""
    assert all(isinstance(outcome, Written) for outcome in store.write(writes))


def add(store: Store, data: bytes, job: str = "a") -> int:
    """Write one event after whatever is there; its revision."""
    stored = store.read(job)
    revision = stored.revision if stored is not None else 0
    put(store, Write(job, revision, (data,), b"r" if revision == 0 else None))
    return revision + 1


@contextmanager
def small_disk(at: Path, size_kb: int) -> Iterator[Path]:
    """A disk of its own, that can be full."""
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "small", str(at)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


@contextmanager
def file_limit(size_bytes: int) -> Iterator[None]:
    """No file can grow beyond this: like a full disk, and needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def as_other_user() -> Iterator[None]:
    """Without the rights of root, whom no mode of a file keeps out."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


class Faulty(sqlite3.Connection):
    """A connection that fails when told to.

    `fail` is the error's code, `at` the statement that it comes from, `after` whether that was done first.
    """

    fail: int = 0
    at: str = "COMMIT"
    after: bool = False
    checkpoints: int = 0

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> sqlite3.Cursor:  # type: ignore[override]
        kind = type(self)
        if sql.startswith("PRAGMA wal_checkpoint"):
            kind.checkpoints += 1
        if sql != kind.at or not kind.fail:
            return super().execute(sql, parameters)
        if kind.after:
            super().execute(sql)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = kind.fail, "SQLITE_IOERR_SOMETHING"
        raise error


def faulty(monkeypatch: pytest.MonkeyPatch) -> type[Faulty]:
    """Every connection made from now on obeys the class that is returned."""

    class FaultyHere(Faulty):
        pass

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FaultyHere))
    return FaultyHere
