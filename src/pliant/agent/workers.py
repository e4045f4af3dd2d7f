"""This machine's workers: start them, measure them, and read their errors."""

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

from pliant.agent.job_dir import JobDir, point_to
from pliant.agent.logs import failure
from pliant.agent.logs.capture import OutputSink, OutputStream
from pliant.agent.logs.rotate import remove_oldest
from pliant.agent.output import RunOutput
from pliant.agent.plan import RunPlan
from pliant.agent.process.cgroups import MemoryKills
from pliant.agent.process.client import Processes
from pliant.agent.process.script import Script
from pliant.agent.process.template import TORCH, WARMING
from pliant.agent.process.usage import Usage, is_stopped, usages
from pliant.agent.process.worker_env import WorkerEnvironment, environments, error_file, host_and_port, live_environment
from pliant.core.hangs import WorkerSample
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import BadInput
from pliant.wire.api import WorkerUsage

LAST_WORDS_S = 0.5  # for the last output, if a child of the worker keeps the pipe open
WARM_AFTER_S = 15.0  # the template waits for the first workers' imports, at most this long
IDLE_CORES = 0.5
REACH_S = 10.0


@dataclass(frozen=True, slots=True)
class _Worker:
    sink: OutputSink
    rank: int | None


LOGS_KEPT = 500  # workers whose logs stay in the job's folder; each has up to 128 MiB


class Workers:
    """Call from the agent's main thread; only `ended` may be called from any."""

    def __init__(self, plan: RunPlan, folder: JobDir, processes: Processes, output: RunOutput, agent: AgentId) -> None:
        self._plan = plan
        self._folder = folder
        self._processes = processes
        self._output = output
        self._agent = agent
        self._env: Mapping[str, str] = {}
        self._surroundings: WorkerEnvironment | None = None
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
        self._reported_reasons: set[str] = set()
        self._memory_kills = MemoryKills()
        self.first_failure = ""  # the message about the worker that failed first

    def open(self, env: Mapping[str, str], surroundings: WorkerEnvironment) -> None:
        """Set the common environment of all workers; call once, before the first start."""
        self._env = env
        self._surroundings = surroundings
        chosen = self._plan.logs.log_dir
        try:
            point_to(self._plan.checkpoint_dir, self._folder.checkpoints_at)
            point_to(chosen.absolute() if chosen is not None else None, self._folder.logs_at)
        except OSError as error:
            raise BadInput(f"{error.filename or self._folder.path} cannot be written: {error.strerror}.") from error
        try:
            if chosen is not None and self._plan.logs.keeps:
                chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--log-dir: {error.filename or chosen} cannot be used: {error.strerror}.") from error

    # ------------------------------------------------------------------------------------------- starting

    def start(self, member: MemberId, leaving: Set[MemberId]) -> None:
        """Start a worker of a live job. The devices of workers that leave count as free."""
        assert self._surroundings is not None
        seat = self._take_seat(member, leaving)
        self._run(member, live_environment(member, seat, self._surroundings), seat, None)

    def start_server(self, member: MemberId) -> None:
        """Start a parameter server. It has no device, and is never forked from the template."""
        saved = self._plan.spec.checkpoints
        options = ("--save-every", f"{saved.seconds:g}", "--keep", str(saved.keep))
        sink = self._open_sink(member, 0)
        self._running[member] = _Worker(sink, None)
        env = {**self._env, "PLIANT_MEMBER": member}
        self._processes.start(member, Script("module", "pliant.ps", options).argv(), env, sink)

    def start_seat(self, launch: Launch, member: MemberId) -> None:
        """Start a worker of a launch."""
        assert self._surroundings is not None
        if launch.number != self._launch:
            self._launch, self.first_failure = launch.number, ""  # failures of the launch before
        if launch.seats != self._envs_of:
            self._envs_of = launch.seats
            self._envs = environments(launch, self._agent, self._surroundings)
        env, here = self._envs[member], [seat.member for seat in launch.seats if seat.agent == self._agent]
        with suppress(OSError):  # left by an earlier worker of that name
            error_file(self._surroundings.error_dir, member).unlink()
        if member == here[0] and launch.seats[0].agent != self._agent:
            threading.Thread(target=self._reach, args=(launch,), name="reach", daemon=True).start()
        self._seats[member] = here.index(member)
        self._run(member, env, self._seats[member], int(env["RANK"]))

    def _run(self, member: MemberId, env: Mapping[str, str], local_rank: int, rank: int | None) -> None:
        sink = self._open_sink(member, local_rank)
        self._running[member] = _Worker(sink, rank)
        self._began = self._began or time.monotonic()
        env = {**self._env, **env, "PLIANT_MEMBER": member}
        args = tuple(Template(arg).safe_substitute(local_rank=local_rank) for arg in self._plan.script.args)
        script = replace(self._plan.script, args=args)  # ${local_rank} in an argument, as torchrun has it
        if self._warm:
            self._processes.fork(member, script, env, sink)
        else:
            self._processes.start(member, script.argv(), env, sink)

    def _open_sink(self, member: MemberId, local_rank: int) -> OutputSink:
        show = _Shown(self._output, member)
        if self._plan.logs.log_dir is None:  # in a folder of the user's, nothing is removed
            remove_oldest(self._folder.logs, LOGS_KEPT, [*self._running, member])
        return self._plan.logs.sink(
            self._folder.logs,
            member,
            local_rank,
            show.line,
            self._output.warn,
            show_error=show.error,
            show_bar=show.bar,
        )

    def _take_seat(self, member: MemberId, leaving: Set[MemberId]) -> int:
        """Return the lowest local rank that no staying worker has; it selects the worker's device."""
        self._seats = {each: seat for each, seat in self._seats.items() if each in self._running}
        taken = {seat for each, seat in self._seats.items() if each not in leaving}
        self._seats[member] = next(seat for seat in count() if seat not in taken)
        return self._seats[member]

    def _reach(self, launch: Launch) -> None:
        """Report an unreachable rank 0, on which workers would wait for minutes."""
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
                self._output.warn(
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
        self._report_plain_start()
        return tuple(uses), tuple(samples)

    def has_stopped(self) -> bool:
        """Return whether a worker's process is stopped now."""
        pids = (self._processes.pids.get(name) for name in self._running)
        return any(is_stopped(pid) for pid in pids if pid is not None)

    def _have_settled(self) -> bool:
        """Return whether the first workers have finished their imports, judged by the machine's load."""
        if self._began is None or not self._cores:
            return False
        idle = (os.cpu_count() or 1) - sum(self._cores.values()) > IDLE_CORES
        return idle or time.monotonic() - self._began > WARM_AFTER_S

    @property
    def _preload(self) -> tuple[str, ...]:
        return self._plan.preload if self._plan.preload is not None else TORCH

    def is_warming(self) -> bool:
        """Return whether the template still imports; start it first if there is none."""
        if self._warm and self._processes.warmed is None:
            self._processes.warm(self._preload, self._env)
            return True
        return self._warm and self._processes.warmed == WARMING

    def _report_plain_start(self) -> None:
        """Report once for each reason why a worker could not be forked."""
        for why in {*self._processes.plainly.values()} - {"", WARMING} - self._reported_reasons:
            self._reported_reasons.add(why)
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
        """Return a worker's error in one line, or why it was killed; empty if there is none. Safe from any thread."""
        worker, why = self._running.get(member), self._memory_kills.explain(code)
        if worker is None or code <= 0:
            return why
        worker.sink.wait(LAST_WORDS_S)
        assert self._surroundings is not None
        found = failure.read_failure(error_file(self._surroundings.error_dir, member), worker.sink.tail())
        if not self.first_failure:
            self.first_failure = failure.describe_failure(
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
        """Drop a worker that has ended."""
        self._running.pop(member, None)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Sends a worker's lines to the output."""

    output: RunOutput
    member: MemberId

    def line(self, line: bytes) -> None:
        self.output.worker(self.member, line)

    def error(self, line: bytes) -> None:
        self.output.worker(self.member, line, is_error=True)

    def bar(self, state: bytes, stream: OutputStream) -> None:
        self.output.bar(self.member, state, is_error=stream is OutputStream.ERR)
