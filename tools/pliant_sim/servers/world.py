"""A simulated job with parameter servers: the real decisions of the coordinator, servers, and workers that push."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Command, Create, Event, Exited, Expire, Rejection
from pliant.core.model.job import Job, JobSpec, Mode
from pliant.core.model.names import AgentId, MemberId
from pliant.core.ps.messages import JoinServers
from pliant.core.ps.model import NONE, BucketLayout, empty_layout
from pliant.ps.copies import BucketRoles
from pliant.ps.tables.optimizers import SGD
from pliant.ps.tables.spec import BY_STEP, PushPolicy, Table
from pliant_sim.describe import narrate
from pliant_sim.engine import Timeline
from pliant_sim.servers.checks import ServerChecks
from pliant_sim.servers.process import SimulatedProcess
from pliant_sim.servers.server import SimulatedServer
from pliant_sim.servers.worker import PushingWorker
from pliant_sim.simulation import NetworkConditions

COORDINATOR = MemberId("coordinator")
AGENT = AgentId("x")
RENEW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """The start of a schedule of parameter servers."""

    seed: int = 0
    servers: int = 3
    workers: int = 3
    pushes: int = 40  # of each worker
    ids: int = 400
    single: bool = False  # a server is taken away only while every bucket has two copies, so that none is lost
    by_step: bool = False  # as in a live job: each worker is a slot, and all wait for each other after each push


def setting_for(seed: int) -> ServerSetting:
    """Two to four servers, and one worker or three. Single losses in half of the schedules, steps in a tenth."""
    return ServerSetting(
        seed=seed,
        servers=2 + seed % 3,
        workers=1 if seed % 4 == 3 else 3,
        single=seed // 2 % 2 == 0,
        by_step=seed % 10 == 6,
    )


class ServerSimulation(Timeline):
    """One schedule of parameter servers."""

    def __init__(self, setting: ServerSetting, story: list[str] | None = None) -> None:
        super().__init__(setting.seed, story)
        self.setting, self.seed, self.ids = setting, setting.seed, setting.ids
        self.table = Table("t", 1, SGD(1.0), scale=0.0)
        self.network = NetworkConditions()
        self.cut: set[frozenset[str]] = set()
        self.wanted = setting.servers
        self.breaks_next = False  # a stream of copies breaks as soon as they are reported as filled
        self.servers: dict[MemberId, SimulatedServer] = {}
        self.layouts = 0
        self._renewed_at: dict[MemberId, float] = {}
        self.checks = ServerChecks(self)
        self.job: Job | None = None
        self.decide(Create("sim", JobSpec(1, 8, max_restarts=1000, mode=Mode.TASKS)))
        self.workers: list[PushingWorker] = []
        for at in range(setting.workers):
            self.workers.append(PushingWorker(self, f"w{at}", setting.pushes))
            self._watch(self.workers[-1])
        self._expire_regularly()
        self._keep_up()

    @property
    def layout(self) -> BucketLayout:
        """The newest layout of the coordinator."""
        return self.job.ps.layout if self.job is not None and self.job.ps is not None else empty_layout(0)

    def ended(self) -> bool:
        """Return whether every push is acknowledged and no bucket moves, or a check failed."""
        if self.checks.complaints:
            return True
        return all(worker.is_done for worker in self.workers) and self._is_at_rest()

    def _is_at_rest(self) -> bool:
        layout = self.layout
        running = [server for server in self.servers.values() if server.up]
        return (
            not layout.fillers()
            and not layout.leaving
            and {*layout.ids} == {server.id for server in running}
            and all(server.number == layout.number and server.is_connected for server in running)
        )

    def may_lose(self) -> bool:
        """Return whether a fault may take a server away: in some schedules only while all copies exist."""
        if not self.setting.single:
            return True
        impaired = any(server.paused for server in self.servers.values()) or bool(self.cut)
        return self._is_at_rest() and not impaired and NONE not in self.layout.backup

    # ---------------------------------------------------------------------------------------- the network

    def delay_s(self) -> float:
        delay = self.chance.uniform(0.001, 0.01) + self.network.delay_s
        return delay + (self.chance.uniform(0.0, self.network.jitter_s) if self.network.jitter_s else 0.0)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def send(self, source: str, target: str, act: Callable[..., None], *args: object) -> None:
        """Deliver a message, unless the network loses it; some are delivered twice."""
        network, chance = self.network, self.chance
        if self.is_cut(source, target) or (network.loss and chance.random() < network.loss):
            return
        self.after(self.delay_s(), act, *args)
        if network.duplicates and chance.random() < network.duplicates:
            self.after(self.delay_s() + chance.uniform(0.0, 3.0), act, *args)

    # ------------------------------------------------------------------------------------ the coordinator

    def decide(self, command: Command) -> Rejection | None:
        """Let the coordinator decide on a command, as its service does."""
        decision = decide(self.job, command, self.now)
        if isinstance(decision, Rejection):
            return decision
        before, job, events = self.job, self.job, decision
        for event in decision:
            job = evolve(job, event)
        if job is not None and events and changes_membership(events):
            job, more = settle_all(job, self.now)
            events += more
        for wrong in all_violations(before, events):
            self.checks.complain(f"invariant: {wrong}")
        job = before
        for event in events:
            job = self._take(job, event)
        return None

    def _take(self, before: Job | None, event: Event) -> Job | None:
        if self.story is not None:
            self.tell(f"  store: {narrate(event)}")
        self.job = after = evolve(before, event)
        old, new = (job.ps if job is not None else None for job in (before, after))
        if old is not None and new is not None and new.layout.number != old.layout.number:
            self.layouts += 1
            self.checks.layout_changed(old, new.layout)
            for process in (*self.servers.values(), *self.workers):
                self._send_layout(process)
        return after

    def command(self, process: SimulatedProcess, command: Command) -> None:
        """Send a command to the coordinator, which may not arrive, or arrive twice."""
        self.send(process.id, COORDINATOR, self._receive, process, command)

    def _receive(self, process: SimulatedProcess, command: Command) -> None:
        if isinstance(self.decide(command), Rejection):
            self.send(COORDINATOR, process.id, process.act, self._fence, process)

    def _send_layout(self, process: SimulatedProcess) -> None:
        if process.up:
            self.send(COORDINATOR, process.id, process.act, process.follow, self.layout)

    def _watch(self, process: SimulatedProcess) -> None:
        """Let a process renew its lease, and receive the newest layout in return."""
        if process.up:
            self.after(RENEW_S, self._watch, process)
            process.act(self.send, process.id, COORDINATOR, self._renew, process)

    def _renew(self, process: SimulatedProcess) -> None:
        assert self.job is not None
        if isinstance(process, SimulatedServer):
            if process.id in self.job.gone:
                self.send(COORDINATOR, process.id, process.act, self._fence, process)
                return
            if process.id not in self.job.members:
                self.decide(JoinServers(process.id, AGENT, f"{process.id}:1"))
            self._renewed_at[process.id] = self.now
            process.act(process.leave_if_empty)
        if self.layout.number:
            self._send_layout(process)

    def _expire_regularly(self) -> None:
        """Expire servers without a sign of life; an agent reports the end of most processes sooner."""
        self.after(RENEW_S, self._expire_regularly)
        assert self.job is not None
        for member in list(self.job.members):
            if self.now - self._renewed_at.get(member, self.now) > LEASE_TTL_S:
                self.decide(Expire(member))

    def _fence(self, process: SimulatedProcess) -> None:
        """End a server that the coordinator does not have any more."""
        assert self.job is not None
        if isinstance(process, SimulatedServer) and process.up and process.id in self.job.gone:
            self.end(process)

    # -------------------------------------------------------------------------------------- the processes

    def start_server(self) -> None:
        policy = BY_STEP if self.setting.by_step else PushPolicy()
        server = SimulatedServer(self, f"ps-{len(self.servers)}", self.table, policy)
        self.servers[server.id] = server
        self._watch(server)

    def end(self, server: SimulatedServer) -> None:
        """End a server's process. Connections to it are reset."""
        server.up = server.paused = False
        for other in self.servers.values():
            for route in list(other.routes.values()):
                if other.up and route.target is server:
                    self.after(self.chance.uniform(0.001, 0.3), route.break_now)

    def kill(self, server: SimulatedServer, reported: bool) -> None:
        """Kill a server; its agent reports that, or its lease has to run out."""
        self.tell(f"{server.id} is killed")
        self.end(server)
        if reported:
            self.after(self.chance.uniform(0.05, 2.0), self._exited, server.id)

    def _exited(self, server: MemberId) -> None:
        if self.job is not None and server in self.job.members:
            self.decide(Exited(server, -9))

    def reported(self, server: SimulatedServer, roles: BucketRoles) -> None:
        """Break a stream of a server that has just reported its copies as filled, if a fault asked for that."""
        if self.breaks_next:
            self.breaks_next = False
            server.routes[self.chance.choice(roles.receivers() or roles.backups())].break_now()

    def _keep_up(self) -> None:
        """Start servers until as many run as are wanted, as agents do."""
        self.after(self.chance.uniform(0.5, 4.0), self._keep_up)
        staying = [server for server in self.servers.values() if server.up and server.id not in self.layout.leaving]
        if len(staying) < self.wanted:
            self.start_server()

    def heal(self) -> None:
        """End all faults."""
        self.tell("the faults are over")
        self.network = NetworkConditions()
        self.cut.clear()
        for process in self.servers.values():
            if process.up and process.paused:
                process.resume()
