"""A universe of launches: agents, their workers that know nothing of Pliant, and the real code that decides on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pliant.core.data.grid import Grid
from pliant.core.job.launches import REFILLED
from pliant.core.messages import Cancel, Command, Create, Event
from pliant.core.model.job import JobSpec, Mode, Target, Terms
from pliant.core.model.names import AgentId
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import EVENTS
from pliant_sim.describe import narrate
from pliant_sim.engine import Timeline
from pliant_sim.launch.checks import Checks
from pliant_sim.launch.toy_model import Trainer
from pliant_sim.live.world import Weather
from pliant_sim.processes.agent_events import Entries
from pliant_sim.processes.desk import Ask, Back, Desk, Poll
from pliant_sim.processes.hosts import WORKERS, Host, Toy

ROLES = (("chief", 1), ("ps", 1))
USER = "user"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a schedule starts with."""

    seed: int = 0
    agents: int = 3
    capacity: int = 3
    coordinators: int = 2
    size_min: int = 2
    size_max: int = 7
    workers: int = 5
    steps: int = 40
    mode: Mode = Mode.RELAUNCH
    roles: tuple[tuple[str, int], ...] = ()
    max_restarts: int = 1000


def setting_for(seed: int) -> Setting:
    """One coordinator in a third of the schedules; in some workers join, or have roles, or may fail only twice."""
    return Setting(
        seed=seed,
        coordinators=1 if seed % 3 == 0 else 2,
        size_min=3 if seed % 4 == 3 else 2,
        mode=Mode.AUTO if seed % 5 == 4 else Mode.RELAUNCH,
        roles=ROLES if seed % 4 == 3 and seed % 5 != 4 else (),
        max_restarts=2 if seed % 7 == 6 else 1000,
    )


class Launches(Timeline):
    """Everything there is in one schedule."""

    job = "sim"

    def __init__(self, setting: Setting, story: list[str] | None = None) -> None:
        super().__init__(setting.seed, story)
        self.setting = setting
        self.weather = Weather()
        self.cut: set[tuple[str, str]] = set()
        self.lives = 0
        self.joining = False
        self.down_until: dict[str, float] = {}  # by machine; agents that end otherwise are started again soon
        self.cancelled = False
        self.spoken: dict[str, float] = {}  # by coordinator, when it last heard anybody at all
        self.suspected: set[str] = set()  # agents that hung up once
        self.attempt_due = False  # somebody is about to ask for the job again
        self.terms = Terms(Grid(samples=40, batch=8, slots=8, epochs=1), setting.seed)
        self.store = MemoryStore("simulated")
        self.checks = Checks(self)
        self.trainer = Trainer(self, setting.steps)
        self.desks = [Desk(self, f"c{i}") for i in range(setting.coordinators)]
        self._unanswered: dict[int, Command] = {}
        self._asked = 0
        self._turns: dict[str, int] = {}
        self.hosts: dict[str, Host] = {}
        self.user(self.creation())
        for index in range(setting.agents):
            self.after(0.3 + self.chance.uniform(0.0, 2.0), self._keep_up, f"a{index}")

    def creation(self, *, fresh: bool = False) -> Create:
        s = self.setting
        target = Target(s.workers)
        return Create(
            self.job,
            JobSpec(s.size_min, s.size_max, target, max_restarts=s.max_restarts, mode=s.mode, roles=s.roles),
            fresh=fresh,
        )

    def refills(self, toy: Toy) -> bool:
        """Whether the others go on when that one ends: mere workers, beside parameter servers."""
        ranks = sum(count for _, count in self.setting.roles)
        return bool(self.setting.roles) and toy.rank >= ranks and "worker" in REFILLED

    # ------------------------------------------------------------------------------------------ the network

    def ask(self, given: Ask | Poll) -> None:
        """To a coordinator; the next time to another one, since this one may not answer."""
        turn = self._turns.get(given.machine, 0)
        desk = self.desks[turn % len(self.desks)]
        if not desk.up or not desk.service.leads:
            self._turns[given.machine] = turn + 1
        self._send(given.machine, desk.name, desk.receive, given)

    def back(self, desk: str, given: Ask | Poll, answer: Back) -> None:
        if given.machine == USER:
            assert isinstance(given, Ask)
            self._send(desk, USER, self._heard, given, answer)
            return
        host = self.hosts.get(given.machine)
        if host is None:
            return
        if isinstance(given, Ask) and given.number == WORKERS:
            self._send(desk, given.machine, host.answered_worker, given.request, answer)
        elif isinstance(given, Poll) or given.number >= 0:
            self._send(desk, given.machine, host.heard, given, answer)

    def _send(self, source: str, target: str, act: object, *args: object) -> None:
        assert callable(act)
        if (source, target) in self.cut:
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

    def read_events(self, machine: str, after: int, reply: Callable[[Entries], None]) -> None:
        """Ask the first coordinator that can be reached for the events after a revision."""
        for each in self.desks:
            if each.up and not each.paused and (machine, each.name) not in self.cut:
                self._send(machine, each.name, self._serve_events, machine, each.name, after, reply)
                return

    def _serve_events(self, machine: str, server: str, after: int, reply: Callable[[Entries], None]) -> None:
        stored = self.store.events(self.job, after, 1_000_000)
        self._send(server, machine, reply, tuple((each.revision, EVENTS.decode(each.data)) for each in stored))

    # ------------------------------------------------------------------------------------------- the person

    def user(self, command: Command) -> None:
        """Somebody asks for something, until there is an answer."""
        self._asked += 1
        self._unanswered[self._asked] = command
        self._ask_again(self._asked)

    def _ask_again(self, number: int) -> None:
        if number in self._unanswered:
            self.ask(Ask(USER, number, self._unanswered[number]))
            self.after(1.0, self._ask_again, number)

    def _heard(self, given: Ask, answer: Back) -> None:
        if self.checks.is_answer(answer):
            self._unanswered.pop(given.number, None)

    def hang_up(self, machine: str, agent: AgentId) -> None:
        """A machine's connections are closed, by itself or on the way; who can be reached sees it."""
        for desk in self.desks:
            if (machine, desk.name) not in self.cut:
                self.after(self.chance.uniform(0.001, 0.05), desk.hung_up, machine, agent)

    # -------------------------------------------------------------------------------------------- machines

    def start_host(self, machine: str, agent: str = "") -> None:
        """Start an agent there, under the machine's name unless another one is given."""
        old = self.hosts.get(machine)
        job = self.checks.job
        if (old is None or not old.up) and job is not None and not job.state.ended:
            home = f"home of {machine}"
            self.hosts[machine] = Host(self, machine, AgentId(agent or machine), home, self.setting.capacity)

    def _keep_up(self, machine: str) -> None:
        self.after(self.chance.uniform(0.2, 3.0), self._keep_up, machine)
        if self.down_until.get(machine, 0.0) <= self.now:
            self.start_host(machine)

    def apply_later(self, writes: Sequence[Write]) -> None:
        self.after(self.chance.uniform(0.01, 1.0), self._apply, writes)

    def _apply(self, writes: Sequence[Write]) -> None:
        self.checks.writer = ""
        self.desks[0].store.apply(writes)

    def toys(self) -> list[Toy]:
        """The workers that run."""
        return [toy for host in self.hosts.values() for toy in host.toys.values() if toy.up]

    def went_live(self) -> None:
        """A worker has joined: the script is one for live training, so all others do as well."""
        if not self.joining:
            self.joining = True
            for toy in self.toys():
                if toy.running:
                    toy.host.join(toy)

    def cancel(self) -> None:
        self.cancelled = True
        self.user(Cancel("enough"))

    def wrong(self) -> bool:
        return bool(self.checks.complaints)

    def ended(self) -> bool:
        """The job is over and nobody runs any more, or something is wrong already."""
        job = self.checks.job
        if self.checks.complaints:
            return True
        return (
            job is not None
            and job.state.ended
            and not self.attempt_due
            and not any(host.up for host in self.hosts.values())
        )

    def tell_event(self, event: Event) -> None:
        if self.story is not None:
            self.tell(f"  store: {narrate(event)}")
