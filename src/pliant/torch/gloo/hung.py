"""Detect operations that gloo never ends.

When a connection closes in the middle of a message, gloo fails the operations that wait for other messages on it, but
not the one that waits for the rest of this message (its `Pair::signalException` skips half-read and half-written
buffers). The thread of that operation sleeps until the operation's time limit, which Pliant sets to years. Once the
group's sockets are shut down, no data can arrive. So when gloo's threads have not run for a while, nothing touches the
operation's buffers any more, and it can be treated as failed. Its threads stay, with the memory they hold.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

LOOKS = 5  # consecutive checks that must find the threads asleep, without having run in between
_WORKER = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")


def gloo_threads() -> frozenset[int]:
    """Return the threads of this process in which gloo runs operations, of all groups."""
    return frozenset(int(task.name) for task in _TASKS.iterdir() if _read(task / "comm").strip() == _WORKER)


class IdleCheck:
    """A check that these threads do not run any more. Call `is_idle` every few milliseconds."""

    def __init__(self, threads: frozenset[int]) -> None:
        self._threads = threads
        self._seen: list[str] = []
        self._looks = 0

    def is_idle(self) -> bool:
        seen = [_scheduling(_read(_TASKS / str(thread) / "status")) for thread in sorted(self._threads)]
        same = seen == self._seen and all(life.startswith(("S", "gone")) for life in seen)
        self._seen = seen
        self._looks = self._looks + 1 if same else 0
        return self._looks >= LOOKS


def keep_forever(*owned: object) -> None:
    """Never destroy these objects: the destructor of a process group waits for its threads, which never end."""
    for each in owned:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _scheduling(status: str) -> str:
    """Return a thread's state and its context switches, whose number grows whenever it runs."""
    fields = dict(line.partition(":")[::2] for line in status.splitlines())
    if not fields:
        return "gone"
    wanted = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    return " ".join(fields[name].strip() for name in wanted)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return ""
