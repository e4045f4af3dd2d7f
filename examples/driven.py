"""Start `pliant run` from a program, and follow its job by the output of --json."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.credentials import read_token
from pliant.wire.api import EVENTS

PLIANT = (sys.executable, "-P", "-c", "from pliant.cli.main import main; main()")


class Ended(Exception):
    """`pliant run` ended before the condition held."""


class Driven:
    """One `pliant run`, with the state of its job as its output shows it. Use it in a `with` statement.

    `on_event` is called with each event, `on_line` with the source and the text of each line of output.
    """

    def __init__(
        self,
        home: Path,
        job: str,
        options: Sequence[str],
        script: Sequence[str],
        on_event: Callable[[m.Event], None],
        on_line: Callable[[str, str], None],
    ) -> None:
        self._home = home
        self.job = job
        self.pids: dict[MemberId, int] = {}  # of all members so far
        self.joined: set[MemberId] = set()
        self.gone: dict[MemberId, str] = {}  # how: left or lost
        self.world: tuple[MemberId, ...] = ()  # of the current generation
        self.step = 0  # durable
        self.state = JobState.WAITING
        self._worlds: dict[int, World] = {}
        self._generation = 0
        self._fresh = 0  # steps made in the current generation that are durable
        self._on_event = on_event
        self._on_line = on_line
        other = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")}
        self._env = {**other, "PLIANT_HOME": str(home), "OMP_NUM_THREADS": "1"}
        command = [*PLIANT, "run", "--job", job, "--json", *options, *script]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self._env, stdin=subprocess.DEVNULL)

    def __enter__(self) -> "Driven":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()  # takes the coordinator and the workers with it
        self._process.communicate()

    def wait_for(self, done: Callable[[], bool]) -> float:
        """Follow the job until the condition holds, and return the time. Raises `Ended`."""
        while not done():
            if not self._read():
                raise Ended(f"pliant run ended with status {self._process.wait()}")
        return time.monotonic()

    def wait_for_end(self) -> int:
        """Follow the job to its end, and return the exit status."""
        while self._read():
            pass
        return self._process.wait()

    def trains_with(self, count: int, without: Sequence[MemberId] = ()) -> Callable[[], bool]:
        """Return a condition for `wait_for`: a world of this size trains, without these members."""
        return lambda: len(self.world) == count and not set(self.world) & set(without)

    def settled(self, count: int) -> Callable[[], bool]:
        """Return a condition for `wait_for`: this many steps of the current world are durable."""
        return lambda: self._fresh >= count or self.state is JobState.FINISHED

    def send(self, *commands: m.Command) -> None:
        """Send commands to the coordinator, as `pliant resize` and `pliant drain` do."""
        endpoint = json.loads((self._home / "jobs" / self.job / "endpoint.json").read_text(encoding="utf-8"))
        with Client([endpoint["url"]], read_token(Path(endpoint["token_file"]))) as client:
            for command in commands:
                client.send(self.job, command)

    def ask(self, *words: str) -> str:
        """Run a `pliant` command, as in a second terminal, and return its output."""
        done = subprocess.run([*PLIANT, *words], stdout=subprocess.PIPE, text=True, env=self._env, check=False)
        return done.stdout

    def _read(self) -> bool:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return False
        item = json.loads(line)
        if "event" in item:
            event = EVENTS.decode(json.dumps(item["event"]).encode())
            self._note(event)
            self._on_event(event)
        elif "worker" in item:
            self._on_line(item["worker"], item["line"])
        else:
            self._on_line("pliant", item["message"])
        return True

    def _note(self, event: m.Event) -> None:
        match event:
            case m.MemberJoined(member=member):
                self.pids[member.id] = member.pid
                self.joined.add(member.id)
            case m.MemberGone(member=gone, how=how):
                self.joined.discard(gone)
                self.gone[gone] = how
            case m.WorldFormed(world=world):
                self._worlds[world.number] = world
            case m.WorldEntered(generation=generation):
                self.world = self._worlds[generation].members
                self._generation, self._fresh = generation, 0
            case m.StepsCommitted(lines=lines):
                self.step = lines[-1].lineage.step
                self._fresh += sum(line.lineage.generation == self._generation for line in lines)
            case m.StateChanged(state=state):
                self.state = state
            case _:
                pass
