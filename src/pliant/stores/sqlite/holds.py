"""Holds in a SQLite file: gain, renew, release.

The end of another process's hold is measured on this process's clock, unless that process is seen to have exited. The
row also shows the boot of the machine on which the holder runs. A row of another boot is left from before a restart of
this machine, or belongs to a process on another machine that shares the file. A process does not outlive a restart. So
if such a row changes while this process looks on, another machine uses the file, and SQLite does not work like that.
"""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from pliant.errors import StoreError
from pliant.stores.base import Busy, Hold
from pliant.stores.sightings import HoldSightings
from pliant.stores.sqlite.process_identity import ProcessIdentity, current_process, has_exited

__all__ = ["HELD", "HoldTable", "is_held", "release"]

LOOKING = ""  # the caller of `holder`: no owner has an empty name

HELD = "SELECT term, owner, until_s, ttl_s, url, boot_id, pid_namespace, pid, start_ticks FROM holds WHERE name = ?"
IS_HELD = "SELECT 1 FROM holds WHERE name = ? AND owner = ? AND term = ?"
RELEASE = "UPDATE holds SET owner = NULL WHERE name = ? AND owner = ? AND term = ?"
REPLACE = """
INSERT OR REPLACE INTO holds (name, term, owner, until_s, ttl_s, url, boot_id, pid_namespace, pid, start_ticks)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class HoldTable:
    """The holds of one file, as one handle sees them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sightings = HoldSightings()

    def hold(self, connection: sqlite3.Connection, wanted: Hold, ttl_s: float, now: float) -> tuple[Hold | Busy, int]:
        """Gain or renew a hold in a write transaction. `wanted` is complete except for its term."""
        row = connection.execute(HELD, (wanted.name,)).fetchone()
        term = 1
        if row is not None:
            term, holder, until_s, its_ttl_s, url, *fields = row
            held = Hold(wanted.name, holder or "", term, until_s, url)
            if holder is None or has_exited(ProcessIdentity(*fields)):
                term += 1
            elif holder != wanted.owner:
                busy = self._busy(held, ProcessIdentity(*fields), wanted.owner, its_ttl_s, now)
                if busy is not None:
                    return busy, 0
                term += 1
            elif now >= until_s:
                term += 1
        mine = replace(wanted, term=term)
        values = (mine.name, term, mine.owner, mine.until_s, ttl_s, mine.url, *astuple(current_process()))
        connection.execute(REPLACE, values)
        return mine, 2

    def holder(self, name: str, row: tuple[Any, ...], now: float) -> Hold | None:
        """Return the hold of a row of `HELD`; None if it is over."""
        term, owner, until_s, ttl_s, url, *fields = row
        if owner is None or has_exited(ProcessIdentity(*fields)):
            return None
        seen_until_s = self._sightings.until(name, LOOKING, (term, until_s), ttl_s, now)
        return Hold(name, owner, term, seen_until_s, url) if now < seen_until_s else None

    def _busy(self, held: Hold, process: ProcessIdentity, caller: str, ttl_s: float, now: float) -> Busy | None:
        """Return the answer while another process holds; None if its hold is over."""
        until_s = self._sightings.until(held.name, caller, (held.term, held.until_s), ttl_s, now)
        if now >= until_s:
            return None
        here = current_process().boot_id
        if here and process.boot_id and process.boot_id != here and self._sightings.has_changed(held.name, caller):
            raise StoreError(
                f"{self._path} is in use by {held.owner} on another machine; nothing was written. A SQLite store "
                f"serves one machine. Stop one of the two coordinators, or use an etcd store."
            )
        return Busy(replace(held, until_s=until_s))


def is_held(connection: sqlite3.Connection, hold: Hold) -> bool:
    """Return whether a hold was neither released nor replaced."""
    # Compare the term and not the time: a renewed hold is the same hold, a later one of the same owner is not.
    return connection.execute(IS_HELD, (hold.name, hold.owner, hold.term)).fetchone() is not None


def release(connection: sqlite3.Connection, hold: Hold) -> int:
    """End a hold. Return how many were ended: 0 if it was over before."""
    return connection.execute(RELEASE, (hold.name, hold.owner, hold.term)).rowcount
