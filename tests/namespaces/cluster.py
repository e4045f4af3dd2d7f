"""`pliant local` as a user starts it, watched from outside."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.launched import TIME, family
from e2e.running import wait_for
from pliant.client import Client
from pliant.credentials import read_token
from pliant.errors import PliantError
from pliant.wire.api import JobStatus
from pliant_local import network
from unit.cli.program import PLIANT, Done, environment, real

PATIENCE_S = 90.0
GONE_S = 30.0


class Cluster:
    """One `pliant local`. `lines` grows as it prints, without the times of day."""

    def __init__(self, home: Path, *args: str, name: str = "local", job: str = "demo", **env: str) -> None:
        self.home = home
        self.name = name
        self.job = job
        self.folder = home / "local" / name
        self.lines: list[str] = []
        self.env = environment(home, **env)
        self.process = subprocess.Popen(
            [PLIANT, "local", "--name", name, "--job", job, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its sweeper and its warden do the rest
        self.ended()
        if kind is not None:
            print(self.output, flush=True)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(TIME.sub("", line.rstrip("\n"), count=1))

    # ------------------------------------------------------------------------------------------- waiting

    def until(self, true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for something that can only happen while it runs."""
        wait_for(lambda: true() or not self.runs, what, patience_s)
        assert true(), f"{what} did not happen, and it has ended:\n{self.output[-5000:]}"

    def sees(self, text: str, times: int = 1) -> None:
        """Wait until it was printed."""
        wait_for(lambda: self.output.count(text) >= times or not self._reader.is_alive(), text, PATIENCE_S)
        assert self.output.count(text) >= times, f"{text!r} was not printed:\n{self.output[-5000:]}"

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(patience_s)
        self._reader.join(patience_s)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    # -------------------------------------------------------------------------------------------- asking

    def pliant(self, *args: str) -> Done:
        """Any command, as a member in another terminal gives it."""
        return real(self.env, *args)

    def do(self, *args: str) -> dict[str, Any]:
        """A command of `pliant local` that must work."""
        done = self.pliant("local", *args, "--name", self.name, "--json")
        assert done.code == 0, f"pliant local {' '.join(args)}: {done.err}{self.output[-3000:]}"
        found: dict[str, Any] = done.json
        return found

    def agents(self) -> dict[str, str]:
        """The state of each agent, by name."""
        return {each["agent"]: each["state"] for each in self.do("list")["agents"]}

    def up(self) -> None:
        """Wait until it can be asked."""
        self.until((self.folder / "control").exists, "the socket")

    @contextmanager
    def client(self) -> Iterator[Client]:
        said = json.loads((self.home / "jobs" / self.job / "endpoint.json").read_text())
        with Client([said["url"]], read_token(Path(said["token_file"]))) as client:
            yield client

    def job_status(self) -> JobStatus | None:
        """The job as its coordinator has it; None if no member can say."""
        try:
            with self.client() as client:
                return client.job(self.job)
        except (OSError, ValueError, PliantError):
            return None

    def active(self) -> dict[str, str]:
        """Return whose agent each member of the world is."""
        found = self.job_status()
        members = () if found is None else found.members
        return {line.id: line.agent for line in members if line.rank is not None}

    def step(self) -> int:
        found = self.job_status()
        return 0 if found is None else found.job.step

    # --------------------------------------------------------------------------------------- what is left

    def leftovers(self) -> list[str]:
        """Processes, namespaces, links and sockets that should not be there after the end."""
        found = [f"process {pid}: {_command(pid)}" for pid in _processes(self.home)]
        if not network.namespaces_unavailable():
            found += [name for name, whose in network.namespaces_and_links() if whose.pid == self.process.pid]
        if (self.folder / "control").exists():
            found.append("the socket")
        return found

    def left_nothing(self) -> None:
        """Wait until nothing is left; the member that cleans up may be at it."""
        try:
            wait_for(lambda: not self.leftovers(), "everything's end", GONE_S)
        except AssertionError:
            raise AssertionError(f"left over: {self.leftovers()}") from None


def _processes(home: Path) -> list[int]:
    found = family(home)
    for pidfd in found.values():
        os.close(pidfd)
    return sorted(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "(gone meanwhile)"
