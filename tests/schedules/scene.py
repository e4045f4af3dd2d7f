"""One schedule's world: a coordinator, agents and members as processes, and everything the harness knows of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.sample_order import Order
from pliant.core.messages import Command, Event
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import read_or_create_token
from pliant.errors import PliantError, Refused
from pliant.stores.base import Store
from pliant_sim.describe import narrate
from pliant_sim.store import CheckpointDirectory
from schedules import messages as w
from schedules.agent import SETTINGS, Settings
from schedules.checks import Checks, Mirror
from schedules.fabric import Switch

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The start of a schedule."""

    seed: int
    agents: int = 3
    capacity: int = 4
    members: int = 5
    size_min: int = 2
    size_max: int = 8
    grid: Grid = field(default_factory=lambda: Grid(samples=101, batch=12, slots=12, epochs=10))
    checkpoint_every: int = 4


def setting_for(seed: int) -> Setting:
    """Two or three agents, four to six members; a quarter have checkpoints only where the protocol asks."""
    draw = Random(f"setting {seed}")
    agents, members = draw.choice([2, 3]), draw.choice([4, 5, 6])
    return Setting(seed, agents=agents, members=members, checkpoint_every=0 if seed % 4 == 3 else 4)


class Scene(Switch):
    """The universe that the simulator's fabric and checkers are given."""

    job = w.JOB
    suspected: frozenset[str] = frozenset()  # unknown outside the coordinator

    def __init__(self, setting: Setting, folder: Path, port: int) -> None:
        super().__init__(folder / "switch", Random(setting.seed))
        self.setting = setting
        self.folder = folder
        self.files = folder / "checkpoints"
        self.files.mkdir()
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.terms = Terms(setting.grid, setting.seed, setting.checkpoint_every)
        self.order = Order(setting.seed, setting.grid.samples)
        self.directory = CheckpointDirectory()
        self.store: Store
        self.workers: dict[MemberId, Mirror] = {}
        self.checks: Checks = Checks(self)
        self.observer = self
        self.fired: Counter[FaultKind] = Counter()
        self.broke = lambda: self.faults_fired(FaultKind.BREAK_TRANSFER)
        self.agents: dict[AgentId, subprocess.Popen[bytes]] = {}
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.coordinator_paused = False
        self.lives = 0
        self.running = False
        self.healed = False
        self._story = (folder / "story").open("w", encoding="utf-8", buffering=1)
        token, _ = read_or_create_token(folder / "token")
        self.client = Client([self.url], token, patience_s=PATIENCE_S)
        self._wishes: SimpleQueue[Command] = SimpleQueue()
        for each in (self._ask_for_wishes, self._follow):
            threading.Thread(target=each, daemon=True).start()

    @property
    def grid(self) -> Grid:
        """The grid of every history: no schedule changes the batch."""
        return self.terms.grid

    def is_isolated(self, coordinator: str) -> bool:
        """Return False: no fault cuts a coordinator off from all its members."""
        return False

    # -------------------------------------------------------------------------------------- the processes

    def _start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        """From the main thread alone: what it starts ends when that thread does."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"schedules.{args[0]}", *args[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_coordinator(self) -> None:
        if self.coordinator is None:
            self.tell("a coordinator starts")
            self.coordinator = self._start("coordinator", "serve", str(self.port), str(self.folder))

    def kill_coordinator(self) -> None:
        if self.coordinator is not None:
            self.coordinator.kill()
            self.coordinator.wait()
            self.coordinator, self.coordinator_paused = None, False

    def start_agent(self, name: AgentId) -> None:
        old = self.agents.get(name)
        if old is not None and old.poll() is None:
            return
        self.lives += 1
        settings = Settings(
            agent=name,
            life=str(self.lives),
            capacity=self.setting.capacity,
            url=self.url,
            token=str(self.folder / "token"),
            switch=str(self.folder / "switch"),
            files=str(self.files),
            terms=self.terms,
        )
        self.tell(f"{name} starts")
        self.agents[name] = self._start(name, "agent", SETTINGS.encode(settings).decode())

    def kill_agent(self, name: AgentId) -> None:
        """Its members die with it."""
        for mirror in self.workers.values():
            if mirror.agent == name and mirror.up:
                mirror.killed = True
        self.agents[name].kill()
        self.agents[name].wait()

    def signal(self, mirror: Mirror, what: signal.Signals) -> bool:
        """To a member; whether it was there."""
        if not mirror.up or not self.is_alive(mirror.pid):
            return False
        os.kill(mirror.pid, what)
        if what is signal.SIGKILL:
            mirror.killed = True
        return True

    def is_alive(self, pid: int) -> bool:
        """Return whether a process runs, or is stopped; one that ended and was not asked for its status does not."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def end(self) -> None:
        """Leave nothing behind."""
        self.client.close()
        for process in (*self.agents.values(), *([self.coordinator] if self.coordinator else [])):
            if process.poll() is None:
                process.kill()
            process.wait()
        for mirror in self.workers.values():
            if self.is_alive(mirror.pid) and mirror.up:
                os.kill(mirror.pid, signal.SIGKILL)
        self.close()
        self._story.close()

    # -------------------------------------------------------------------------------- what they tell us

    def arrived(self, hello: w.Hello) -> None:
        if hello.member:
            mirror = self.workers[hello.member] = Mirror(hello, self.terms)
            agent = self.agents.get(hello.agent)  # if that was killed meanwhile, it took this one along
            mirror.killed = agent is not None and agent.poll() is not None
            self.tell(f"{hello.member} is process {hello.pid}")

    def traced(self, member: MemberId | None, message: w.Up) -> None:
        match message:
            case w.Acked(command, revision):
                self.checks.acked.append((w.COMMANDS.decode(command.encode()), revision))
            case w.ChildEnded(ended, code):
                self.tell(f"{ended} ended with {code}")
                if ended in self.workers:
                    self.workers[ended].ended_with = code
            case w.Kills(grown):
                if grown in self.workers:
                    self.workers[grown].killed = True
            case _ if member is not None:
                self.checks.traced(self.workers[member], message)
            case w.Trouble(what):
                self.checks.complain(what)
            case _:
                raise AssertionError(message)

    def closed(self, member: MemberId) -> None:
        mirror = self.workers[member]
        mirror.up = False
        mirror.ended_at_s = self.now

    # ---------------------------------------------------------------------------- to and from the service

    def ask(self, command: Command) -> None:
        """A user's wish; a refusal is an answer."""
        self._wishes.put(command)

    def _ask_for_wishes(self) -> None:
        s = self.setting
        self._wish(m.Create(w.JOB, JobSpec(s.size_min, s.size_max, Target(s.members))))
        while True:
            self._wish(self._wishes.get())

    def _wish(self, command: Command) -> None:
        try:
            revision = self.client.send(w.JOB, command).revision
        except Refused as refused:
            self.post(partial(self.tell, f"{type(command).__name__} was refused: {refused.why}"))
        except PliantError as error:
            self.post(partial(self.checks.complain, f"{type(command).__name__}: {type(error).__name__}: {error.why}"))
        else:
            self.post(partial(self.checks.acked.append, (command, revision)))

    def _follow(self) -> None:
        """Every event, from the first."""
        pause = threading.Event()
        while True:
            try:
                for revision, event in self.client.follow(w.JOB, 0):
                    self.post(partial(self._event, revision, event))
                return
            except Refused:
                pause.wait(0.05)  # the job was not created yet
            except PliantError as error:
                self.post(partial(self._stream_broke, error.why))
                return

    def _stream_broke(self, why: str) -> None:
        if self.coordinator is not None:
            self.checks.complain(f"the event stream broke off: {why}")

    def _event(self, revision: int, event: Event) -> None:
        if isinstance(event, m.WorldEntered):
            self.running = True
        self.checks.event(revision, event)

    @property
    def ended(self) -> bool:
        """The job is over, and so are all processes but the coordinator; or something is wrong already."""
        job = self.checks.job
        if self.checks.complaints:
            return True
        if job is None or not job.state.ended:
            return False
        return all(agent.poll() is not None for agent in self.agents.values()) and not self.workers_up

    @property
    def workers_up(self) -> list[Mirror]:
        return [mirror for mirror in self.workers.values() if mirror.up]

    def hurry(self) -> None:
        """Nothing is left to be struck: let computing take less long."""
        for mirror in self.workers_up:
            self.send(mirror.id, w.Pace(self.pace))

    # ------------------------------------------------------------------------------------------- the story

    def faults_fired(self, kind: FaultKind) -> None:
        self.fired[kind] += 1
        self.tell(f"FAULT {kind}")

    def tell(self, what: str) -> None:
        if not self._story.closed:
            self._story.write(f"{self.now:8.3f}  {what}\n")

    def tell_event(self, event: Event) -> None:
        self.tell(f"  store: {narrate(event)}")
