"""Faults of a universe of launches, drawn from the seed, and how each is done."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Cancel, DrainAgent, Resize
from pliant.core.model.job import JobState, Mode, Target
from pliant.core.model.names import AgentId
from pliant_sim.fault_kinds import AnyFaultKind, SimulatedFaultKind
from pliant_sim.launch.world import Launches, setting_for
from pliant_sim.live.faults import Fault
from pliant_sim.live.world import Weather
from pliant_sim.processes.hosts import Host, Toy

Act = Callable[[Launches, Random], bool]


def schedule(seed: int, until_s: float) -> tuple[Fault, ...]:
    """A fault every two seconds, each kind by its weight; where workers may join, one does, most often."""
    chance = Random(f"launch faults {seed}")
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    faults = []
    now = 1.0
    while now < until_s:
        faults.append(Fault(now, chance.choices(names, weights)[0], chance.getrandbits(32)))
        now += chance.expovariate(0.5)
    if setting_for(seed).mode is Mode.AUTO and chance.random() < 0.8:
        faults.append(Fault(chance.uniform(3.0, until_s), SimulatedFaultKind.GO_LIVE, chance.getrandbits(32)))
    if seed % 3 == 1:
        chance = Random(f"cut off {seed}")  # of its own, so that the others are what they were without it
        faults.append(Fault(chance.uniform(4.0, 30.0), FaultKind.PARTITION_COORDINATORS, chance.getrandbits(32)))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def strike(universe: Launches, fault: Fault) -> None:
    if KINDS[fault.kind][1](universe, Random(fault.draw)):
        universe.faults_fired(fault.kind)


def heal(universe: Launches) -> None:
    """Everything is well again, from now on; strangers are gone."""
    universe.weather = Weather()
    universe.cut.clear()
    universe.down_until.clear()
    for machine, host in universe.hosts.items():
        host.unpause()
        if machine.startswith("b"):
            host.kill()
    for desk in universe.desks:
        desk.paused = False
        desk.ahead_s = 0.0
        desk.store.armed.clear()
        desk.start()
    universe.tell("the faults are over")


def _hosts(universe: Launches) -> list[Host]:
    return [host for host in universe.hosts.values() if host.up]


def _toys(universe: Launches) -> list[Toy]:
    return universe.toys()


# ------------------------------------------------------------------------------------------------ processes


def _kill_worker(universe: Launches, draw: Random) -> bool:
    toys = _toys(universe)
    if not toys:
        return False
    toy = draw.choice(toys)
    universe.checks.killed(toy)
    toy.host.end(toy, -9)
    return True


def _fail_worker(universe: Launches, draw: Random) -> bool:
    """User code raises, here or on several at once."""
    toys = [toy for toy in _toys(universe) if toy.running and not toy.joined]
    if not toys:
        return False
    for toy in draw.sample(toys, min(len(toys), draw.choice([1, 1, 3]))):
        toy.host.end(toy, draw.choice([1, 1, -11]))
    return True


def _kill(universe: Launches, host: Host) -> None:
    for toy in host.toys.values():
        universe.checks.killed(toy)
    host.kill()


def _kill_agent(universe: Launches, draw: Random) -> bool:
    """It is back within its lease, or after it."""
    hosts = _hosts(universe)
    if not hosts:
        return False
    host = draw.choice(hosts)
    universe.down_until[host.machine] = universe.now + draw.choice([0.3, 2.0, 6.0, 15.0])
    _kill(universe, host)
    return True


def _kill_everybody(universe: Launches, draw: Random) -> bool:
    hosts = _hosts(universe)
    for host in hosts:
        universe.down_until[host.machine] = universe.now + draw.uniform(0.2, 3.0)
        _kill(universe, host)
    return bool(hosts)


def _pause_agent(universe: Launches, draw: Random) -> bool:
    hosts = [host for host in _hosts(universe) if not host.paused]
    if not hosts:
        return False
    host = draw.choice(hosts)
    host.paused = True
    universe.after(draw.choice([1.0, 5.0, 14.0]), host.unpause)
    return True


def _close_watch(universe: Launches, draw: Random) -> bool:
    """An agent looks gone to the coordinator and is not."""
    hosts = [host for host in _hosts(universe) if host.known]
    if not hosts:
        return False
    draw.choice(hosts).lose_connection()
    return True


def _kill_coordinator(universe: Launches, draw: Random) -> bool:
    desks = [desk for desk in universe.desks if desk.up]
    if not desks:
        return False
    desk = draw.choice(desks)
    desk.crash()
    universe.after(draw.uniform(0.5, 9.0), desk.start)
    return True


def _pause_coordinator(universe: Launches, draw: Random) -> bool:
    desks = [desk for desk in universe.desks if desk.up and not desk.paused]
    if not desks:
        return False
    desk = draw.choice(desks)
    desk.paused = True
    universe.after(draw.choice([1.0, 5.0, 16.0]), desk.unpause)
    return True


# -------------------------------------------------------------------------------------------------- planned


def _spot(universe: Launches, draw: Random) -> bool:
    hosts = [host for host in _hosts(universe) if host.known]
    if not hosts:
        return False
    host = draw.choice(hosts)
    for toy in host.toys.values():
        universe.checks.killed(toy)
    grace_s = draw.choice([2.0, 6.0])
    universe.down_until[host.machine] = universe.now + grace_s + draw.uniform(0.0, 8.0)
    host.going(grace_s)
    return True


def _drain(universe: Launches, draw: Random) -> bool:
    hosts = _hosts(universe)
    if not hosts:
        return False
    host = draw.choice(hosts)
    universe.down_until[host.machine] = universe.now + draw.uniform(0.5, 8.0)
    universe.user(DrainAgent(host.state.id, 5.0, "maintenance"))
    return True


def _resize(universe: Launches, draw: Random) -> bool:
    s = universe.setting
    size = draw.randint(s.size_min, s.size_max)
    placement: tuple[tuple[AgentId, int], ...] = ()
    if draw.random() < 0.4:
        counts = [0] * s.agents
        for _ in range(size):
            counts[draw.randrange(s.agents)] += 1
        placement = tuple((AgentId(f"a{i}"), min(count, s.capacity)) for i, count in enumerate(counts))
        size = sum(count for _, count in placement)
    if not s.size_min <= size <= s.size_max:
        return False
    universe.user(Resize(Target(size, placement)))
    return True


def _join(universe: Launches, draw: Random) -> bool:
    """A worker calls `pliant.join()`."""
    toys = [toy for toy in _toys(universe) if toy.running and not toy.joined]
    if not toys or universe.setting.mode is not Mode.AUTO:
        return False
    toy = draw.choice(toys)
    toy.host.join(toy)
    return True


def _attempt(universe: Launches, draw: Random) -> bool:
    """It is cancelled, and asked for again."""
    job = universe.checks.job
    if job is None or job.state.ended or job.is_live or universe.attempt_due:
        return False
    universe.attempt_due = True
    universe.user(Cancel(SimulatedFaultKind.NEXT_ATTEMPT))
    universe.after(draw.uniform(0.1, 9.0), _again, universe, draw.random() < 0.5)
    return True


def _again(universe: Launches, fresh: bool) -> None:
    job = universe.checks.job
    if job is None or not job.state.ended:
        universe.after(1.0, _again, universe, fresh)
        return
    if job.state is JobState.CANCELLED:
        universe.user(universe.creation(fresh=fresh))
    else:
        universe.attempt_due = False


def _name_taken(universe: Launches, draw: Random) -> bool:
    """Another machine's agent has the name of one that is away for longer than a lease, or just for a while."""
    index = draw.randrange(universe.setting.agents)
    host = universe.hosts.get(f"a{index}")
    if host is None or not host.up:
        return False
    _cut(universe, f"a{index}", draw.choice([3.0, 17.0]), draw)
    universe.after(8.0, universe.start_host, f"b{index}", f"a{index}")
    universe.after(draw.uniform(20.0, 40.0), _leave, universe, f"b{index}")
    return True


def _leave(universe: Launches, machine: str) -> None:
    host = universe.hosts.get(machine)
    if host is not None and host.up:
        _kill(universe, host)


# -------------------------------------------------------------------------------------------------- network


def _weather(**change: float) -> Act:
    def act(universe: Launches, draw: Random) -> bool:
        universe.weather = Weather(**change)
        universe.after(draw.uniform(1.0, 6.0), _clear_up, universe)
        return True

    return act


def _clear_up(universe: Launches) -> None:
    universe.weather = Weather()


def _cut(universe: Launches, machine: str, for_s: float, draw: Random, *, one_way: bool = False) -> None:
    names = [desk.name for desk in universe.desks]
    pairs = [(machine, name) for name in names] + [(name, machine) for name in names]
    if one_way:
        pairs = pairs[: len(names)] if draw.random() < 0.5 else pairs[len(names) :]
    universe.cut.update(pairs)
    universe.after(for_s, universe.cut.difference_update, pairs)


def _cut_agent(*, one_way: bool) -> Act:
    def act(universe: Launches, draw: Random) -> bool:
        machine = f"a{draw.randrange(universe.setting.agents)}"
        _cut(universe, machine, draw.choice([1.0, 5.0, 16.0]), draw, one_way=one_way)
        return True

    return act


def _cut_off(universe: Launches, draw: Random) -> bool:
    """The coordinators from everybody, for longer than a lease."""
    for_s = draw.choice([12.0, 20.0, 28.0])
    for machine in ("user", *(f"a{i}" for i in range(universe.setting.agents))):
        _cut(universe, machine, for_s, draw)
    return True


# ---------------------------------------------------------------------------------------------- disk and time


def _store(kind: FaultKind) -> Act:
    def act(universe: Launches, draw: Random) -> bool:
        """Armed for the next write of one who coordinates; counted when it strikes."""
        leading = [desk for desk in universe.desks if desk.up and desk.service.leads]
        if leading:
            draw.choice(leading).store.armed.append(kind)
        return False

    return act


def _jump(universe: Launches, draw: Random) -> bool:
    draw.choice(universe.desks).wall_ahead_s = draw.uniform(-7200.0, 7200.0)
    return True


def _two_leaders(universe: Launches, draw: Random) -> bool:
    if len(universe.desks) < 2:
        return False
    draw.choice(universe.desks).ahead_s += 4.0
    return True


KINDS: dict[AnyFaultKind, tuple[float, Act]] = {
    FaultKind.KILL: (5.0, _kill_worker),
    FaultKind.USER_ERROR: (3.0, _fail_worker),
    FaultKind.KILL_AGENT: (3.0, _kill_agent),
    FaultKind.KILL_ALL: (0.5, _kill_everybody),
    SimulatedFaultKind.STOP_AGENT: (2.0, _pause_agent),
    FaultKind.CLOSE_WATCH: (1.5, _close_watch),
    FaultKind.KILL_COORDINATOR: (2.0, _kill_coordinator),
    FaultKind.STOP_COORDINATOR: (1.0, _pause_coordinator),
    FaultKind.SPOT_NOTICE: (2.0, _spot),
    FaultKind.DRAIN_AGENT: (2.0, _drain),
    FaultKind.RESIZE: (4.0, _resize),
    SimulatedFaultKind.GO_LIVE: (0.0, _join),  # drawn apart: see `schedule`
    SimulatedFaultKind.NEXT_ATTEMPT: (0.4, _attempt),
    SimulatedFaultKind.NAME_TAKEN: (1.0, _name_taken),
    FaultKind.LOSE_MESSAGES: (2.0, _weather(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, _weather(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (1.5, _weather(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (1.5, _weather(jitter_s=2.0)),
    FaultKind.PARTITION: (1.5, _cut_agent(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (1.5, _cut_agent(one_way=True)),
    FaultKind.CRASH_BEFORE_WRITE: (0.7, _store(FaultKind.CRASH_BEFORE_WRITE)),
    FaultKind.CRASH_AFTER_WRITE: (0.7, _store(FaultKind.CRASH_AFTER_WRITE)),
    FaultKind.STORE_ERROR: (0.7, _store(FaultKind.STORE_ERROR)),
    FaultKind.STORE_TIMEOUT_APPLIED: (0.7, _store(FaultKind.STORE_TIMEOUT_APPLIED)),
    FaultKind.STORE_TIMEOUT_LOST: (0.7, _store(FaultKind.STORE_TIMEOUT_LOST)),
    FaultKind.STORE_TIMEOUT_LATE: (0.7, _store(FaultKind.STORE_TIMEOUT_LATE)),
    FaultKind.CLOCK_JUMP: (0.5, _jump),
    FaultKind.PARTITION_COORDINATORS: (0.0, _cut_off),  # drawn apart, too
    FaultKind.TWO_LEADERS: (0.7, _two_leaders),
}
