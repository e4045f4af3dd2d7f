"""The processes of a job on this machine: recognised before they are touched, and never mistaken for others.

A process's number is used again after its end. So one is known by its number and by when it began, and a signal goes
through a handle that was opened before both were compared.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `began` is in ticks of the machine's clock."""

    pid: int
    began: int


def recognise(pid: int, job: str, member: str, mark: str, runner: int) -> Process | None:
    """The process of that number, if it is that member's of that job; None: it is not, or it is on another machine.

    Its environment says so. A worker that was forked shows the environment of what it was forked from; but it maps a
    file whose name is `mark` with the member's, and descends from `runner`, the job's `pliant run` on this machine.
    """
    found = _process(pid)
    if found is None:
        return None
    said = _environ(pid)
    named = said.get("PLIANT_JOB") == job and said.get("PLIANT_MEMBER") == member
    ours = named or (runner in _ancestors(pid) and _maps(pid, f"/memfd:{mark}{member[:200]} (deleted)"))
    return found if ours and is_alive(found) else None


def recognise_coordinator(pid: int, home: Path) -> Process | None:
    """The process of that number, if it is the coordinator that `pliant run` keeps for the job in that folder."""
    found = _process(pid)
    ours = found is not None and _environ(pid).get("PLIANT_HOME") == str(home.absolute())
    return found if found is not None and ours and is_alive(found) else None


def itself() -> Process | None:
    """This process."""
    return _process(os.getpid())


def is_alive(process: Process) -> bool:
    """Whether it is still that one, and has not ended."""
    return _began(process.pid) == process.began


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal to this process and to no other; False if it has ended."""
    with _opened(process) as handle:
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def _opened(process: Process) -> Iterator[int | None]:
    handle = None
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
    try:
        yield handle if handle is not None and is_alive(process) else None
    finally:
        if handle is not None:
            os.close(handle)


def _process(pid: int) -> Process | None:
    began = _began(pid) if pid > 1 else None
    return None if began is None else Process(pid, began)


def _began(pid: int) -> int | None:
    """None: there is none of that number, or it has ended and is only not buried yet."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while (fields := _stat(pid)) and (pid := int(fields[1])) > 1 and pid not in found:
        found.add(pid)
    return found


def _stat(pid: int) -> list[str]:
    """From its state on; empty if there is none of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _environ(pid: int) -> dict[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:  # it has ended, or is another user's
        return {}
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _maps(pid: int, name: str) -> bool:
    try:
        return name in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
