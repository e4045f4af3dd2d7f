"""One simulated job: time, network, coordinators and agents. Live and launched jobs add their workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pliant.coordinator.service.liveness import ISOLATION_FRACTION
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Command, Create, Event
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant_sim.checks import StoreChecks
from pliant_sim.client import Limits, SimulatedClient
from pliant_sim.describe import narrate
from pliant_sim.engine import Timeline
from pliant_sim.processes.agent import SimulatedAgent, WorkerProcess
from pliant_sim.processes.agent_events import Entries
from pliant_sim.processes.coordinator import (
    PUMP_EVERY_S,
    Ask,
    Back,
    Given,
    MemberWatch,
    SimulatedCoordinator,
)
from pliant_sim.requests import decode_event

USER = "user"
RESENT_S = 0.5  # an answer that the network lost, on a connection that is still open


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The machines and sizes that a schedule starts with."""

    seed: int = 0
    agents: int = 3
    capacity: int
    coordinators: int = 2
    size_min: int = 2
    size_max: int
    workers: int
    grace_s: float
    max_restarts: int = 1000


@dataclass(slots=True)
class NetworkConditions:
    """Loss, duplication and delay of messages at the moment."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


class Simulation(Timeline, ABC):
    """Base of both kinds of schedule. A run depends on the setting and the seed alone."""

    job = "sim"

    def __init__(self, setting: Setting, checks: StoreChecks, story: list[str] | None) -> None:
        super().__init__(setting.seed, story)
        self.sizes = setting
        self.store_checks = checks
        self.network = NetworkConditions()
        self.cut_machines: set[tuple[str, str]] = set()
        self.tick_rates: dict[str, float] = {}  # by machine
        self.lives = 0
        self.down_until: dict[str, float] = {}  # by machine; an agent that ends otherwise restarts soon
        self.last_contact: dict[
            str, float
        ] = {}  # by coordinator, when it last received anything from a worker or agent
        self.suspected: set[str] = set()  # members and agents whose connection closed once
        self.store = MemoryStore("simulated")
        self.agents: dict[str, SimulatedAgent] = {}  # by machine
        self._clients: dict[str, SimulatedClient] = {}
        self._unanswered: dict[int, Command] = {}
        self._asked = 0

    def _start(self) -> None:
        """Start the coordinators, create the job and start the agents. Called once the workers' side is ready."""
        self.coordinators = [SimulatedCoordinator(self, f"c{i}") for i in range(self.sizes.coordinators)]
        self._limits = Limits(self)
        self.user(self.creation())
        for index in range(self.sizes.agents):
            self.after(0.3 + self.chance.uniform(0.0, 2.0), self._keep_up, f"a{index}")

    @abstractmethod
    def creation(self) -> Create:
        """Return the command that creates the job."""

    @abstractmethod
    def ended(self) -> bool:
        """Return whether the job is over and its processes are gone, or a check failed."""

    @property
    @abstractmethod
    def script_joins(self) -> bool:
        """Return whether a worker of the job has called `pliant.join()`."""

    # -------------------------------------------------------------------------------- workers of an agent

    @abstractmethod
    def start_worker(self, agent: SimulatedAgent, member: MemberId) -> None:
        """Start a worker of a live job."""

    @abstractmethod
    def start_seat(self, agent: SimulatedAgent, launch: Launch, member: MemberId) -> None:
        """Start the worker of a launch's seat."""

    @abstractmethod
    def running_workers(self) -> Sequence[WorkerProcess]:
        """Return the workers whose processes run."""

    def expect_death(self, worker: WorkerProcess) -> None:
        """Note that a fault is about to end a worker, so its end is no failure of its own."""

    def heal_workers(self) -> None:
        """End the faults of workers."""

    # ---------------------------------------------------------------------------------------- the network

    def machine_of(self, name: str) -> str:
        """Return the machine of a process; agents, coordinators and the user are named like theirs."""
        return name

    def send(self, source: str, target: str, act: Callable[..., None], *args: object) -> None:
        """Deliver a message by calling `act`, unless the network loses it."""
        network, chance = self.network, self.chance
        if (self.cut_machines or network.loss) and self._loses(source, target):
            return
        delay = chance.uniform(0.001, 0.01) + network.delay_s
        if network.jitter_s:
            delay += chance.uniform(0.0, network.jitter_s)
        self.after(delay, act, *args)
        if network.duplicates and chance.random() < network.duplicates:
            self.after(delay + chance.uniform(0.0, 1.5), act, *args)

    def client_of(self, sender: str) -> SimulatedClient:
        """Return the client of a process; it is made with the first request."""
        if sender not in self._clients:
            self._clients[sender] = SimulatedClient(self, sender, self._limits)
        return self._clients[sender]

    def ask(self, given: Given, patience_s: float = 0.0) -> None:
        """Send a request to the coordinators, one after the other until one answers that leads."""
        self.client_of(given.sender).call(given, patience_s)

    def reply(self, coordinator: str, given: Given, answer: Back, revision: int) -> None:
        """Send an answer back on the connection of its request. A watch's is sent again until it arrives."""
        if isinstance(given, MemberWatch) and self._loses(coordinator, given.sender):
            self.after(RESENT_S, self.reply, coordinator, given, answer, revision)
            return
        self.send(coordinator, given.sender, self._answer_arrived, given, answer, revision)

    def _answer_arrived(self, given: Given, answer: Back, revision: int) -> None:
        if self.client_of(given.sender).arrived(given, answer):
            self.deliver(given, answer, revision)

    def deliver(self, given: Given, answer: Back, revision: int) -> None:  # noqa: ARG002
        """Give an answer to the agent or the user that asked."""
        if given.sender == USER:
            assert isinstance(given, Ask)
            self._user_answered(given, answer)
        elif given.sender in self.agents and not isinstance(given, MemberWatch):
            self.agents[given.sender].answered(given, answer)

    def call_failed(self, given: Given) -> None:
        """Tell an agent that no coordinator answered. A user asks again anyway."""
        if not isinstance(given, MemberWatch) and given.sender in self.agents:
            self.agents[given.sender].call_failed(given)

    def reset_connections(self, coordinator: str) -> None:
        """Let every process that can be reached see that a coordinator's process ended."""
        index = int(coordinator[1:])
        for sender, client in self._clients.items():
            if not self._loses(coordinator, sender):
                self.after(self.chance.uniform(0.001, 0.05), client.reset, index)

    def _loses(self, source: str, target: str) -> bool:
        """Return whether the network loses a message now."""
        if self.cut_machines and (self.machine_of(source), self.machine_of(target)) in self.cut_machines:
            return True
        return bool(self.network.loss) and self.chance.random() < self.network.loss

    def read_events(self, machine: str, after: int, reply: Callable[[Entries], None]) -> None:
        """Ask the first coordinator that can be reached for the events after a revision."""
        for each in self.coordinators:
            if each.up and not each.paused and (machine, each.name) not in self.cut_machines:
                self.send(machine, each.name, self._serve_events, machine, each.name, after, reply)
                return

    def _serve_events(self, machine: str, server: str, after: int, reply: Callable[[Entries], None]) -> None:
        stored = self.store.events(self.job, after, 1_000_000)
        self.send(server, machine, reply, tuple((each.revision, decode_event(each.data)) for each in stored))

    def close_connections(self, machine: str, agent: AgentId) -> None:
        """Close an agent's connections; every coordinator that it can reach sees that."""
        for coordinator in self.coordinators:
            if (machine, coordinator.name) not in self.cut_machines:
                self.after(self.chance.uniform(0.001, 0.05), coordinator.connection_closed, machine, agent)

    # ------------------------------------------------------------------------------------------- the user

    def user(self, command: Command) -> int:
        """Send a user's command every second until a coordinator answers. Return its number."""
        self._asked += 1
        self._unanswered[self._asked] = command
        self._ask_again(self._asked)
        return self._asked

    def is_answered(self, number: int) -> bool:
        """Return whether a coordinator has answered that command of the user."""
        return number not in self._unanswered

    def _ask_again(self, number: int) -> None:
        if number in self._unanswered:
            self.ask(Ask(USER, number, self._unanswered[number]))
            self.after(1.0, self._ask_again, number)

    def _user_answered(self, given: Ask, answer: Back) -> None:
        if self.store_checks.is_answer(answer):
            self._unanswered.pop(given.number, None)

    # --------------------------------------------------------------------------------------- the machines

    def start_agent(self, machine: str, name: str = "") -> None:
        """Start an agent on a machine, under the machine's name unless another one is given."""
        old = self.agents.get(machine)
        job = self.store_checks.job
        if (old is None or not old.up) and job is not None and not job.state.ended:
            install_id = f"home of {machine}"
            self.agents[machine] = SimulatedAgent(self, machine, AgentId(name or machine), install_id)

    def _keep_up(self, machine: str) -> None:
        self.after(self.chance.uniform(0.2, 3.0), self._keep_up, machine)
        if self.down_until.get(machine, 0.0) <= self.now:
            self.start_agent(machine)

    def tick_rate(self, machine: str) -> float:
        """Return how fast a machine's clock makes its timers run; 1.0 is right."""
        return self.tick_rates.get(machine, 1.0)

    def apply_later(self, writes: Sequence[Write]) -> None:
        """Apply a write whose coordinator already received a timeout."""
        self.after(self.chance.uniform(0.01, 1.0), self._apply, writes)

    def _apply(self, writes: Sequence[Write]) -> None:
        self.store_checks.writer = ""
        self.coordinators[0].store.apply(writes)

    def is_isolated(self, coordinator: str) -> bool:
        """Return whether a coordinator received nothing for so long that it must consider itself isolated."""
        return self.now - self.last_contact.get(coordinator, 0.0) > LEASE_TTL_S * ISOLATION_FRACTION + PUMP_EVERY_S

    # ------------------------------------------------------------------------------------------ the story

    def tell_event(self, event: Event) -> None:
        """Add an event of the store to the story."""
        if self.story is not None:
            self.tell(f"  store: {narrate(event)}")
