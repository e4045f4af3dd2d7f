"""Faults around the processes: the network, the store, checkpoints and clocks."""

from __future__ import annotations

from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.inbox import Sender
from pliant_sim.faults.act import Act
from pliant_sim.faults.processes import kill_with_workers, running_agents
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.live.world import LiveSimulation
from pliant_sim.processes.coordinator import SimulatedCoordinator
from pliant_sim.simulation import USER, NetworkConditions, Simulation


def disturb_network(**change: float) -> Act[Simulation]:
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


def partition(*, one_way: bool) -> Act[Simulation]:
    def act(sim: Simulation, draw: Random) -> bool:
        machine = f"a{draw.randrange(sim.sizes.agents)}"
        _cut(sim, machine, draw.choice([1.0, 5.0, 16.0]), draw, one_way=one_way)
        return True

    return act


def partition_coordinators(sim: Simulation, draw: Random) -> bool:
    """Cut the coordinators off from all others for longer than a lease; members still reach one another."""
    for_s = draw.choice([12.0, 20.0, 28.0])
    for machine in (USER, *(f"a{i}" for i in range(sim.sizes.agents))):
        _cut(sim, machine, for_s, draw)
    return True


def partition_members(sim: LiveSimulation, draw: Random) -> bool:
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


def close_member_watch(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers:
        return False
    worker = draw.choice(workers)
    for coordinator in sim.coordinators:
        coordinator.suspect(Sender("member", worker.id))
    return True


def close_agent_watch(sim: LaunchSimulation, draw: Random) -> bool:
    """Let an agent look gone to the coordinator."""
    agents = [agent for agent in running_agents(sim) if agent.known]
    if not agents:
        return False
    draw.choice(agents).lose_connection()
    return True


def break_transfer(sim: LiveSimulation, draw: Random) -> bool:
    """Break the next transfer to each joiner; counted when it breaks."""
    sim.breaking.update(worker.id for worker in sim.running_workers() if not worker.machine.holds_state)
    return False


def take_name(sim: Simulation, draw: Random) -> bool:
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
        kill_with_workers(sim, agent)


def cut_store(sim: LiveSimulation, draw: Random) -> bool:
    if not sim.checks.can_take_over():
        return False
    coordinator = draw.choice(sim.coordinators)
    coordinator.store.cut = True
    sim.after(draw.choice([5.0, 15.0]), setattr, coordinator.store, "cut", False)
    return True


def slow_store(sim: LiveSimulation, draw: Random) -> bool:
    coordinator = draw.choice(sim.coordinators)
    coordinator.slow = True
    sim.after(draw.uniform(2.0, 8.0), _end_slow_store, sim, coordinator)
    return True


def _end_slow_store(sim: LiveSimulation, coordinator: SimulatedCoordinator) -> None:
    if sim.checks.is_slow():
        sim.struck_at = sim.now  # it struck until now
    coordinator.slow = False


def arm_store(kind: FaultKind) -> Act[Simulation]:
    def act(sim: Simulation, draw: Random) -> bool:
        """Arm the next write of a leading coordinator; counted when it fires."""
        leading = [coordinator for coordinator in sim.coordinators if coordinator.up and coordinator.service.leads]
        if leading:
            draw.choice(leading).store.armed.append(kind)
        return False

    return act


def damage_checkpoint(sim: LiveSimulation, draw: Random) -> bool:
    """Flip a bit of the newest checkpoint, then kill all workers, so that the job needs it."""
    job = sim.checks.job
    workers = sim.running_workers()
    if job is None or job.checkpoint is None or job.state.ended or not workers:
        return False
    sim.directory.damaged.add(job.checkpoint.name)
    for worker in workers:
        worker.end(-9)
    return True


def clock_jump(sim: Simulation, draw: Random) -> bool:
    draw.choice(sim.coordinators).wall_ahead_s = draw.uniform(-7200.0, 7200.0)
    return True


def clock_skew(sim: Simulation, draw: Random) -> bool:
    sim.tick_rates[f"a{draw.randrange(sim.sizes.agents)}"] = draw.choice([0.7, 1.3, 2.2])
    return True


def two_leaders(sim: Simulation, draw: Random) -> bool:
    """Let one coordinator's clock run ahead, so it takes the hold for expired while the other relies on it."""
    if len(sim.coordinators) < 2:
        return False
    draw.choice(sim.coordinators).ahead_s += 4.0
    return True
