"""Faults: what may go wrong, drawn from the seed, and how each is done to a universe.

A fault counts as fired only if it found something to strike. All of them end by themselves, or are ended when the
faults stop: liveness is promised after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.inbox import Sender
from pliant.core.member.signals import DrainNotice
from pliant.core.messages import Join, Resize
from pliant.core.model.job import Target
from pliant.core.model.names import AgentId, MemberId
from pliant_sim.fault_kinds import AnyFaultKind, SimulatedFaultKind
from pliant_sim.live.disk_faults import ask, damage, store
from pliant_sim.live.world import Universe, Weather
from pliant_sim.processes.worker import Worker

STRANGERS_MAX = 3
CORRUPTED_MAX = 2  # of one schedule: a third at one place would rightly be taken for what user code does


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one moment. `draw` makes its choices; a shrunk schedule keeps the rest as they were."""

    at_s: float
    kind: AnyFaultKind
    draw: int


def schedule(seed: int, until_s: float = 60.0) -> tuple[Fault, ...]:
    """About one fault a second, each kind by its weight."""
    chance = Random(f"faults {seed}")
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    faults = []
    now = 2.0
    while now < until_s:
        faults.append(Fault(now, chance.choices(names, weights)[0], chance.getrandbits(32)))
        now += chance.expovariate(1.0)
    if verify_for(seed):
        chance = Random(f"corruption {seed}")  # of its own, so that the others are what they were without it
        faults += [
            Fault(chance.uniform(4.0, 40.0), SimulatedFaultKind.CORRUPT_STATE, chance.getrandbits(32))
            for _ in range(CORRUPTED_MAX)
        ]
        # One of the two: whoever is in the disputes of two machines that err is rightly not believed.
        kind = chance.choice([SimulatedFaultKind.WRONG_GRADIENT, SimulatedFaultKind.WRONG_GRADIENTS])
        faults.append(Fault(chance.uniform(4.0, 40.0), kind, chance.getrandbits(32)))
        faults += [
            Fault(chance.uniform(0.1, 40.0), SimulatedFaultKind.FOREIGN_JOIN, chance.getrandbits(32))
            for _ in range(STRANGERS_MAX)
        ]
    if seed % 3 == 1:
        chance = Random(f"cut off {seed}")  # of its own, too
        faults.append(Fault(chance.uniform(3.0, 30.0), FaultKind.PARTITION_COORDINATORS, chance.getrandbits(32)))
    if seed % 4 in (1, 2):
        chance = Random(f"checkpoints {seed}")
        faults += [
            Fault(chance.uniform(2.0, 40.0), FaultKind.REQUEST_CHECKPOINT, chance.getrandbits(32)) for _ in range(3)
        ]
        faults.append(Fault(chance.uniform(5.0, 40.0), FaultKind.DAMAGE_CHECKPOINT, chance.getrandbits(32)))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def verify_for(seed: int) -> int:
    """Every how many steps the members of that schedule compare whole states; 0: never, and none is corrupted."""
    return 1 + seed // 5 % 2 if seed % 5 == 4 else 0


def strike(universe: Universe, fault: Fault) -> None:
    """Do it."""
    act = KINDS[fault.kind][1]
    if act(universe, Random(fault.draw)):
        universe.faults_fired(fault.kind)


def heal(universe: Universe) -> None:
    """Everything is well again, from now on."""
    universe.weather = Weather()
    universe.cut_machines.clear()
    universe.cut_members.clear()
    universe.rates.clear()
    universe.raising.clear()
    universe.breaking.clear()
    universe.fabric.healed()
    for worker in list(universe.workers.values()):
        worker.errs = worker.errs_once = False
        if worker.paused:
            worker.resume()
    for coordinator in universe.coordinators:
        coordinator.paused = False
        coordinator.ahead_s = 0.0
        coordinator.store.armed.clear()
        coordinator.start()
    for name in list(universe.agents):
        universe.start_agent(name)
    universe.tell("the faults are over")


# ---------------------------------------------------------------------------------------- who can be struck


def _workers(universe: Universe) -> list[Worker]:
    return [worker for worker in universe.workers.values() if worker.up]


def _agents(universe: Universe) -> list[AgentId]:
    return [name for name, agent in universe.agents.items() if agent.up]


# ------------------------------------------------------------------------------------------------ processes


def _kill_worker(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    if not workers:
        return False
    draw.choice(workers).kill(-9)
    return True


def _kill_agent(universe: Universe, draw: Random) -> bool:
    agents = _agents(universe)
    if not agents:
        return False
    name = draw.choice(agents)
    universe.agents[name].kill()
    universe.after(draw.uniform(1.0, 8.0), universe.start_agent, name)
    return True


def _kill_everybody(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    for worker in workers:
        worker.kill(-9)
    return bool(workers)


def _kill_coordinator(universe: Universe, draw: Random) -> bool:
    running = [c for c in universe.coordinators if c.up]
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.crash()
    universe.after(draw.uniform(0.5, 12.0), coordinator.start)
    return True


def _pause_worker(universe: Universe, draw: Random) -> bool:
    workers = [worker for worker in _workers(universe) if not worker.paused]
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.pause()
    universe.after(draw.choice([0.5, 3.0, 15.0]), worker.resume)
    return True


def _pause_coordinator(universe: Universe, draw: Random) -> bool:
    running = [c for c in universe.coordinators if c.up and not c.paused]
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.paused = True
    universe.after(draw.choice([1.0, 5.0, 20.0]), coordinator.unpause)
    return True


def _raise(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    if not workers or universe.fired[FaultKind.USER_ERROR]:
        return False  # a second one may strike the same slot on another member, which rightly fails the job
    universe.raising.add(draw.choice(workers).id)
    return True


def _corrupt(universe: Universe, draw: Random) -> bool:
    """A bit flips in a state that is in use, and will be compared at least once more."""
    last = universe.setting.grid.total_steps
    workers = [
        worker for worker in _workers(universe) if worker.machine.holds_state and worker.model.lineage.step < last
    ]
    if not workers or not universe.setting.verify:
        return False
    draw.choice(workers).corrupt(draw.randrange(62))
    return True


def _stranger(universe: Universe, draw: Random) -> bool:
    """Somebody joins who computes other bits. Nobody is behind it: a world that counted on it would wait for ever."""
    name = MemberId(f"stranger-{draw.getrandbits(32)}")
    universe.ask(name, Join(name, AgentId("elsewhere"), universe.terms, fingerprint=(("torch", "2.12.1"),)))
    return True


def _err(once: bool) -> Callable[[Universe, Random], bool]:
    def act(universe: Universe, draw: Random) -> bool:
        workers = _workers(universe)
        if not workers or not universe.setting.verify:
            return False
        worker = draw.choice(workers)
        universe.checkers.erring.add(worker.id)
        if once:
            worker.errs_once = True
        else:
            worker.errs = True
        return True

    return act


# -------------------------------------------------------------------------------------------------- planned


def _drain(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    if not workers:
        return False
    draw.choice(workers).feed(DrainNotice(draw.choice([3.0, 10.0, 30.0]), "asked to go"))
    return True


def _storm(universe: Universe, draw: Random) -> bool:
    """Several machines get a spot notice at once."""
    agents = _agents(universe)
    if len(agents) < 2:
        return False
    for name in draw.sample(agents, draw.randint(1, len(agents) - 1)):
        grace_s = draw.choice([2.0, 8.0, 20.0])
        universe.agents[name].going(grace_s)
        universe.after(grace_s + draw.uniform(2.0, 6.0), universe.start_agent, name)
    return True


def _replace_everybody(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    for worker in workers:
        worker.feed(DrainNotice(25.0, "everybody is replaced"))
    return bool(workers)


def _resize(universe: Universe, draw: Random) -> bool:
    setting = universe.setting
    size = draw.randint(setting.size_min, setting.size_max)
    placement: tuple[tuple[AgentId, int], ...] = ()
    if draw.random() < 0.3:
        counts = [0] * setting.agents
        for _ in range(size):
            counts[draw.randrange(setting.agents)] += 1
        placement = tuple((AgentId(f"a{i}"), min(count, setting.capacity)) for i, count in enumerate(counts))
        size = max(sum(count for _, count in placement), 0)
    if not setting.size_min <= size <= setting.size_max:
        return False
    universe.ask("user", Resize(Target(size, placement)))
    return True


# -------------------------------------------------------------------------------------------------- network


def _weather(**change: float) -> Callable[[Universe, Random], bool]:
    def act(universe: Universe, draw: Random) -> bool:
        universe.weather = Weather(**change)
        universe.after(draw.uniform(1.0, 5.0), _clear_up, universe)
        return True

    return act


def _clear_up(universe: Universe) -> None:
    universe.weather = Weather()


def _cut(universe: Universe, draw: Random, *pairs: tuple[str, str]) -> bool:
    universe.cut_machines.update(pairs)
    universe.after(draw.choice([1.0, 4.0, 14.0]), _mend, universe, pairs)
    return True


def _mend(universe: Universe, pairs: tuple[tuple[str, str], ...]) -> None:
    universe.cut_machines.difference_update(pairs)
    universe.cut_members.difference_update(pairs)
    universe.fabric.healed()


def _cut_both_ways(universe: Universe, draw: Random) -> bool:
    agent = f"a{draw.randrange(universe.setting.agents)}"
    names = [c.name for c in universe.coordinators]
    return _cut(universe, draw, *[(agent, name) for name in names], *[(name, agent) for name in names])


def _cut_off(universe: Universe, draw: Random) -> bool:
    """The coordinators from everybody, for longer than a lease; among themselves the members go on."""
    names = [c.name for c in universe.coordinators]
    others = ["user", *(f"a{i}" for i in range(universe.setting.agents))]
    pairs = tuple(pair for name in names for other in others for pair in ((name, other), (other, name)))
    universe.cut_machines.update(pairs)
    universe.after(draw.choice([12.0, 20.0, 35.0]), _mend, universe, pairs)
    return True


def _cut_one_way(universe: Universe, draw: Random) -> bool:
    agent = f"a{draw.randrange(universe.setting.agents)}"
    name = draw.choice(universe.coordinators).name
    return _cut(universe, draw, (agent, name) if draw.random() < 0.5 else (name, agent))


def _cut_members(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    if len(workers) < 2:
        return False
    a, b = draw.sample(workers, 2)
    pairs = ((a.id, b.id), (b.id, a.id)) if draw.random() < 0.5 else ((a.id, b.id),)
    universe.cut_members.update(pairs)
    universe.after(draw.choice([1.0, 4.0, 20.0]), _mend, universe, pairs)
    return True


def _close_watch(universe: Universe, draw: Random) -> bool:
    workers = _workers(universe)
    if not workers:
        return False
    worker = draw.choice(workers)
    universe.suspected.add(worker.id)
    for coordinator in universe.coordinators:
        coordinator.suspect(Sender("member", worker.id))
    return True


def _break_transfer(universe: Universe, draw: Random) -> bool:
    """Strikes whoever receives a state next; counted when it does."""
    receiving = [worker for worker in _workers(universe) if not worker.machine.holds_state]
    universe.breaking.update(worker.id for worker in receiving)
    return False


# ------------------------------------------------------------------------------------------------------- time


def _jump(universe: Universe, draw: Random) -> bool:
    draw.choice(universe.coordinators).wall_ahead_s = draw.uniform(-7200.0, 7200.0)
    return True


def _skew(universe: Universe, draw: Random) -> bool:
    universe.rates[f"a{draw.randrange(universe.setting.agents)}"] = draw.choice([0.7, 1.3, 2.2])
    return True


def _two_leaders(universe: Universe, draw: Random) -> bool:
    """One coordinator's clock runs ahead, so it takes the hold for expired while the other believes in it."""
    if len(universe.coordinators) < 2:
        return False
    coordinator = draw.choice(universe.coordinators)
    coordinator.ahead_s += 4.0
    return True


KINDS: dict[AnyFaultKind, tuple[float, Callable[[Universe, Random], bool]]] = {
    FaultKind.KILL: (6.0, _kill_worker),
    FaultKind.KILL_AGENT: (1.5, _kill_agent),
    FaultKind.KILL_ALL: (0.35, _kill_everybody),
    FaultKind.KILL_COORDINATOR: (3.0, _kill_coordinator),
    FaultKind.STOP: (3.0, _pause_worker),
    FaultKind.STOP_COORDINATOR: (2.0, _pause_coordinator),
    FaultKind.USER_ERROR: (1.0, _raise),
    FaultKind.DRAIN: (4.0, _drain),
    FaultKind.SPOT_NOTICE: (1.5, _storm),
    SimulatedFaultKind.REPLACE_ALL: (0.8, _replace_everybody),
    FaultKind.RESIZE: (4.0, _resize),
    FaultKind.LOSE_MESSAGES: (2.0, _weather(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, _weather(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (2.0, _weather(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (2.0, _weather(jitter_s=2.0)),
    FaultKind.PARTITION: (2.0, _cut_both_ways),
    FaultKind.PARTITION_ONE_WAY: (2.0, _cut_one_way),
    FaultKind.PARTITION_MEMBERS: (3.0, _cut_members),
    FaultKind.CLOSE_WATCH: (2.0, _close_watch),
    FaultKind.BREAK_TRANSFER: (3.0, _break_transfer),
    FaultKind.CRASH_BEFORE_WRITE: (1.5, store(FaultKind.CRASH_BEFORE_WRITE)),
    FaultKind.CRASH_AFTER_WRITE: (1.5, store(FaultKind.CRASH_AFTER_WRITE)),
    FaultKind.STORE_ERROR: (1.5, store(FaultKind.STORE_ERROR)),
    FaultKind.STORE_TIMEOUT_APPLIED: (1.5, store(FaultKind.STORE_TIMEOUT_APPLIED)),
    FaultKind.STORE_TIMEOUT_LOST: (1.5, store(FaultKind.STORE_TIMEOUT_LOST)),
    FaultKind.STORE_TIMEOUT_LATE: (1.5, store(FaultKind.STORE_TIMEOUT_LATE)),
    FaultKind.CLOCK_JUMP: (1.5, _jump),
    SimulatedFaultKind.CLOCK_SKEW: (1.5, _skew),
    FaultKind.TWO_LEADERS: (1.5, _two_leaders),
    SimulatedFaultKind.CORRUPT_STATE: (0.0, _corrupt),  # this and those that follow are drawn apart: see `schedule`
    SimulatedFaultKind.FOREIGN_JOIN: (0.0, _stranger),
    SimulatedFaultKind.WRONG_GRADIENT: (0.0, _err(once=True)),
    SimulatedFaultKind.WRONG_GRADIENTS: (0.0, _err(once=False)),
    FaultKind.PARTITION_COORDINATORS: (0.0, _cut_off),
    FaultKind.REQUEST_CHECKPOINT: (0.0, ask),
    FaultKind.DAMAGE_CHECKPOINT: (0.0, damage),
}
