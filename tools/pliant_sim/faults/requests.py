"""Requests of users and machines: drains, spot notices, resizes, interrupts, joins, attempts and checkpoints."""

from __future__ import annotations

from random import Random

from pliant.core.member.signals import DrainNotice
from pliant.core.messages import Cancel, DrainAgent, Join, RequestCheckpoint, Resize
from pliant.core.model.job import JobState, Mode, Target
from pliant.core.model.names import AgentId, MemberId
from pliant_sim.faults.processes import joined_workers, kill_worker, running_agents
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.live.world import LiveSimulation
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.simulation import Simulation

LEAVE_GRACE_S = 15.0
STRANGER = "stranger-"


def drain_worker(sim: LiveSimulation, draw: Random) -> bool:
    workers = joined_workers(sim)
    if not workers:
        return False
    draw.choice(workers).feed(DrainNotice(draw.choice([3.0, 10.0, 30.0]), "asked to go"))
    return True


def replace_all(sim: LiveSimulation, draw: Random) -> bool:
    workers = joined_workers(sim)
    for worker in workers:
        worker.feed(DrainNotice(25.0, "every worker is replaced"))
    return bool(workers)


def spot_storm(sim: LiveSimulation, draw: Random) -> bool:
    """Give several machines a spot notice at once."""
    agents = running_agents(sim)
    if len(agents) < 2:
        return False
    for agent in draw.sample(agents, draw.randint(1, len(agents) - 1)):
        _notify(sim, agent, draw.choice([2.0, 8.0, 20.0]), draw.uniform(2.0, 6.0))
    return True


def spot_notice(sim: LaunchSimulation, draw: Random) -> bool:
    agents = [agent for agent in running_agents(sim) if agent.known]
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


def interrupt(sim: LiveSimulation, draw: Random) -> bool:
    """Interrupt `pliant run` on every machine; a worker may have been killed just before."""
    if draw.random() < 0.6:
        kill_worker(sim, draw)
    sim.after(draw.choice([0.05, 0.4, 2.0]), _interrupt_all, sim, draw.choice([10.0, 20.0]))
    return bool(running_agents(sim))


def _interrupt_all(sim: LiveSimulation, grace_s: float) -> None:
    for agent in running_agents(sim):
        _notify(sim, agent, grace_s, 1.0, interrupted=True)


def drain_agent(sim: LaunchSimulation, draw: Random) -> bool:
    agents = running_agents(sim)
    if not agents:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.uniform(0.5, 8.0)
    sim.user(DrainAgent(agent.state.id, 5.0, "maintenance"))
    return True


def leave_agent(sim: LiveSimulation, draw: Random) -> bool:
    """Ask an agent to leave; later another one may be started on its machine. Two stay, so that the job goes on."""
    agents = [agent for agent in running_agents(sim) if agent.known and not agent.state.leaving]
    if len(agents) < 3:
        return False
    agent = draw.choice(agents)
    sim.down_until[agent.machine] = sim.now + draw.choice([25.0, 300.0])
    sim.checks.asked_to_leave(agent, LEAVE_GRACE_S)
    sim.user(DrainAgent(agent.state.id, LEAVE_GRACE_S, "maintenance", leave=True))
    return True


def resize(sim: Simulation, draw: Random) -> bool:
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


def foreign_join(sim: LiveSimulation, draw: Random) -> bool:
    """Join a member that computes other bits. It has no process, so a world that included it would hang.

    Before the first world two such members could be the majority, which decides the job's fingerprint.
    """
    job = sim.checks.job
    if job is not None and not job.fingerprint and any(name.startswith(STRANGER) for name in job.members):
        return False
    name = MemberId(f"{STRANGER}{draw.getrandbits(32)}")
    sim.ask_as_member(name, Join(name, AgentId("elsewhere"), sim.terms, fingerprint=(("torch", "2.12.1"),)))
    return True


def go_live(sim: LaunchSimulation, draw: Random) -> bool:
    """Let a worker call `pliant.join()`."""
    workers = [worker for worker in sim.running_workers() if worker.running and not worker.joined]
    if not workers or sim.setting.mode is not Mode.AUTO:
        return False
    draw.choice(workers).join()
    return True


def next_attempt(sim: LaunchSimulation, draw: Random) -> bool:
    """Cancel the job, and create it again, anew in half of the cases."""
    job = sim.checks.job
    return job is not None and not job.is_live and _cancel(sim, draw, fresh=draw.random() < 0.5)


def resume_cancelled(sim: LiveSimulation, draw: Random) -> bool:
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


def request_checkpoint(sim: LiveSimulation, draw: Random) -> bool:
    job = sim.checks.job
    if job is None or job.terms is None or job.state.ended:
        return False
    sim.user(RequestCheckpoint("a user asked for it"))
    return True
