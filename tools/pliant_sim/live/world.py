"""The universe: one queue of events, one source of chance, a network that loses things, and everybody in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.liveness import ISOLATION_FRACTION
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import Lineage
from pliant.core.data.sample_order import Order
from pliant.core.leases import LEASE_TTL_S
from pliant.core.member.control_words import Words
from pliant.core.member.signals import Action, Durable, Signal
from pliant.core.messages import Create, Event
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.core.supervisor import OrdersReceived
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import EVENTS
from pliant_sim.collectives import Fabric
from pliant_sim.describe import narrate
from pliant_sim.engine import Timeline
from pliant_sim.live.checks import Checkers
from pliant_sim.live.toy_model import Content
from pliant_sim.processes.agent_events import Entries
from pliant_sim.processes.machines import PUMP_EVERY_S, AgentProcess, CoordinatorProcess
from pliant_sim.processes.worker import Worker
from pliant_sim.requests import Request
from pliant_sim.store import Directory


@dataclass(frozen=True, slots=True)
class Setting:
    """What a schedule starts with."""

    agents: int = 3
    members: int = 8
    capacity: int = 5
    coordinators: int = 2
    size_min: int = 2
    size_max: int = 9
    grid: Grid = field(default_factory=lambda: Grid(samples=101, batch=12, slots=12, epochs=2))
    seed: int = 0
    checkpoint_every: int = 4
    verify: int = 0
    full_disk: float = 0.0  # how often a part of a checkpoint cannot be written
    placeless: float = 0.0  # how many workers have no place to write one to
    bits: Fingerprint = ()


@dataclass(slots=True)
class Weather:
    """What the network does to messages right now."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


class Universe(Timeline):
    """Everything there is in one schedule. Nothing in here depends on anything but the setting and the seed."""

    job = "sim"

    def __init__(self, setting: Setting, story: list[str] | None = None, detail: bool = False) -> None:
        self.setting = setting
        super().__init__(setting.seed, story)
        self.detail = detail
        self.weather = Weather()
        self.cut_machines: set[tuple[str, str]] = set()
        self.cut_members: set[tuple[str, str]] = set()
        self.rates: dict[str, float] = {}
        self.raising: set[MemberId] = set()
        self.breaking: set[MemberId] = set()
        self._asks: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._unanswered: set[str] = set()
        self.heard: dict[tuple[str, str], float] = {}  # (coordinator, member) to the last accepted sign of life
        self.spoken: dict[str, float] = {}  # by coordinator, when it last heard anybody at all
        self.suspected: set[str] = set()
        self.terms = Terms(setting.grid, setting.seed, setting.checkpoint_every, verify=setting.verify)
        self.order = Order(setting.seed, setting.grid.samples)
        self.store = MemoryStore("simulated")
        self.directory = Directory()
        self.checkers = Checkers(self)
        self.fabric = Fabric(self)
        self.workers: dict[MemberId, Worker] = {}
        self.lives = 0
        self.coordinators = [CoordinatorProcess(self, f"c{i}") for i in range(setting.coordinators)]
        self.after(0.01, self.ask, "user", self._creation())
        self.agents: dict[AgentId, AgentProcess] = {}
        for index in range(setting.agents):
            self.after(0.05, self.start_agent, AgentId(f"a{index}"))

    def _creation(self) -> Create:
        s = self.setting
        return Create(self.job, JobSpec(s.size_min, s.size_max, Target(s.members)))

    def ended(self) -> bool:
        """The job is over and told to everybody who was still there, or something is wrong already."""
        job = self.checkers.job
        if self.checkers.complaints:
            return True
        return job is not None and job.state.ended and not any(worker.up for worker in self.workers.values())

    # ---------------------------------------------------------------------------------------- the network

    def _machine(self, name: str) -> str:
        worker = self.workers.get(MemberId(name))
        return worker.agent if worker is not None else name

    def _send(self, source: str, target: str, act: Callable[..., None], *args: object) -> None:
        if self.cut_machines and (self._machine(source), self._machine(target)) in self.cut_machines:
            return
        weather, chance = self.weather, self.chance
        if weather.loss and chance.random() < weather.loss:
            return
        delay = chance.uniform(0.001, 0.01) + weather.delay_s
        if weather.jitter_s:
            delay += chance.uniform(0.0, weather.jitter_s)
        self.after(delay, act, *args)
        if weather.duplicates and chance.random() < weather.duplicates:
            self.after(delay + chance.uniform(0.0, 1.5), act, *args)

    @property
    def any_cut(self) -> bool:
        return bool(self.cut_machines or self.cut_members)

    def is_cut(self, a: MemberId, b: MemberId) -> bool:
        if not self.cut_machines and not self.cut_members:
            return False
        return (a, b) in self.cut_members or (self._machine(a), self._machine(b)) in self.cut_machines

    def ask(self, sender: str, request: Request) -> None:
        """Send a request to a coordinator, to another one if the last had no answer."""
        turn = self._asks.get(sender, 0)
        if sender in self._unanswered and self._asked_at[sender] < self.now:  # what is said in one breath goes together
            turn += 1
            self._asks[sender] = turn
        self._unanswered.add(sender)
        self._asked_at[sender] = self.now
        coordinator = self.coordinators[turn % len(self.coordinators)]
        self._send(sender, coordinator.name, coordinator.receive, sender, request)
        if sender == "user":
            self.after(1.0, self._ask_again, sender, request)

    def _ask_again(self, sender: str, request: Request) -> None:
        if sender in self._unanswered:
            self.ask(sender, request)

    def answered(self, sender: str) -> None:
        self._unanswered.discard(sender)

    def to_worker(self, coordinator: str, member: MemberId, view: View) -> None:
        worker = self.workers.get(member)
        if worker is not None and worker.up:
            self._send(coordinator, member, worker.told, view)

    def to_worker_durable(self, coordinator: str, member: MemberId, revision: int, durable: Lineage) -> None:
        self._send(coordinator, member, self.feed, member, Durable(revision, durable))

    def refuse_worker(self, coordinator: str, member: MemberId, revision: int) -> None:
        worker = self.workers.get(member)
        if worker is not None and worker.up:
            self._send(coordinator, member, worker.refused, revision)

    def to_agent(self, coordinator: str, agent: AgentId, wanted: OrdersReceived) -> None:
        process = self.agents.get(agent)
        if process is not None and process.up:
            self._send(coordinator, agent, process.wanted, wanted)

    def read_events(self, machine: str, after: int, reply: Callable[[Entries], None]) -> None:
        """Ask the first coordinator that can be reached for the events after a revision."""
        for each in self.coordinators:
            if each.up and not each.paused and (machine, each.name) not in self.cut_machines:
                self._send(machine, each.name, self._serve_events, machine, each.name, after, reply)
                return

    def _serve_events(self, machine: str, server: str, after: int, reply: Callable[[Entries], None]) -> None:
        stored = self.store.events(self.job, after, 1_000_000)
        self._send(server, machine, reply, tuple((each.revision, EVENTS.decode(each.data)) for each in stored))

    def peer(self, source: MemberId, target: MemberId, signal: Signal) -> None:
        if not self.is_cut(source, target):
            self.after(self.chance.uniform(0.001, 0.02), self.feed, target, signal)

    # -------------------------------------------------------------------------------------- the processes

    def start_agent(self, name: AgentId) -> None:
        old = self.agents.get(name)
        if old is None or not old.up:
            self.lives += 1
            self.agents[name] = AgentProcess(self, name, self.lives, self.setting.capacity)

    def start_worker(self, member: MemberId, agent: AgentId) -> None:
        self.workers[member] = Worker(self, member, agent, self.terms)

    def process_ended(self, worker: Worker, code: int) -> None:
        self.tell(f"{worker.id} ended with {code}")
        agent = self.agents.get(worker.agent)
        if agent is not None and agent.up:
            self.after(self.chance.uniform(0.005, 0.05), agent.ended, worker.id, code)

    def exists(self, member: MemberId) -> bool:
        worker = self.workers.get(member)
        return worker is not None and worker.up

    def feed(self, member: MemberId, signal: Signal) -> None:
        worker = self.workers.get(member)
        if worker is not None:
            worker.feed(signal)

    def reduced(self, member: MemberId, words: Words, content: Content) -> None:
        worker = self.workers.get(member)
        if worker is not None:
            worker.reduction_returned(words, content)

    def rate_of(self, machine: str) -> float:
        return self.rates.get(machine, 1.0)

    def raises(self, worker: Worker) -> bool:
        if worker.id in self.raising:
            self.raising.discard(worker.id)
            return True
        return False

    def errs(self, member: MemberId) -> bool:
        worker = self.workers.get(member)
        return worker is not None and worker.errs

    def breaks_transfer(self, worker: Worker) -> bool:
        if worker.id in self.breaking:
            self.breaking.discard(worker.id)
            self.faults_fired(FaultKind.BREAK_TRANSFER)
            return True
        return False

    def apply_later(self, writes: Sequence[Write]) -> None:
        self.after(self.chance.uniform(0.01, 1.0), self._apply, writes)

    def _apply(self, writes: Sequence[Write]) -> None:
        self.checkers.writer = ""
        self.coordinators[0].store.apply(writes)

    def samples(self, step: int, slot: int) -> tuple[int, ...]:
        grid = self.terms.grid
        return self.order.take(grid.cursor(step).epoch, grid.slot(step, slot))

    # ------------------------------------------------------------------------------------- for the checkers

    def may_expire(self, coordinator: str, member: MemberId) -> bool:
        """Whether that coordinator has not heard of the member for the whole of a lease."""
        last = self.heard.get((coordinator, member))
        return last is None or self.now - last >= LEASE_TTL_S - 0.01

    def hears_nobody(self, coordinator: str) -> bool:
        """Whether that coordinator has heard nobody at all for so long that it must take itself for cut off."""
        return self.now - self.spoken.get(coordinator, 0.0) > LEASE_TTL_S * ISOLATION_FRACTION + PUMP_EVERY_S

    # ------------------------------------------------------------------------------------------- the story

    def tell_event(self, event: Event) -> None:
        if self.story is not None:
            self.tell(f"  store: {narrate(event)}")

    def note(self, worker: Worker, signal: Signal, actions: tuple[Action, ...]) -> None:
        if self.story is not None and self.detail:
            said = "; ".join(filter(None, map(narrate, actions)))
            if said:
                self.tell(f"    {worker.id} ({worker.machine.phase.value}): {narrate(signal)} -> {said}")
