"""Jobs whose workers are launched together, for tests: named jobs and short hands for commands."""

from pliant.core import messages as m
from pliant.core.job.decide import decide, settle_all
from pliant.core.messages import Rejection
from pliant.core.model.job import Agent, Job, JobSpec, Mode, Target
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import NOW, X, Y, evolved, pump

CHIEF_AND_PS = (("chief", 1), ("ps", 1))


def created(
    size_min: int = 1,
    size_max: int = 6,
    target: int | None = None,
    *,
    mode: Mode = Mode.RELAUNCH,
    roles: tuple[tuple[str, int], ...] = (),
    max_restarts: int = 3,
) -> Job:
    aim = Target(size_max if target is None else target)
    command = m.Create("demo", JobSpec(size_min, size_max, aim, None, max_restarts, mode, roles=roles))
    made = decide(None, command, NOW)
    assert not isinstance(made, Rejection), made
    return settle_all(evolved(None, *made), NOW)[0]


def hello(agent: AgentId, capacity: int = 2, life: str = "1", address: str = "", home: str = "") -> m.AgentJoin:
    return m.AgentJoin(agent, capacity, address, home, life)


def known(job: Job, agent: AgentId) -> Agent:
    return next(each for each in job.agents if each.id == agent)


def ready(job: Job, agent: AgentId, first: int = 20000) -> m.AgentReady:
    """That none of its workers runs, as it says when it has heard of the newest launch."""
    generation = job.launch.number if job.launch else 0
    return m.AgentReady(agent, generation, tuple(range(first, first + known(job, agent).capacity)))


def with_agents(job: Job, *agents: AgentId, capacity: int = 2) -> Job:
    """The job after these agents came and said that they are ready, all of them at once."""
    job, _ = pump(job, *(hello(agent, capacity) for agent in agents))
    return all_ready(job, *agents)


def all_ready(job: Job, *agents: AgentId) -> Job:
    return pump(job, *(ready(job, agent) for agent in agents))[0]


def launch(job: Job) -> Launch:
    assert job.launch is not None
    return job.launch


def members(job: Job) -> list[MemberId]:
    return [seat.member for seat in launch(job).seats]


def two_by_two(max_restarts: int = 3) -> Job:
    """Two agents with two workers each, in launch 1."""
    return with_agents(created(size_max=4, max_restarts=max_restarts), X, Y)


def served(max_restarts: int = 3) -> Job:
    """A chief and a parameter server on x, two workers on y, in launch 1."""
    return with_agents(created(size_max=4, roles=CHIEF_AND_PS, max_restarts=max_restarts), X, Y)
