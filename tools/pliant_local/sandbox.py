"""A cluster on this machine: a coordinator, and agents that come and go by schedule and by command.

Everything comes through one inbox, and one thread acts. Which agents are added and which are removed is decided in
`schedule`; here it is observed and done.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from pliant.agent.coordinator.child import NAME
from pliant.client import Client
from pliant.client.event_follower import EventFollower
from pliant.core.job.launches import describe_exit
from pliant.core.messages import Event
from pliant.core.model.job import JobState
from pliant.credentials import parse_token, read_token, write_token
from pliant.errors import PliantError, Refused
from pliant.wire.api import Scope, TokenRequest
from pliant_local import agents as a
from pliant_local.agents import Agents
from pliant_local.control import ANSWER_S, Answer, Control
from pliant_local.coordinator import LOOPBACK, Keeps, SandboxCoordinator
from pliant_local.network import Network
from pliant_local.schedule import Point, due, next_at

if TYPE_CHECKING:
    from types import FrameType

PATIENCE_S = 5.0
MARGIN_S = 10.0  # what agents may take beyond the time their workers have to leave
TIME_IS_UP = 124  # as timeout(1) has it
SIGNALLED = 128

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Told(Protocol):
    """Where it is told. Called from several threads, also at once."""

    def agent(self, name: str, line: bytes) -> None:
        """A line that an agent wrote."""

    def event(self, revision: int, event: Event) -> None:
        """Something happened to the job."""

    def say(self, text: str) -> None:
        """The cluster's own words."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to run. `program` starts `pliant` itself; `run` is what stands behind `pliant run` for every agent."""

    job: str
    program: tuple[str, ...]
    run: tuple[str, ...]
    points: tuple[Point, ...]
    for_s: float | None
    grace_s: float
    lease_ttl_s: float
    home: Path  # the cluster's own folder
    job_home: Path  # the job's: what the coordinator keeps

    @property
    def token_file(self) -> Path:
        return self.home / "join-token"

    @property
    def agents(self) -> a.Wish:
        return a.Wish(self.job, self.program, self.run, self.home / "agents", self.token_file)


@dataclass(frozen=True, slots=True)
class _Ended:
    name: str
    code: int


@dataclass(frozen=True, slots=True)
class _Asked:
    question: dict[str, Any]
    answer: SimpleQueue[Answer]


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


@dataclass(frozen=True, slots=True)
class _Look:
    """Something may be due, or over."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """Whoever kept the processes is gone, and they with it."""


@dataclass(slots=True)
class _Ends:
    """Why it ends, and when patience does."""

    closing: bool = False
    broken: bool = False
    time_up: bool = False
    signalled: int = 0
    hurries: int = 0
    kill_at: float | None = None
    own: list[tuple[str, int]] = field(default_factory=list)  # agents that ended without being told to
    after: list[tuple[str, int]] = field(default_factory=list)  # the same, after the job's end


class Local:
    """Make one and `run` it, in the main thread. `process_ended` and `broken` are for whoever keeps the processes."""

    def __init__(self, wish: Wish, keeps: Keeps, network: Network | None, told: Told) -> None:
        self._wish = wish
        self._told = told
        self._inbox: SimpleQueue[_Ended | _Asked | _Signal | _Look | _Broken] = SimpleQueue()
        self._agents = Agents(wish.agents, keeps, network, told.agent, told.say)
        host = LOOPBACK if network is None else network.address
        self._centre = SandboxCoordinator(keeps, wish.program, wish.job_home, host, wish.lease_ttl_s, told.say)
        self._ends = _Ends()
        self._began = self._looked = 0.0

    def run(self, ready: Callable[[str, int], None], open_job: Callable[[Client], object]) -> int:
        """Until the job has ended, the time is up or somebody stops it; the exit status.

        `ready` is told where the coordinator listens; then `open_job` is called, once. Agents only join: one that comes
        late must neither undo a resize nor begin another attempt.
        """
        wish = self._wish
        handlers = {number: signal.signal(number, self._signalled) for number in _STOPS}
        try:
            self._centre.start()
            ready(self._centre.url, self._centre.pid)
            token = read_token(self._centre.token_file)
            with Client([self._centre.url], token, patience_s=PATIENCE_S) as client:
                self._follower = EventFollower(client, wish.job, _revision(client, wish.job), self._happened)
                self._follower.start()
                open_job(client)
                made = self._make_token(client)
                with Control(wish.home, self._ask):
                    self._live()
                self._follower.close()
                self._catch_up()
                with suppress(PliantError):  # nobody is there to use it
                    client.end_token(made)
            return self._conclude()
        finally:
            if not self._ends.broken:
                self._centre.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _make_token(self, client: Client) -> str:
        """Agents get one that joins this job and does nothing else, as other machines would; its id."""
        made = client.make_token(TokenRequest(Scope.JOIN, self._wish.job, label="agents of pliant local"))
        token = parse_token(made.token)
        if token is None:
            raise PliantError("The coordinator made a token that is none of ours. Is it of another version?")
        write_token(self._wish.token_file, token)
        return made.line.id

    # ------------------------------------------------------------------------------------ what is observed

    def process_ended(self, name: str, code: int) -> None:
        if name == NAME:
            self._centre.ended(code)
        else:
            self._inbox.put(_Ended(name, code))

    def broken(self) -> None:
        self._inbox.put(_Broken())

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._inbox.put(_Signal(number))

    def _happened(self, revision: int, event: Event) -> None:
        self._told.event(revision, event)
        if self._follower.job_ended:
            self._inbox.put(_Look())

    def _catch_up(self) -> None:
        with suppress(PliantError):  # there is no job, or no coordinator any more
            self._follower.catch_up()

    def _ask(self, question: dict[str, Any]) -> Answer:
        answer: SimpleQueue[Answer] = SimpleQueue()
        self._inbox.put(_Asked(question, answer))
        try:
            return answer.get(timeout=ANSWER_S)
        except Empty:
            return {"ok": False, "why": "the cluster is busy, or has just ended"}

    # ---------------------------------------------------------------------------------------- what is done

    def _live(self) -> None:
        self._began = time.monotonic()
        self._looked = -1.0
        self._look()
        while not self._over():
            try:
                given = self._inbox.get(timeout=self._pause_s())
            except Empty:
                given = _Look()
            self._take(given)

    def _over(self) -> bool:
        return self._ends.closing and not self._agents.running

    def _pause_s(self) -> float | None:
        """Until something is due."""
        times = [self._ends.kill_at, self._up_at]
        if not self._ends.closing and (later := next_at(self._wish.points, self._looked)) is not None:
            times.append(self._began + later)
        due_at = min((at for at in times if at is not None), default=None)
        return None if due_at is None else max(0.0, due_at - time.monotonic())

    @property
    def _up_at(self) -> float | None:
        """When the time is up; None if it never is, or if everybody was told to leave already."""
        told = self._ends.time_up or self._ends.signalled
        return None if self._wish.for_s is None or told else self._began + self._wish.for_s

    def _take(self, given: _Ended | _Asked | _Signal | _Look | _Broken) -> None:
        match given:
            case _Ended(name, code):
                self._agent_ended(name, code)
            case _Asked(question, answer):
                try:
                    answer.put({"ok": True, **self._obey(question)})
                except PliantError as error:
                    answer.put({"ok": False, "why": error.why})
            case _Signal(number):
                self._stop(number)
            case _Look():
                self._look()
            case _Broken():
                self._ends.broken = True
                raise PliantError("The process that keeps the agents was killed, and took them with it. Run it again.")
            case _:
                assert_never(given)

    def _look(self) -> None:
        now = time.monotonic()
        if self._ends.kill_at is not None and now >= self._ends.kill_at:
            self._ends.kill_at = None
            self._kill_all()
        if self._up_at is not None and now >= self._up_at:
            self._ends.time_up = True
            self._ends.hurries = max(self._ends.hurries, 1)  # whoever is told again ends at once
            self._told.say(f"{self._wish.for_s:g} s are over: the agents leave")
            self._close()
        elif self._follower.job_ended and not self._ends.closing:
            self._job_ended()
        elif not self._ends.closing:
            since, self._looked = self._looked, now - self._began
            wanted = due(self._wish.points, since, self._looked)
            if wanted is not None:
                self._bring_to(wanted)

    def _bring_to(self, wanted: int) -> None:
        if self._agents.bring_to(wanted, self._centre.url):
            self._told.say(f"{self._looked:.0f} s: {wanted} {'agent' if wanted == 1 else 'agents'}")

    def _agent_ended(self, name: str, code: int) -> None:
        agent = self._agents.ended(name, code)
        if code != 0 and not self._follower.job_ended:
            self._catch_up()  # whether that was before the job's end or after it makes a difference
        if agent.wanted and not self._ends.signalled and not self._ends.time_up:
            (self._ends.after if self._follower.job_ended else self._ends.own).append((name, code))
        if agent.wanted and not self._agents.running and next_at(self._wish.points, self._looked) is None:
            self._ends.closing = True  # nobody is left, and nobody is to come

    # ----------------------------------------------------------------------------------------- by command

    def _obey(self, question: Mapping[str, Any]) -> Answer:
        todo, name = question.get("do"), question.get("agent")
        if todo == "list":
            return {"job": self._wish.job, "url": self._centre.url, "agents": [*self._agents.rows()]}
        if self._ends.closing or self._follower.job_ended:
            raise PliantError("The cluster is ending.")
        if todo == "add":
            added = self._agents.add(self._centre.url)
            return {"agent": added.name, "address": added.address}
        agent = self._agents.named(None if name is None and todo == "remove" else str(name))
        match todo:
            case "remove":
                self._agents.remove(agent)
            case "kill":
                self._agents.kill(agent)
            case "cut":
                self._agents.connect(agent, is_cut=True)
            case "heal":
                self._agents.connect(agent, is_cut=False)
            case _:
                raise PliantError(f"{todo!r} is nothing that a cluster can do.")
        return {"agent": agent.name}

    # -------------------------------------------------------------------------------------------- its end

    def _job_ended(self) -> None:
        """The agents see it by themselves, and end when their scripts have; those cut off must be able to."""
        self._ends.closing = True
        self._heal_all()

    def _heal_all(self) -> None:
        for agent in self._agents.running:
            if agent.cut:
                self._agents.connect(agent, is_cut=False)

    def _stop(self, number: int) -> None:
        """First: everybody leaves. Second: now. Third: without a word."""
        self._ends.hurries += 1
        self._ends.signalled = self._ends.signalled or number
        name = signal.Signals(number).name
        if self._ends.hurries == 1:
            self._told.say(f"{name}: the agents leave within {self._wish.grace_s:g} s; again to end now")
            self._close()
        elif self._ends.hurries == 2:
            self._told.say(f"{name} again: ending now")
            self._close(MARGIN_S)
        else:
            self._kill_all()

    def _close(self, limit_s: float | None = None) -> None:
        self._ends.closing = True
        self._ends.kill_at = time.monotonic() + (self._wish.grace_s + MARGIN_S if limit_s is None else limit_s)
        self._heal_all()
        for agent in self._agents.running:
            self._agents.remove(agent)

    def _kill_all(self) -> None:
        for agent in self._agents.running:
            self._told.say(f"{agent.name} has not ended by itself: killing it")
            self._agents.kill(agent)

    def _conclude(self) -> int:
        job, follower, ends = self._wish.job, self._follower, self._ends
        if follower.state is JobState.FINISHED:
            failed = next(((name, code) for name, code in ends.after if code != 0), None)
            if failed is None or ends.signalled:
                return 0
            raise PliantError(f"{job} is finished, but after it {failed[0]} ended with {describe_exit(failed[1])}.")
        if follower.state is not None and follower.state.ended:
            raise PliantError(f"{job} is {follower.state.value}: {follower.why}")
        if ends.signalled:
            return SIGNALLED + ends.signalled
        if ends.time_up:
            return TIME_IS_UP
        name, code = ends.own[-1]
        self._told.say(
            f"{job} has not ended, but no agent is left; the last one, {name}, ended with {describe_exit(code)}"
        )
        return code if code > 0 else 1


def _revision(client: Client, job: str) -> int:
    """Return the revision of a job; earlier events are not shown. 0 if it is still to be created."""
    try:
        return client.job(job).job.revision
    except Refused:
        return 0
