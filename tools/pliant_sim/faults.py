"""Faults, drawn from the seed, and their effect on a simulation.

A fault counts as fired only if there was something to strike. Every fault ends by itself, or is ended by `heal`:
liveness is promised after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.inbox import Sender
from pliant.core.member.signals import DrainNotice
from pliant.core.messages import Cancel, DrainAgent, Join, RequestCheckpoint, Resize
from pliant.core.model.job import JobState, Mode, Target
from pliant.core.model.names import AgentId, MemberId
from pliant_sim.fault_kinds import AnyFaultKind, SimulatedFaultKind
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.launch.world import setting_for as launch_setting_for
from pliant_sim.live.world import LiveSimulation, verify_for
from pliant_sim.live.world import setting_for as live_setting_for
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.processes.coordinator import SimulatedCoordinator
from pliant_sim.processes.worker import LiveWorker
from pliant_sim.simulation import USER, NetworkConditions, Simulation

FOREIGN_MAX = 3
LEAVE_GRACE_S = 15.0
MOVES_UNTIL_S = 40.0
CORRUPTED_MAX = 2  # in one schedule: a third divergence at one step would rightly be taken for a fault of user code

S = TypeVar("S", bound=Simulation)
Act = Callable[[S, Random], bool]
Table = Mapping[AnyFaultKind, tuple[float, Act[S]]]


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One fault at one moment. `draw` makes its choices, so a shrunk schedule leaves the other faults unchanged."""

    at_s: float
    kind: AnyFaultKind
    draw: int


def live_schedule(seed: int, until_s: float = 60.0) -> tuple[ScheduledFault, ...]:
    """About one fault a second, each kind by its weight. Special kinds are drawn apart, by generators of their own.

    Calm schedules have one every eight seconds, and none of the network, the coordinators or the disk.
    """
    setting = live_setting_for(seed)
    if setting.script_ends is not None:
        return ()
    if setting.moves:
        return tuple(_draw(Random(f"moves {seed}"), MOVES, 6.0, min(until_s, MOVES_UNTIL_S), 0.2))
    if setting.failover:
        return tuple(_draw(Random(f"failover {seed}"), FAILOVER, 8.0, until_s, 0.15))
    if setting.calm:
        return tuple(_draw(Random(f"calm faults {seed}"), CALM, 4.0, until_s, 0.12))
    faults = _draw(Random(f"faults {seed}"), LIVE, 2.0, until_s, 1.0)
    if verify_for(seed):
        chance = Random(f"corruption {seed}")
        faults += [_at(chance, 4.0, 40.0, SimulatedFaultKind.CORRUPT_STATE) for _ in range(CORRUPTED_MAX)]
        # One of the two: a member that is in the disputes of two faulty machines is rightly distrusted.
        kind = chance.choice([SimulatedFaultKind.WRONG_GRADIENT, SimulatedFaultKind.WRONG_GRADIENTS])
        faults.append(_at(chance, 4.0, 40.0, kind))
        faults += [_at(chance, 0.1, 40.0, SimulatedFaultKind.FOREIGN_JOIN) for _ in range(FOREIGN_MAX)]
    if seed % 3 == 1:
        faults.append(_at(Random(f"cut off {seed}"), 3.0, 30.0, FaultKind.PARTITION_COORDINATORS))
    if seed % 4 in (1, 2):
        chance = Random(f"checkpoints {seed}")
        faults += [_at(chance, 2.0, 40.0, FaultKind.REQUEST_CHECKPOINT) for _ in range(3)]
        faults.append(_at(chance, 5.0, 40.0, FaultKind.DAMAGE_CHECKPOINT))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def launch_schedule(seed: int, until_s: float = 60.0) -> tuple[ScheduledFault, ...]:
    """A fault every two seconds, each kind by its weight; where workers may join, one does in most schedules."""
    chance = Random(f"launch faults {seed}")
    faults = _draw(chance, LAUNCH, 1.0, until_s, 0.5)
    if launch_setting_for(seed).mode is Mode.AUTO and chance.random() < 0.8:
        faults.append(_at(chance, 3.0, until_s, SimulatedFaultKind.GO_LIVE))
    if seed % 3 == 1:
        faults.append(_at(Random(f"cut off {seed}"), 4.0, 30.0, FaultKind.PARTITION_COORDINATORS))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw(chance: Random, table: Table[S], first_s: float, until_s: float, per_second: float) -> list[ScheduledFault]:
    kinds = list(table)
    weights = [table[kind][0] for kind in kinds]
    faults = []
    now = first_s
    while now < until_s:
        faults.append(ScheduledFault(now, chance.choices(kinds, weights)[0], chance.getrandbits(32)))
        now += chance.expovariate(per_second)
    return faults


def _at(chance: Random, low_s: float, high_s: float, kind: AnyFaultKind) -> ScheduledFault:
    return ScheduledFault(chance.uniform(low_s, high_s), kind, chance.getrandbits(32))


def strike_live(sim: LiveSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a live job."""
    setting = sim.setting
    table = MOVES if setting.moves else FAILOVER if setting.failover else CALM if setting.calm else LIVE
    if table[fault.kind][1](sim, Random(fault.draw)):
        sim.struck_at = sim.now
        sim.faults_fired(fault.kind)


def strike_launch(sim: LaunchSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a launched job."""
    if LAUNCH[fault.kind][1](sim, Random(fault.draw)):
        sim.faults_fired(fault.kind)


def heal(sim: Simulation) -> None:
    """End all faults."""
    sim.network = NetworkConditions()
    sim.cut_machines.clear()
    sim.down_until.clear()
    sim.tick_rates.clear()
    for machine, agent in sim.agents.items():
        agent.resume()
        if machine.startswith("b"):  # it took another machine's name
            agent.kill()
    sim.heal_workers()
    for coordinator in sim.coordinators:
        coordinator.paused = False
        coordinator.ahead_s = 0.0
        coordinator.slow = coordinator.store.cut = False
        coordinator.store.armed.clear()
        coordinator.start()
    sim.tell("the faults are over")


def _agents(sim: Simulation) -> list[SimulatedAgent]:
    return [agent for agent in sim.agents.values() if agent.up]


# ------------------------------------------------------------------------------------------------ processes


def _kill_worker(sim: Simulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers:
        return False
    worker = draw.choice(workers)
    sim.expect_death(worker)
    worker.end(-9)
    return True


def _kill(sim: Simulation, agent: SimulatedAgent) -> None:
    for worker in agent.processes.values():
        sim.expect_death(worker)
    agent.kill()


def _kill_agent(sim: Simulation, draw: Random) -> bool:
    """Kill an agent; it is back within its lease, or after it."""
    agents = _agents(sim)
    if not agents:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.choice([0.3, 2.0, 6.0, 15.0])
    _kill(sim, agent)
    return True


def _kill_all_workers(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    for worker in workers:
        worker.end(-9)
    return bool(workers)


def _kill_all_agents(sim: LaunchSimulation, draw: Random) -> bool:
    """Kill all workers of a launch by killing their agents: else the first death ends the launch."""
    agents = _agents(sim)
    for agent in agents:
        sim.down_until[agent.machine] = sim.now + draw.uniform(0.2, 3.0)
        _kill(sim, agent)
    return bool(agents)


def _stop_worker(sim: LiveSimulation, draw: Random) -> bool:
    workers = [worker for worker in sim.running_workers() if not worker.paused]
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.pause()
    sim.after(draw.choice([0.5, 3.0, 15.0]), worker.resume)
    return True


def _stop_agent(sim: Simulation, draw: Random) -> bool:
    agents = [agent for agent in _agents(sim) if not agent.paused]
    if not agents:
        return False
    agent = draw.choice(agents)
    agent.paused = True
    sim.after(draw.choice([1.0, 5.0, 14.0]), agent.resume)
    return True


def _running(sim: Simulation) -> list[SimulatedCoordinator]:
    return [coordinator for coordinator in sim.coordinators if coordinator.up]


def _kill_coordinator(sim: Simulation, draw: Random) -> bool:
    running = _running(sim)
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.crash()
    sim.after(draw.uniform(0.5, 9.0), coordinator.start)
    return True


def _stop_coordinator(sim: Simulation, draw: Random) -> bool:
    running = [coordinator for coordinator in _running(sim) if not coordinator.paused]
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.paused = True
    sim.after(draw.choice([1.0, 5.0, 16.0]), coordinator.resume)
    return True


def _leaders(sim: Simulation) -> list[SimulatedCoordinator]:
    return [each for each in _running(sim) if each.service.leads and not each.paused]


def _freeze_leader(sim: LiveSimulation, draw: Random) -> bool:
    """Stop the leader, if another coordinator can take over."""
    leaders = _leaders(sim)
    if not leaders or not sim.checks.can_take_over():
        return False
    leaders[0].paused = True
    sim.after(draw.choice([2.0, 12.0, 16.0]), leaders[0].resume)
    return True


def _lose_leader(sim: LiveSimulation, draw: Random) -> bool:
    leaders = _leaders(sim)
    if not leaders or not sim.checks.can_take_over():
        return False
    leaders[0].crash(silently=True)
    sim.after(draw.choice([4.0, 12.0, 16.0]), leaders[0].start)
    return True


def _cut_store(sim: LiveSimulation, draw: Random) -> bool:
    if not sim.checks.can_take_over():
        return False
    coordinator = draw.choice(sim.coordinators)
    coordinator.store.cut = True
    sim.after(draw.choice([5.0, 15.0]), setattr, coordinator.store, "cut", False)
    return True


def _slow_store(sim: LiveSimulation, draw: Random) -> bool:
    coordinator = draw.choice(sim.coordinators)
    coordinator.slow = True
    sim.after(draw.uniform(2.0, 8.0), setattr, coordinator, "slow", False)
    return True


def _raise(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers or sim.fired[FaultKind.USER_ERROR]:
        return False  # a second one may strike the same slot on another member, which rightly fails the job
    sim.raising.add(draw.choice(workers).id)
    return True


def _fail_worker(sim: LaunchSimulation, draw: Random) -> bool:
    """Let user code raise, in one worker or in several at once."""
    workers = [worker for worker in sim.running_workers() if worker.running and not worker.joined]
    if not workers:
        return False
    for worker in draw.sample(workers, min(len(workers), draw.choice([1, 1, 3]))):
        worker.end(draw.choice([1, 1, -11]))
    return True


def _corrupt(sim: LiveSimulation, draw: Random) -> bool:
    """Flip a bit of a state that is in use and will be compared at least once more."""
    last = sim.setting.grid.total_steps
    workers = [
        worker for worker in sim.running_workers() if worker.machine.holds_state and worker.model.lineage.step < last
    ]
    if not workers or not sim.setting.verify:
        return False
    draw.choice(workers).corrupt(draw.randrange(62))
    return True


def _compute_wrong(*, once: bool) -> Act[LiveSimulation]:
    def act(sim: LiveSimulation, draw: Random) -> bool:
        workers = sim.running_workers()
        if not workers or not sim.setting.verify:
            return False
        worker = draw.choice(workers)
        sim.checks.erring.add(worker.id)
        if once:
            worker.errs_once = True
        else:
            worker.errs = True
        return True

    return act


# -------------------------------------------------------------------------------------------------- planned


def _members(sim: LiveSimulation) -> list[LiveWorker]:
    return [worker for worker in sim.running_workers() if worker.joined]


def _drain(sim: LiveSimulation, draw: Random) -> bool:
    workers = _members(sim)
    if not workers:
        return False
    draw.choice(workers).feed(DrainNotice(draw.choice([3.0, 10.0, 30.0]), "asked to go"))
    return True


def _replace_all(sim: LiveSimulation, draw: Random) -> bool:
    workers = _members(sim)
    for worker in workers:
        worker.feed(DrainNotice(25.0, "every worker is replaced"))
    return bool(workers)


def _spot_storm(sim: LiveSimulation, draw: Random) -> bool:
    """Give several machines a spot notice at once."""
    agents = _agents(sim)
    if len(agents) < 2:
        return False
    for agent in draw.sample(agents, draw.randint(1, len(agents) - 1)):
        _notify(sim, agent, draw.choice([2.0, 8.0, 20.0]), draw.uniform(2.0, 6.0))
    return True


def _spot_notice(sim: LaunchSimulation, draw: Random) -> bool:
    agents = [agent for agent in _agents(sim) if agent.known]
    if not agents:
        return False
    agent = draw.choice(agents)
    for worker in agent.processes.values():
        sim.expect_death(worker)
    _notify(sim, agent, draw.choice([2.0, 6.0]), draw.uniform(0.0, 8.0))
    return True


def _notify(
    sim: Simulation, agent: SimulatedAgent, grace_s: float, away_s: float, *, interrupted: bool = False
) -> None:
    sim.down_until[agent.machine] = sim.now + grace_s + away_s
    agent.machine_going(grace_s, interrupted=interrupted)


def _interrupt(sim: LiveSimulation, draw: Random) -> bool:
    """Interrupt `pliant run` on every machine; a worker may have been killed just before."""
    if draw.random() < 0.6:
        _kill_worker(sim, draw)
    sim.after(draw.choice([0.05, 0.4, 2.0]), _interrupt_all, sim, draw.choice([10.0, 20.0]))
    return bool(_agents(sim))


def _interrupt_all(sim: LiveSimulation, grace_s: float) -> None:
    for agent in _agents(sim):
        _notify(sim, agent, grace_s, 1.0, interrupted=True)


def _hang(sim: LiveSimulation, draw: Random) -> bool:
    """Let a worker get stuck in user code; counted when it does."""
    workers = _members(sim)
    if workers and not sim.fired[SimulatedFaultKind.HANG]:
        draw.choice(workers).hangs = True
    return False


def _drain_agent(sim: LaunchSimulation, draw: Random) -> bool:
    agents = _agents(sim)
    if not agents:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.uniform(0.5, 8.0)
    sim.user(DrainAgent(agent.state.id, 5.0, "maintenance"))
    return True


def _leave_agent(sim: LiveSimulation, draw: Random) -> bool:
    """Ask an agent to leave; later another one may be started on its machine. Two stay, so that the job goes on."""
    agents = [agent for agent in _agents(sim) if agent.known and not agent.state.leaving]
    if len(agents) < 3:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.choice([25.0, 300.0])
    sim.checks.asked_to_leave(agent, LEAVE_GRACE_S)
    sim.user(DrainAgent(agent.state.id, LEAVE_GRACE_S, "maintenance", leave=True))
    return True


def _resize(sim: Simulation, draw: Random) -> bool:
    s = sim.sizes
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
    sim.user(Resize(Target(size, placement)))
    return True


STRANGER = "stranger-"


def _foreign_join(sim: LiveSimulation, draw: Random) -> bool:
    """Join a member that computes other bits. It has no process, so a world that included it would hang.

    Before the first world two such members could be the majority, which decides the job's fingerprint.
    """
    job = sim.checks.job
    if job is not None and not job.fingerprint and any(name.startswith(STRANGER) for name in job.members):
        return False
    name = MemberId(f"{STRANGER}{draw.getrandbits(32)}")
    sim.ask_as_member(name, Join(name, AgentId("elsewhere"), sim.terms, fingerprint=(("torch", "2.12.1"),)))
    return True


def _go_live(sim: LaunchSimulation, draw: Random) -> bool:
    """Let a worker call `pliant.join()`."""
    workers = [worker for worker in sim.running_workers() if worker.running and not worker.joined]
    if not workers or sim.setting.mode is not Mode.AUTO:
        return False
    draw.choice(workers).join()
    return True


def _next_attempt(sim: LaunchSimulation, draw: Random) -> bool:
    """Cancel the job, and create it again, anew in half of the cases."""
    job = sim.checks.job
    return job is not None and not job.is_live and _cancel(sim, draw, fresh=draw.random() < 0.5)


def _resume_cancelled(sim: LiveSimulation, draw: Random) -> bool:
    """Cancel the job, and create it again: it goes on where it was."""
    return _cancel(sim, draw, fresh=False)


def _cancel(sim: LaunchSimulation | LiveSimulation, draw: Random, *, fresh: bool) -> bool:
    job = sim.checks.job
    if job is None or job.state.ended or sim.attempt_due:
        return False
    sim.attempt_due = True
    sim.user(Cancel("another attempt"))
    sim.after(draw.uniform(0.1, 9.0), _create_again, sim, fresh)
    return True


def _create_again(sim: LaunchSimulation | LiveSimulation, fresh: bool) -> None:
    job = sim.checks.job
    if job is None or not job.state.ended:
        sim.after(1.0, _create_again, sim, fresh)
        return
    if job.state is JobState.CANCELLED:
        sim.user(sim.creation(fresh=fresh))
    else:
        sim.attempt_due = False


def _take_name(sim: Simulation, draw: Random) -> bool:
    """Start another machine's agent with the name of one that is away, for longer than a lease or just for a while."""
    index = draw.randrange(sim.sizes.agents)
    agent = sim.agents.get(f"a{index}")
    if agent is None or not agent.up:
        return False
    _cut(sim, f"a{index}", draw.choice([3.0, 17.0]), draw)
    sim.after(8.0, sim.start_agent, f"b{index}", f"a{index}")
    sim.after(draw.uniform(20.0, 40.0), _kill_there, sim, f"b{index}")
    return True


def _kill_there(sim: Simulation, machine: str) -> None:
    agent = sim.agents.get(machine)
    if agent is not None and agent.up:
        _kill(sim, agent)


# -------------------------------------------------------------------------------------------------- network


def _disturb(**change: float) -> Act[Simulation]:
    def act(sim: Simulation, draw: Random) -> bool:
        sim.network = NetworkConditions(**change)
        sim.after(draw.uniform(1.0, 6.0), _calm, sim)
        return True

    return act


def _calm(sim: Simulation) -> None:
    sim.network = NetworkConditions()


def _cut(sim: Simulation, machine: str, for_s: float, draw: Random, *, one_way: bool = False) -> None:
    names = [coordinator.name for coordinator in sim.coordinators]
    pairs = [(machine, name) for name in names] + [(name, machine) for name in names]
    if one_way:
        pairs = pairs[: len(names)] if draw.random() < 0.5 else pairs[len(names) :]
    sim.cut_machines.update(pairs)
    sim.after(for_s, sim.cut_machines.difference_update, pairs)


def _partition(*, one_way: bool) -> Act[Simulation]:
    def act(sim: Simulation, draw: Random) -> bool:
        machine = f"a{draw.randrange(sim.sizes.agents)}"
        _cut(sim, machine, draw.choice([1.0, 5.0, 16.0]), draw, one_way=one_way)
        return True

    return act


def _partition_coordinators(sim: Simulation, draw: Random) -> bool:
    """Cut the coordinators off from all others for longer than a lease; members still reach one another."""
    for_s = draw.choice([12.0, 20.0, 28.0])
    for machine in (USER, *(f"a{i}" for i in range(sim.sizes.agents))):
        _cut(sim, machine, for_s, draw)
    return True


def _partition_members(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if len(workers) < 2:
        return False
    a, b = draw.sample(workers, 2)
    pairs = ((a.id, b.id), (b.id, a.id)) if draw.random() < 0.5 else ((a.id, b.id),)
    sim.cut_members.update(pairs)
    sim.after(draw.choice([1.0, 4.0, 20.0]), _reconnect_members, sim, pairs)
    return True


def _reconnect_members(sim: LiveSimulation, pairs: tuple[tuple[str, str], ...]) -> None:
    sim.cut_members.difference_update(pairs)
    sim.fabric.healed()


def _close_member_watch(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers:
        return False
    worker = draw.choice(workers)
    for coordinator in sim.coordinators:
        coordinator.suspect(Sender("member", worker.id))
    return True


def _close_agent_watch(sim: LaunchSimulation, draw: Random) -> bool:
    """Let an agent look gone to the coordinator."""
    agents = [agent for agent in _agents(sim) if agent.known]
    if not agents:
        return False
    draw.choice(agents).lose_connection()
    return True


def _break_transfer(sim: LiveSimulation, draw: Random) -> bool:
    """Break the next transfer to each joiner; counted when it breaks."""
    sim.breaking.update(worker.id for worker in sim.running_workers() if not worker.machine.holds_state)
    return False


# --------------------------------------------------------------------------------------------- disk and time


def _arm(kind: FaultKind) -> Act[Simulation]:
    def act(sim: Simulation, draw: Random) -> bool:
        """Arm the next write of a leading coordinator; counted when it fires."""
        leading = [coordinator for coordinator in sim.coordinators if coordinator.up and coordinator.service.leads]
        if leading:
            draw.choice(leading).store.armed.append(kind)
        return False

    return act


def _request_checkpoint(sim: LiveSimulation, draw: Random) -> bool:
    job = sim.checks.job
    if job is None or job.terms is None or job.state.ended:
        return False
    sim.user(RequestCheckpoint("a user asked for it"))
    return True


def _damage_checkpoint(sim: LiveSimulation, draw: Random) -> bool:
    """Flip a bit of the newest checkpoint, then kill all workers, so that the job needs it."""
    job = sim.checks.job
    workers = sim.running_workers()
    if job is None or job.checkpoint is None or job.state.ended or not workers:
        return False
    sim.directory.damaged.add(job.checkpoint.name)
    for worker in workers:
        worker.end(-9)
    return True


def _clock_jump(sim: Simulation, draw: Random) -> bool:
    draw.choice(sim.coordinators).wall_ahead_s = draw.uniform(-7200.0, 7200.0)
    return True


def _clock_skew(sim: Simulation, draw: Random) -> bool:
    sim.tick_rates[f"a{draw.randrange(sim.sizes.agents)}"] = draw.choice([0.7, 1.3, 2.2])
    return True


def _two_leaders(sim: Simulation, draw: Random) -> bool:
    """Let one coordinator's clock run ahead, so it takes the hold for expired while the other relies on it."""
    if len(sim.coordinators) < 2:
        return False
    draw.choice(sim.coordinators).ahead_s += 4.0
    return True


STORE_KINDS = (
    FaultKind.CRASH_BEFORE_WRITE,
    FaultKind.CRASH_AFTER_WRITE,
    FaultKind.STORE_ERROR,
    FaultKind.STORE_TIMEOUT_APPLIED,
    FaultKind.STORE_TIMEOUT_LOST,
    FaultKind.STORE_TIMEOUT_LATE,
)
# A weight of 0: drawn apart, see `live_schedule` and `launch_schedule`.
LIVE: Table[LiveSimulation] = {
    FaultKind.KILL: (6.0, _kill_worker),
    FaultKind.KILL_AGENT: (1.5, _kill_agent),
    FaultKind.KILL_ALL: (0.35, _kill_all_workers),
    FaultKind.KILL_COORDINATOR: (3.0, _kill_coordinator),
    FaultKind.STOP: (3.0, _stop_worker),
    FaultKind.STOP_COORDINATOR: (2.0, _stop_coordinator),
    FaultKind.USER_ERROR: (1.0, _raise),
    FaultKind.DRAIN: (4.0, _drain),
    FaultKind.SPOT_NOTICE: (1.5, _spot_storm),
    SimulatedFaultKind.REPLACE_ALL: (0.8, _replace_all),
    FaultKind.RESIZE: (4.0, _resize),
    FaultKind.LOSE_MESSAGES: (2.0, _disturb(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, _disturb(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (2.0, _disturb(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (2.0, _disturb(jitter_s=2.0)),
    FaultKind.PARTITION: (2.0, _partition(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (2.0, _partition(one_way=True)),
    FaultKind.PARTITION_MEMBERS: (3.0, _partition_members),
    FaultKind.CLOSE_WATCH: (2.0, _close_member_watch),
    FaultKind.BREAK_TRANSFER: (3.0, _break_transfer),
    **{kind: (1.5, _arm(kind)) for kind in STORE_KINDS},
    FaultKind.CLOCK_JUMP: (1.5, _clock_jump),
    SimulatedFaultKind.CLOCK_SKEW: (1.5, _clock_skew),
    FaultKind.TWO_LEADERS: (1.5, _two_leaders),
    SimulatedFaultKind.CORRUPT_STATE: (0.0, _corrupt),
    SimulatedFaultKind.FOREIGN_JOIN: (0.0, _foreign_join),
    SimulatedFaultKind.WRONG_GRADIENT: (0.0, _compute_wrong(once=True)),
    SimulatedFaultKind.WRONG_GRADIENTS: (0.0, _compute_wrong(once=False)),
    FaultKind.PARTITION_COORDINATORS: (0.0, _partition_coordinators),
    FaultKind.REQUEST_CHECKPOINT: (0.0, _request_checkpoint),
    FaultKind.DAMAGE_CHECKPOINT: (0.0, _damage_checkpoint),
}
CALM: Table[LiveSimulation] = {
    FaultKind.KILL: (3.0, _kill_worker),
    SimulatedFaultKind.INTERRUPT: (2.0, _interrupt),
    SimulatedFaultKind.NEXT_ATTEMPT: (2.0, _resume_cancelled),
    SimulatedFaultKind.HANG: (1.0, _hang),
}
MOVES: Table[LiveSimulation] = {
    FaultKind.KILL: (2.0, _kill_worker),
    FaultKind.KILL_AGENT: (1.0, _kill_agent),
    FaultKind.RESIZE: (4.0, _resize),
    SimulatedFaultKind.AGENT_LEAVES: (2.0, _leave_agent),
}
FAILOVER: Table[LiveSimulation] = {
    SimulatedFaultKind.FREEZE_LEADER: (3.0, _freeze_leader),
    SimulatedFaultKind.LOSE_LEADER: (2.0, _lose_leader),
    SimulatedFaultKind.CUT_STORE: (1.0, _cut_store),
    SimulatedFaultKind.SLOW_STORE: (1.0, _slow_store),
    FaultKind.RESIZE: (3.0, _resize),
}
LAUNCH: Table[LaunchSimulation] = {
    FaultKind.KILL: (5.0, _kill_worker),
    FaultKind.USER_ERROR: (3.0, _fail_worker),
    FaultKind.KILL_AGENT: (3.0, _kill_agent),
    FaultKind.KILL_ALL: (0.5, _kill_all_agents),
    SimulatedFaultKind.STOP_AGENT: (2.0, _stop_agent),
    FaultKind.CLOSE_WATCH: (1.5, _close_agent_watch),
    FaultKind.KILL_COORDINATOR: (2.0, _kill_coordinator),
    FaultKind.STOP_COORDINATOR: (1.0, _stop_coordinator),
    FaultKind.SPOT_NOTICE: (2.0, _spot_notice),
    FaultKind.DRAIN_AGENT: (2.0, _drain_agent),
    FaultKind.RESIZE: (4.0, _resize),
    SimulatedFaultKind.GO_LIVE: (0.0, _go_live),
    SimulatedFaultKind.NEXT_ATTEMPT: (0.4, _next_attempt),
    SimulatedFaultKind.NAME_TAKEN: (1.0, _take_name),
    FaultKind.LOSE_MESSAGES: (2.0, _disturb(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, _disturb(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (1.5, _disturb(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (1.5, _disturb(jitter_s=2.0)),
    FaultKind.PARTITION: (1.5, _partition(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (1.5, _partition(one_way=True)),
    **{kind: (0.7, _arm(kind)) for kind in STORE_KINDS},
    FaultKind.CLOCK_JUMP: (0.5, _clock_jump),
    FaultKind.PARTITION_COORDINATORS: (0.0, _partition_coordinators),
    FaultKind.TWO_LEADERS: (0.7, _two_leaders),
}
