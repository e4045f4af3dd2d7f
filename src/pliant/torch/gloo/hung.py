"""Operations that gloo never ends, and how we tell them from those that are still at work.

When a connection closes in the middle of a message, gloo tells whoever waits for other messages on it, but not whoever
waits for the rest of this one (its `Pair::signalException` passes over a half-read and a half-written buffer). That
thread then sleeps until the operation's time limit, which for us is as good as for ever (H25). With the group's sockets
shut nothing can arrive for it any more, so once gloo's threads have not run for a while nobody touches the operation's
buffers again: it is as over as one that failed (H16). Only its threads stay, and what they hold.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

LOOKS = 5  # how often the threads must be found asleep without having run in between
_WORKER = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")


def gloo_threads() -> frozenset[int]:
    """The threads of this process in which gloo runs operations, of whatever group."""
    return frozenset(int(task.name) for task in _TASKS.iterdir() if _read(task / "comm").strip() == _WORKER)


class IdleCheck:
    """Whether these threads have stopped to do anything. Look every few milliseconds."""

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
    """Never destroy these: a process group's destructor waits for its threads, and would wait for ever."""
    for each in owned:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _scheduling(status: str) -> str:
    """Whether it sleeps, and how often it has been put to sleep: that number grows if it ran at all."""
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
