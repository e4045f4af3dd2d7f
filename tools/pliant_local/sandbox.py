"""A sandbox on this machine: a coordinator, and agents that come and go by schedule and by command.

All inputs go through one inbox, and one thread acts on them. `schedule` decides which agents to add and remove.
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
from pliant_local.agents import LocalAgents
from pliant_local.control import ANSWER_S, Answer, Control
from pliant_local.coordinator import LOOPBACK, ProcessKeeper, SandboxCoordinator
from pliant_local.network import Network
from pliant_local.schedule import SchedulePoint, due, next_at

if TYPE_CHECKING:
    from types import FrameType

MARGIN_S = 10.0  # what agents may take beyond the time their workers have to leave
PATIENCE_S = 5.0  # of requests to the coordinator
TIME_IS_UP = 124  # as timeout(1) has it
SIGNALLED = 128

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SandboxOutput(Protocol):
    """Output of a sandbox. Methods are called from several threads, also at once."""

    def agent(self, name: str, line: bytes) -> None:
        """Show a line that an agent wrote."""

    def event(self, revision: int, event: Event) -> None:
        """Show an event of the job."""

    def say(self, text: str) -> None:
        """Show a message of the sandbox."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The job and its agents. `program` starts `pliant`; `run` are the arguments of every agent's `pliant run`."""

    job: str
    program: tuple[str, ...]
    run: tuple[str, ...]
    points: tuple[SchedulePoint, ...]
    for_s: float | None
    grace_s: float
    lease_ttl_s: float
    home: Path  # the sandbox's folder
    job_home: Path  # the job's folder, with the coordinator's store

    @property
    def token_file(self) -> Path:
        return self.home / "join-token"

    @property
    def agents(self) -> a.AgentOptions:
        return a.AgentOptions(self.job, self.program, self.run, self.home / "agents", self.token_file)


@dataclass(frozen=True, slots=True)
class _ProcessEnded:
    name: str
    code: int


@dataclass(frozen=True, slots=True)
class _ControlRequest:
    question: dict[str, Any]
    answer: SimpleQueue[Answer]


@dataclass(frozen=True, slots=True)
class _SignalReceived:
    number: int


@dataclass(frozen=True, slots=True)
class _Wake:
    """A point of the schedule or a deadline may be due."""


@dataclass(frozen=True, slots=True)
class _KeeperLost:
    """The spawner ended, and all processes with it."""


@dataclass(slots=True)
class _EndReasons:
    """Reasons to end, and the time at which agents are killed."""

    closing: bool = False
    broken: bool = False
    time_up: bool = False
    signalled: int = 0
    hurries: int = 0
    kill_at: float | None = None
    own: list[tuple[str, int]] = field(default_factory=list)  # agents that ended by themselves
    after: list[tuple[str, int]] = field(default_factory=list)  # those that did so after the job's end


class Sandbox:
    """Call `run` in the main thread. The spawner's client calls `process_ended` and `broken`."""

    def __init__(
        self, wish: SandboxOptions, keeps: ProcessKeeper, network: Network | None, told: SandboxOutput
    ) -> None:
        self._wish = wish
        self._told = told
        self._inbox: SimpleQueue[_ProcessEnded | _ControlRequest | _SignalReceived | _Wake | _KeeperLost] = (
            SimpleQueue()
        )
        self._agents = LocalAgents(wish.agents, keeps, network, told.agent, told.say)
        host = LOOPBACK if network is None else network.address
        self._centre = SandboxCoordinator(keeps, wish.program, wish.job_home, host, wish.lease_ttl_s, told.say)
        self._ends = _EndReasons()
        self._began = self._looked = 0.0

    def run(self, ready: Callable[[str, int], None], open_job: Callable[[Client], object]) -> int:
        """Run until the job has ended, the time is up or a signal arrives; return the exit status.

        `ready` receives the coordinator's URL and pid, then `open_job` creates the job. Agents only join it: one that
        comes late must neither undo a resize nor start another attempt.
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
                with suppress(PliantError):  # no agent is left to use it
                    client.expire_token(made)
            return self._conclude()
        finally:
            if not self._ends.broken:
                self._centre.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _make_token(self, client: Client) -> str:
        """Make a token for the agents, which can only join this job; return its id."""
        made = client.create_token(TokenRequest(Scope.JOIN, self._wish.job, label="agents of pliant local"))
        token = parse_token(made.token)
        if token is None:
            raise PliantError("The coordinator returned an invalid token. Is it another version of Pliant?")
        write_token(self._wish.token_file, token)
        return made.line.id

    # ------------------------------------------------------------------------------------ what is observed

    def process_ended(self, name: str, code: int) -> None:
        if name == NAME:
            self._centre.ended(code)
        else:
            self._inbox.put(_ProcessEnded(name, code))

    def broken(self) -> None:
        self._inbox.put(_KeeperLost())

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._inbox.put(_SignalReceived(number))

    def _happened(self, revision: int, event: Event) -> None:
        self._told.event(revision, event)
        if self._follower.job_ended:
            self._inbox.put(_Wake())

    def _catch_up(self) -> None:
        with suppress(PliantError):  # the job or its coordinator is gone
            self._follower.catch_up()

    def _ask(self, question: dict[str, Any]) -> Answer:
        answer: SimpleQueue[Answer] = SimpleQueue()
        self._inbox.put(_ControlRequest(question, answer))
        try:
            return answer.get(timeout=ANSWER_S)
        except Empty:
            return {"ok": False, "why": "the sandbox is busy, or has just ended"}

    # ---------------------------------------------------------------------------------------- what is done

    def _live(self) -> None:
        self._began = time.monotonic()
        self._looked = -1.0
        self._look()
        while not self._over():
            try:
                given = self._inbox.get(timeout=self._pause_s())
            except Empty:
                given = _Wake()
            self._take(given)

    def _over(self) -> bool:
        return self._ends.closing and not self._agents.running

    def _pause_s(self) -> float | None:
        """Return the time until the next deadline."""
        times = [self._ends.kill_at, self._up_at]
        if not self._ends.closing and (later := next_at(self._wish.points, self._looked)) is not None:
            times.append(self._began + later)
        due_at = min((at for at in times if at is not None), default=None)
        return None if due_at is None else max(0.0, due_at - time.monotonic())

    @property
    def _up_at(self) -> float | None:
        """The time at which --for is over; None without it, and once all agents are leaving."""
        told = self._ends.time_up or self._ends.signalled
        return None if self._wish.for_s is None or told else self._began + self._wish.for_s

    def _take(self, given: _ProcessEnded | _ControlRequest | _SignalReceived | _Wake | _KeeperLost) -> None:
        match given:
            case _ProcessEnded(name, code):
                self._agent_ended(name, code)
            case _ControlRequest(question, answer):
                try:
                    answer.put({"ok": True, **self._obey(question)})
                except PliantError as error:
                    answer.put({"ok": False, "why": error.why})
            case _SignalReceived(number):
                self._stop(number)
            case _Wake():
                self._look()
            case _KeeperLost():
                self._ends.broken = True
                raise PliantError(
                    "The process that keeps the agents was killed, and the agents with it. Run the command again."
                )
            case _:
                assert_never(given)

    def _look(self) -> None:
        now = time.monotonic()
        if self._ends.kill_at is not None and now >= self._ends.kill_at:
            self._ends.kill_at = None
            self._kill_all()
        if self._up_at is not None and now >= self._up_at:
            self._ends.time_up = True
            self._ends.hurries = max(self._ends.hurries, 1)  # a signal after this ends the agents at once
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
            self._catch_up()  # its end counts differently after the job's end
        if agent.wanted and not self._ends.signalled and not self._ends.time_up:
            (self._ends.after if self._follower.job_ended else self._ends.own).append((name, code))
        if agent.wanted and not self._agents.running and next_at(self._wish.points, self._looked) is None:
            self._ends.closing = True  # no agent is left, and none will come

    # ----------------------------------------------------------------------------------------- by command

    def _obey(self, question: Mapping[str, Any]) -> Answer:
        todo, name = question.get("do"), question.get("agent")
        if todo == "list":
            return {"job": self._wish.job, "url": self._centre.url, "agents": [*self._agents.rows()]}
        if self._ends.closing or self._follower.job_ended:
            raise PliantError("The sandbox is ending.")
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
                raise PliantError(f"Unknown command {todo!r}.")
        return {"agent": agent.name}

    # -------------------------------------------------------------------------------------------- its end

    def _job_ended(self) -> None:
        """Reconnect agents that are cut off, so that they see the job's end. All end when their scripts have."""
        self._ends.closing = True
        self._heal_all()

    def _heal_all(self) -> None:
        for agent in self._agents.running:
            if agent.cut:
                self._agents.connect(agent, is_cut=False)

    def _stop(self, number: int) -> None:
        """Let all agents leave; on a second signal, end them soon; on a third, kill them."""
        self._ends.hurries += 1
        self._ends.signalled = self._ends.signalled or number
        name = signal.Signals(number).name
        if self._ends.hurries == 1:
            self._told.say(f"{name}: the agents leave within {self._wish.grace_s:g} s; send it again to end now")
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
            self._told.say(f"{agent.name} did not end in time; killing it")
            self._agents.kill(agent)

    def _conclude(self) -> int:
        job, follower, ends = self._wish.job, self._follower, self._ends
        if follower.state is JobState.FINISHED:
            failed = next(((name, code) for name, code in ends.after if code != 0), None)
            if failed is None or ends.signalled:
                return 0
            raise PliantError(
                f"Job {job} has finished, but {failed[0]} ended with {describe_exit(failed[1])} afterwards."
            )
        if follower.state is not None and follower.state.ended:
            raise PliantError(f"Job {job} is {follower.state.value}: {follower.why}")
        if ends.signalled:
            return SIGNALLED + ends.signalled
        if ends.time_up:
            return TIME_IS_UP
        name, code = ends.own[-1]
        self._told.say(
            f"job {job} has not ended, but no agent is left; the last, {name}, ended with {describe_exit(code)}"
        )
        return code if code > 0 else 1


def _revision(client: Client, job: str) -> int:
    """Return the revision of a job that exists; its earlier events are not shown again."""
    try:
        return client.job(job).job.revision
    except Refused:
        return 0  # the job is not created yet
