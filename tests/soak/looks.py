"""Looking at a job's processes from outside, every few seconds: memory, descriptors, threads, and the store's size."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.launched import Launched
from pliant.client import Client
from pliant.credentials import read_token
from pliant.errors import PliantError

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
JOINED_S = 0.25  # between two looks at who has joined
LOOK_S = 3.0


@dataclass(frozen=True)
class Look:
    """One process at one moment."""

    at: float
    role: str
    pid: int
    age_s: float
    rss_bytes: int
    files: int
    threads: int


@dataclass(frozen=True)
class Start:
    """A worker that has joined, or a coordinator that answers, and what its start had cost by then."""

    at: float
    name: str
    cpu_s: float
    age_s: float


@dataclass
class Looks:
    """Everything that was seen. `start` and `close`; the rest may be read at any time."""

    run: Launched
    seen: list[Look] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    store: list[tuple[float, int]] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)  # of the members that are there now

    def start(self) -> None:
        self._over = threading.Event()
        self._warden = warden_of(self.run.process.pid)
        self._known: set[str] = set()
        self._thread = threading.Thread(target=self._look_on, name="looks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        due = 0.0
        said = self.run.endpoint
        with Client([said["url"]], read_token(Path(said["token_file"])), patience_s=0.0) as client:
            while not self._over.wait(JOINED_S):
                with suppress(PliantError):
                    self.pids = {line.id: line.pid or 0 for line in client.job(self.run.job).members}
                    self._see_starts()
                if time.monotonic() >= due:
                    due = time.monotonic() + LOOK_S
                    self._see_all()

    def _see_starts(self) -> None:
        for member, pid in self.pids.items():
            self._see_start(member, pid)

    def _see_start(self, name: str, pid: int) -> None:
        if name in self._known:
            return
        self._known.add(name)
        with suppress(OSError):
            fields = _stat(pid)
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
            self.starts.append(Start(time.time(), name, cpu_s, _age_s(fields)))

    def _see_all(self) -> None:
        roles = [
            ("agent", self.run.process.pid),
            ("warden", self._warden),
            *(("worker", x) for x in self.pids.values()),
        ]
        with suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((self.run.folder / "endpoint.json").read_text())["pid"])
            roles.append(("coordinator", pid))
            self._see_start(f"coordinator {pid}", pid)
        for role, pid in roles:
            with suppress(OSError):
                self.seen.append(look(role, pid))
        files = [self.run.folder / f"store.db{end}" for end in ("", "-wal")]
        self.store.append((time.time(), sum(file.stat().st_size for file in files if file.exists())))


def look(role: str, pid: int) -> Look:
    """Raises `OSError` if it is gone."""
    fields = _stat(pid)
    files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # links to what may be gone already
    return Look(time.time(), role, pid, _age_s(fields), int(fields[21]) * PAGE, files, int(fields[17]))


def warden_of(agent: int) -> int:
    """The one child of an agent: everything else is below it."""
    (children,) = (path.read_text().split() for path in Path(f"/proc/{agent}/task/{agent}").glob("children"))
    for child in children:
        if b"pliant.agent.process.spawner" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError(f"process {agent} has no warden among {children}")


def _stat(pid: int) -> list[str]:
    """From the third field on: the second is a name that may have anything in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _age_s(fields: list[str]) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS
