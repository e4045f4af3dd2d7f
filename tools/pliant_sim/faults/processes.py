"""Faults of processes: they are killed, stopped, hang, raise or compute wrong results."""

from __future__ import annotations

from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant_sim.fault_kinds import SimulatedFaultKind
from pliant_sim.faults.act import Act
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.live.world import LiveSimulation
from pliant_sim.processes.agent import STOPS_S, SimulatedAgent
from pliant_sim.processes.coordinator import SimulatedCoordinator
from pliant_sim.processes.worker import LiveWorker
from pliant_sim.simulation import Simulation


def running_agents(sim: Simulation) -> list[SimulatedAgent]:
    return [agent for agent in sim.agents.values() if agent.up]


def kill_worker(sim: Simulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers:
        return False
    worker = draw.choice(workers)
    sim.expect_death(worker)
    worker.end(-9)
    return True


def kill_with_workers(sim: Simulation, agent: SimulatedAgent) -> None:
    for worker in agent.processes.values():
        sim.expect_death(worker)
    agent.kill()


def kill_agent(sim: Simulation, draw: Random) -> bool:
    """Kill an agent; it is back within its lease, or after it."""
    agents = running_agents(sim)
    if not agents:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.choice([0.3, 2.0, 6.0, 15.0])
    kill_with_workers(sim, agent)
    return True


def kill_all_workers(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    for worker in workers:
        worker.end(-9)
    return bool(workers)


def kill_all_agents(sim: LaunchSimulation, draw: Random) -> bool:
    """Kill all workers of a launch by killing their agents: else the first death ends the launch."""
    agents = running_agents(sim)
    for agent in agents:
        sim.down_until[agent.machine] = sim.now + draw.uniform(0.2, 3.0)
        kill_with_workers(sim, agent)
    return bool(agents)


def stop_worker(sim: LiveSimulation, draw: Random) -> bool:
    workers = [worker for worker in sim.running_workers() if not worker.paused]
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.pause()
    sim.after(draw.choice([0.5, 3.0, 15.0]), worker.resume)
    return True


def freeze_worker(sim: LiveSimulation, draw: Random) -> bool:
    """Stop a worker for ever."""
    workers = [worker for worker in joined_workers(sim) if not worker.paused]
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.frozen = True
    worker.pause()
    sim.after(STOPS_S, worker.agent.look_for_stops)
    return True


def stop_agent(sim: Simulation, draw: Random) -> bool:
    agents = [agent for agent in running_agents(sim) if not agent.paused]
    if not agents:
        return False
    agent = draw.choice(agents)
    agent.paused = True
    sim.after(draw.choice([1.0, 5.0, 14.0]), agent.resume)
    return True


def _running(sim: Simulation) -> list[SimulatedCoordinator]:
    return [coordinator for coordinator in sim.coordinators if coordinator.up]


def kill_coordinator(sim: Simulation, draw: Random) -> bool:
    running = _running(sim)
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.crash()
    sim.after(draw.uniform(0.5, 9.0), coordinator.start)
    return True


def stop_coordinator(sim: Simulation, draw: Random) -> bool:
    running = [coordinator for coordinator in _running(sim) if not coordinator.paused]
    if not running:
        return False
    coordinator = draw.choice(running)
    coordinator.paused = True
    sim.after(draw.choice([1.0, 5.0, 16.0]), coordinator.resume)
    return True


def _leaders(sim: Simulation) -> list[SimulatedCoordinator]:
    return [each for each in _running(sim) if each.service.leads and not each.paused]


def freeze_leader(sim: LiveSimulation, draw: Random) -> bool:
    """Stop the leader, if another coordinator can take over."""
    leaders = _leaders(sim)
    if not leaders or not sim.checks.can_take_over():
        return False
    leaders[0].paused = True
    sim.after(draw.choice([2.0, 12.0, 16.0]), leaders[0].resume)
    return True


def lose_leader(sim: LiveSimulation, draw: Random) -> bool:
    leaders = _leaders(sim)
    if not leaders or not sim.checks.can_take_over():
        return False
    leaders[0].crash(silently=True)
    sim.after(draw.choice([4.0, 12.0, 16.0]), leaders[0].start)
    return True


def raise_in_user_code(sim: LiveSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    if not workers or sim.fired[FaultKind.USER_ERROR]:
        return False  # a second one may strike the same slot on another member, which rightly fails the job
    sim.raising.add(draw.choice(workers).id)
    return True


def fail_worker(sim: LaunchSimulation, draw: Random) -> bool:
    """Let user code raise, in one worker or in several at once."""
    workers = [worker for worker in sim.running_workers() if worker.running and not worker.joined]
    if not workers:
        return False
    for worker in draw.sample(workers, min(len(workers), draw.choice([1, 1, 3]))):
        worker.end(draw.choice([1, 1, -11]))
    return True


def corrupt_state(sim: LiveSimulation, draw: Random) -> bool:
    """Flip a bit of a state that is in use and will be compared at least once more."""
    last = sim.setting.with_batches(sim.setting.grid).total_steps
    workers = [
        worker for worker in sim.running_workers() if worker.machine.holds_state and worker.model.lineage.step < last
    ]
    if not workers or not sim.setting.verify:
        return False
    draw.choice(workers).corrupt(draw.randrange(62))
    return True


def compute_wrong(*, once: bool) -> Act[LiveSimulation]:
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


def joined_workers(sim: LiveSimulation) -> list[LiveWorker]:
    return [worker for worker in sim.running_workers() if worker.joined]


def hang_in_user_code(sim: LiveSimulation, draw: Random) -> bool:
    """Let a worker get stuck in user code; counted when it does."""
    workers = joined_workers(sim)
    if workers and not sim.fired[SimulatedFaultKind.HANG]:
        draw.choice(workers).hangs = True
    return False
