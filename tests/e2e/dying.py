"""A coordinator that is killed at one of its own writes: `python dying.py NUMBER WHEN '{...}'`.

NUMBER counts the writes to the store since the start, 0 for none of them. WHEN is `before` the write, `during` it
(everything is in the transaction, the commit is next) or `after` it (durable, and no answer was sent). Killed means
SIGKILL: nothing of ours runs after it. The number of writes is kept in the file `writes` in the home.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e import serve
from pliant.stores.base import Hold, Outcome, Write
from pliant.stores.sqlite import SqliteStore


class Dying(SqliteStore):
    number = 0
    when = ""
    writes = 0

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        Dying.writes += 1
        now = Dying.writes == self.number
        if now and self.when == "before":
            _die()
        if now and self.when == "during":
            connection = self._file._connection
            assert connection is not None
            connection.set_trace_callback(lambda statement: _die() if statement == "COMMIT" else None)
        outcomes = super().write(writes, under)
        if now:
            _die()
        self.path.with_name("writes").write_text(str(Dying.writes))
        return outcomes


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Dying.number, Dying.when = int(sys.argv[1]), sys.argv[2]
    vars(serve)["SqliteStore"] = Dying
    sys.argv = [str(Path(serve.__file__)), sys.argv[3]]
    serve.main()
