"""A program that opens a store of an older version and is killed at one of its statements: `migrating.py PATH NUMBER`.

NUMBER counts all statements of the opening. Without a kill it prints `lived`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

from pliant.stores.sqlite import SqliteStore

_connect = sqlite3.connect
_seen = 0


def _count(_: str) -> None:
    global _seen  # noqa: PLW0603  # one number for all connections of this program
    _seen += 1
    if _seen == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


def connect(*args: Any, **options: Any) -> sqlite3.Connection:
    made: sqlite3.Connection = _connect(*args, **options)
    made.set_trace_callback(_count)
    return made


if __name__ == "__main__":
    sqlite3.connect = connect  # type: ignore[assignment]  # as every module calls it
    SqliteStore(sys.argv[1]).close()
    print("lived")
