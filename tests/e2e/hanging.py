"""A coordinator whose store hangs as long as the file `hang` is in its home: `python hanging.py '{...}'`.

A call that meets the file waits until it is removed. So does a disk or a network that does not answer.
"""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from e2e import serve
from pliant.stores.base import Busy, Entry, Hold, Outcome, Stored, Write
from pliant.stores.sqlite import SqliteStore

LOOK_S = 0.01


class Hanging(SqliteStore):
    file = Path()

    def _wait(self) -> None:
        while self.file.exists():
            threading.Event().wait(LOOK_S)

    def read(self, job: str) -> Stored | None:
        self._wait()
        return super().read(job)

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        self._wait()
        return super().read_page(after, limit)

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        self._wait()
        return super().events(job, after, limit)

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        self._wait()
        return super().write(writes, under)

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        self._wait()
        return super().hold(name, owner, ttl_s, now, url)


if __name__ == "__main__":
    Hanging.file = Path(json.loads(sys.argv[1])["home"], "hang")
    vars(serve)["SqliteStore"] = Hanging
    serve.main()
