"""`pliant run` as a user starts it, watched from outside: what it prints, whom it starts, and who is left."""

import json
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.running import wait_for
from pliant.client import Client
from pliant.credentials import read_token
from pliant.errors import PliantError
from unit.cli.program import PLIANT, environment

TRAINER = Path(__file__).parents[1] / "unit" / "agent" / "trainer.py"
TIME = re.compile(r"(?<=^\[pliant\] )\d\d:\d\d:\d\d ")
ENDS_S = 200.0  # nothing is slower than to import torch a dozen times on two cores


class Launched:
    """One `pliant run`. `lines` grows as it prints; every event, and without the times of day."""

    flags: tuple[str, ...] = ("--verbose",)

    def __init__(self, home: Path, *args: str, job: str = "demo", **env: str) -> None:
        self.home = home
        self.job = job
        self.folder = home / "jobs" / job
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [PLIANT, *self.command(), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(home, **env),
            start_new_session=True,
            preexec_fn=_heed_hangups,  # noqa: PLW1509  # it calls one function of the system
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def command(self) -> tuple[str, ...]:
        return ("run", *self.flags, "--job", self.job)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        if kind is not None:
            print(self.output)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "endpoint.json").read_text())
        return found

    def endpoint_when_there(self) -> dict[str, Any]:
        wait_for((self.folder / "endpoint.json").exists, "endpoint.json", ENDS_S)
        return self.endpoint

    def sees(self, text: str, times: int = 1) -> None:
        """Wait until it was printed."""
        wait_for(lambda: self.output.count(text) >= times or self.process.poll() is not None, text, ENDS_S)
        wait_for(lambda: self.output.count(text) >= times or not self._reader.is_alive(), text)
        assert self.output.count(text) >= times, f"{text!r} was not printed:\n{self.output}"

    def ended(self, patience_s: float = ENDS_S) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(patience_s)
        self._reader.join(ENDS_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    @contextmanager
    def client(self) -> Iterator[Client]:
        said = self.endpoint
        with Client([said["url"]], read_token(Path(said["token_file"]))) as client:
            yield client

    def members(self, *, live: bool = True) -> dict[str, int]:
        """The process of every member that is there now, of those that joined themselves or were only launched."""
        try:
            with self.client() as client:
                found = client.job(self.job)
        except (OSError, PliantError):
            return {}
        return {line.id: line.pid or 0 for line in found.members} if found.live is live else {}

    def has_members(self, count: int) -> dict[str, int]:
        """Wait until there are so many, and the process of each is known."""

        def are_there() -> bool:
            pids = self.members().values()
            return len(pids) == count and all(pids)

        wait_for(lambda: are_there() or self.process.poll() is not None, f"{count} members", ENDS_S)
        found = self.members()
        assert len(found) == count, self.output
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(TIME.sub("", line.rstrip("\n"), count=1))


class Calm(Launched):
    """One without --verbose, as a user starts it."""

    flags = ()


class Lending(Launched):
    """One `pliant agent --pool`."""

    def command(self) -> tuple[str, ...]:
        return ("agent", "--pool")


def _heed_hangups() -> None:
    """Also where the tests themselves run under nohup, which `pliant run` respects."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def family(home: Path) -> dict[int, int]:
    """A pidfd by process for every member whose environment names this home: `pliant run` and all that it started."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if f"PLIANT_HOME={home}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = os.pidfd_open(int(entry.name))
            except OSError:
                continue  # gone meanwhile, or not ours
    return found


def all_gone(pidfds: dict[int, int], home: Path) -> None:
    """Wait for the end of these, and see that no other member is there."""
    for pid, pidfd in pidfds.items():
        ready, _, _ = select.select([pidfd], [], [], ENDS_S)
        assert ready, f"process {pid} is still there: {Path(f'/proc/{pid}/cmdline').read_text()}"
        os.close(pidfd)
    left = family(home)
    assert {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in left} == {}


def kill(pid: int) -> None:
    assert pid > 1  # 0 would be ourselves
    os.kill(pid, signal.SIGKILL)
