"""A program that opens a store, writes to it, and is killed at a chosen point of that.

dying.py PATH POINT
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from pliant.stores.base import Write
from pliant.stores.sqlite import SqliteStore, file, mark, schema


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_step(connection: sqlite3.Connection) -> None:
    """As a step to the next version: does something, and does not live to see the end."""
    connection.execute("CREATE TABLE half (x)")
    connection.execute("UPDATE meta SET writes = writes + 1000")
    die()


def then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> None:
        function(*args)
        die()

    return both


POINTS: dict[str, tuple[Any, str, Any]] = {
    "mark opened": (mark.StoreMark, "read", die),
    "file made": (schema, "migrate", die),
    "file has tables": (schema, "migrate", then_die(schema.migrate)),
    "file whole": (mark.StoreMark, "write_durably", die),
    "mark made": (mark.StoreMark, "write_durably", then_die(mark.StoreMark.write_durably)),
    "file named": (file, "flush_directory", die),
    "mark noted": (mark.StoreMark, "write", then_die(mark.StoreMark.write)),
    "in a step": (schema, "MIGRATIONS", (*schema.MIGRATIONS, half_a_step)),
}

if __name__ == "__main__":
    owner, name, value = POINTS[sys.argv[2]]
    setattr(owner, name, value)
    SqliteStore(sys.argv[1]).write([Write("by the dead", 0, (b"e1",), b"r")])
    print("lived")
