"""This machine's workers: started as a launch or a live job wants them, looked after, and heard when they fail."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from string import Template

from pliant.agent.job_dir import Folder, point_to
from pliant.agent.logs import failure
from pliant.agent.logs.capture import Sink
from pliant.agent.output import RunOutput
from pliant.agent.process.client import Processes
from pliant.agent.process.template import TORCH, WARMING
from pliant.agent.process.usage import Usage, usages
from pliant.agent.process.worker_env import Surroundings, environments, error_file, host_and_port, live_environment
from pliant.agent.setup import Plan
from pliant.core.hangs import WorkerSample
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import BadInput
from pliant.wire.api import WorkerUsage

LAST_WORDS_S = 0.5  # for what a worker wrote last, should something it started keep the pipe open
WARM_AFTER_S = 15.0  # the first workers have the machine to themselves while they import, but not longer than this
IDLE_CORES = 0.5
REACH_S = 10.0


@dataclass(frozen=True, slots=True)
class _Worker:
    sink: Sink
    rank: int | None


class Workers:
    """Call from the agent's one thread; only `ended` is for any."""

    def __init__(self, plan: Plan, folder: Folder, processes: Processes, output: RunOutput, agent: AgentId) -> None:
        self._plan = plan
        self._folder = folder
        self._processes = processes
        self._output = output
        self._agent = agent
        self._env: Mapping[str, str] = {}
        self._surroundings: Surroundings | None = None
        self._running: dict[MemberId, _Worker] = {}
        self._seats: dict[MemberId, int] = {}
        self._began: float | None = None
        self._warm = plan.preload != () and not (why := plan.script.why_not_forked(plan.kind))
        self._not_forked = why if plan.preload != () else ""
        self._used: dict[str, tuple[float, Usage]] = {}
        self._cores: dict[str, float] = {}
        self._launch = 0
        self._envs: dict[MemberId, dict[str, str]] = {}
        self._envs_of: tuple[Seat, ...] = ()
        self._said: set[str] = set()
        self.first_failure = ""  # what to show of the worker that failed first

    def open(self, env: Mapping[str, str], surroundings: Surroundings) -> None:
        """Call once, before the first start: what every worker finds in its environment."""
        self._env = env
        self._surroundings = surroundings
        chosen = self._plan.logs.log_dir
        try:
            point_to(self._plan.checkpoint_dir, self._folder.checkpoints_at)
            point_to(chosen.absolute() if chosen is not None else None, self._folder.logs_at)
            if chosen is not None and self._plan.logs.keeps:
                chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--log-dir: {error.filename or chosen} cannot be used: {error.strerror}.") from error

    # ------------------------------------------------------------------------------------------- starting

    def start(self, member: MemberId, leaving: Set[MemberId]) -> None:
        """Start a worker of a live job; whoever is leaving makes room for it."""
        assert self._surroundings is not None
        seat = self._take_seat(member, leaving)
        self._run(member, live_environment(member, seat, self._surroundings), seat, None)

    def start_seat(self, launch: Launch, member: MemberId) -> None:
        """Start a worker of a launch."""
        assert self._surroundings is not None
        if launch.number != self._launch:
            self._launch, self.first_failure = launch.number, ""  # those of the one before are history
        if launch.seats != self._envs_of:
            self._envs_of = launch.seats
            self._envs = environments(launch, self._agent, self._surroundings)
        env, here = self._envs[member], [seat.member for seat in launch.seats if seat.agent == self._agent]
        with suppress(OSError):  # what an earlier one left there is not this one's
            error_file(self._surroundings.error_dir, member).unlink()
        if member == here[0] and launch.seats[0].agent != self._agent:
            threading.Thread(target=self._reach, args=(launch,), name="reach", daemon=True).start()
        self._seats[member] = here.index(member)
        self._run(member, env, self._seats[member], int(env["RANK"]))

    def _run(self, member: MemberId, env: Mapping[str, str], local_rank: int, rank: int | None) -> None:
        show = _Shown(self._output, member)
        sink = self._plan.logs.sink(self._folder.logs, member, local_rank, show.line, self._output.say)
        self._running[member] = _Worker(sink, rank)
        self._began = self._began or time.monotonic()
        env = {**self._env, **env, "PLIANT_MEMBER": member}
        args = tuple(Template(arg).safe_substitute(local_rank=local_rank) for arg in self._plan.script.args)
        script = replace(self._plan.script, args=args)  # ${local_rank} in an argument, as torchrun has it
        if self._warm:
            self._processes.fork(member, script, env, sink)
        else:
            self._processes.start(member, script.argv(), env, sink)

    def _take_seat(self, member: MemberId, leaving: Set[MemberId]) -> int:
        """The lowest number that no worker has that stays: which of the machine's devices is its own."""
        self._seats = {each: seat for each, seat in self._seats.items() if each in self._running}
        taken = {seat for each, seat in self._seats.items() if each not in leaving}
        self._seats[member] = next(seat for seat in count() if seat not in taken)
        return self._seats[member]

    def _reach(self, launch: Launch) -> None:
        """Say so if there is no way to where rank 0 is; workers would wait for minutes before they do."""
        address = launch.seats[0].address
        host, port = host_and_port(address)
        until = time.monotonic() + REACH_S
        while (left := until - time.monotonic()) > 0:
            try:
                socket.create_connection((host, int(port)), timeout=left).close()
            except ConnectionRefusedError:
                return  # the machine is there; its worker listens when it is ready
            except OSError as error:
                if time.monotonic() < until:
                    threading.Event().wait(min(0.5, until - time.monotonic()))
                    continue
                why = error.strerror or "no answer"
                self._output.say(
                    f"{address}, where rank 0 is to be found on {launch.seats[0].agent}, cannot be reached from here: "
                    f"{why}. Is there a firewall between, or does that machine need --local-addr?"
                )
            return

    # ------------------------------------------------------------------------------------------- looking after

    def look(self) -> tuple[tuple[WorkerUsage, ...], tuple[WorkerSample, ...]]:
        """Measure the workers; call every few seconds. Starts the template once the first workers have started."""
        running = self._running
        pids: dict[str, int] = {name: pid for name in running if (pid := self._processes.pids.get(name)) is not None}
        now, found = time.monotonic(), usages(pids)
        uses, samples = [], []
        for name, usage in found.items():
            at, before = self._used.get(name, (now, usage))
            cores = max(0.0, (usage.cpu_s - before.cpu_s) / (now - at)) if now > at else 0.0
            self._cores[name] = cores if now > at else 1.0  # it has just started
            member = MemberId(name)
            samples.append(WorkerSample(member, now, usage.cpu_s, running[member].sink.written, usage.state))
            uses.append(WorkerUsage(member, pids[name], round(cores, 2), usage.rss_bytes))
        self._cores = {name: cores for name, cores in self._cores.items() if name in found}
        self._used = {name: (now, usage) for name, usage in found.items()}
        self._warm_up()
        self._say_why_plainly()
        return tuple(uses), tuple(samples)

    def _have_settled(self) -> bool:
        """Whether the first workers have done their own imports, as far as the machine's load tells."""
        if self._began is None or not self._cores:
            return False
        idle = (os.cpu_count() or 1) - sum(self._cores.values()) > IDLE_CORES
        return idle or time.monotonic() - self._began > WARM_AFTER_S

    @property
    def _preload(self) -> tuple[str, ...]:
        return self._plan.preload if self._plan.preload is not None else TORCH

    def is_warming(self) -> bool:
        """Call before workers of ours are waited for: whether the template is on its way. If need be it is started."""
        if self._warm and self._processes.warmed is None:
            self._processes.warm(self._preload, self._env)
            return True
        return self._warm and self._processes.warmed == WARMING

    def _say_why_plainly(self) -> None:
        """A worker that could not be forked took longer to start: each reason is said once."""
        for why in {*self._processes.plainly.values()} - {"", WARMING} - self._said:
            self._said.add(why)
            if self._processes.warmed == "":
                self._output.say(f"workers were started from nothing: {why}")

    def _warm_up(self) -> None:
        if self._not_forked:
            self._output.say(f"workers are started from nothing each time: {self._not_forked}")
            self._not_forked = ""
        if self._warm and self._processes.warmed is None and self._have_settled():
            self._processes.warm(self._preload, self._env)
        elif self._warm and self._processes.warmed not in (None, "", WARMING):
            self._output.say(f"workers are started from nothing from now on: {self._processes.warmed}")
            self._warm = False

    # ------------------------------------------------------------------------------------------- ends

    def ended(self, member: MemberId, code: int) -> str:
        """Call when one has ended, from any thread: what it said of its failure, in one line; empty: nothing."""
        worker = self._running.get(member)
        if worker is None or code <= 0:
            return ""
        worker.sink.wait(LAST_WORDS_S)
        assert self._surroundings is not None
        found = failure.failure(error_file(self._surroundings.error_dir, member), worker.sink.tail())
        if not self.first_failure:
            self.first_failure = failure.told(
                found,
                member=member,
                rank=worker.rank,
                host=os.uname().nodename,
                pid=self._processes.pids.get(member),
                code=code,
                log=self._plan.logs.path(self._folder.logs, member),
            )
        return found.message if found is not None else ""

    def forget(self, member: MemberId) -> None:
        """Call when nothing more is to be known of one."""
        self._running.pop(member, None)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The way of a worker's lines to the screen."""

    output: RunOutput
    member: MemberId

    def line(self, line: bytes) -> None:
        self.output.worker(self.member, line)
