"""Building blocks of tests of the job: members, worlds, ledger lines, and jobs with a history.

Everything a job goes through here goes through `decide`, `evolve` and `settle_all`, as in the coordinator, and is
held to the invariants on the way.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, expected_digest, make_line
from pliant.core.data.sample_order import Order
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import FailingSlots, Job, JobSpec, JobState, Member, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind

A, B, C, D, E, F = (MemberId(name) for name in "abcdef")
NAMES = (A, B, C, D, E, F)
X, Y, Z = (AgentId(name) for name in "xyz")

GRID = Grid(samples=60, batch=10, slots=6, epochs=2)  # 12 steps
ORDER = Order(seed=7, samples=GRID.samples)
TERMS = Terms(GRID, seed=7)
NOW = 5.0

HasSpec = TypeVar("HasSpec", Job, m.Create)


# ------------------------------------------------------------------------------------------------- values


def lines(
    head: Lineage,
    generation: int,
    count: int,
    grid: Grid = GRID,
    order: Order = ORDER,
    state: Callable[[LedgerLine | None], int] = lambda before: 0,
) -> tuple[LedgerLine, ...]:
    """The ledger lines of the `count` steps after `head`, as honest members of `generation` write them.

    `state` gives the hash of the state that a step starts from, from the line before it; None: there is none here.
    """
    made: list[LedgerLine] = []
    for step in range(head.step + 1, head.step + 1 + count):
        digest = expected_digest(grid, order, step)
        before = state(made[-1] if made else None)
        made.append(make_line(head, generation, step, grid.cursor(step), grid.size(step), digest, before))
        head = made[-1].lineage
    return tuple(made)


def world(
    number: int,
    *members: MemberId,
    kind: WorldKind = WorldKind.PLANNED,
    base: Lineage = GENESIS,
    hold: bool = False,
    why: str = "",
    floor: int = 1,
) -> World:
    """A world of a job that began in generation 1, and did not go back since unless `floor` says so."""
    back = number if kind is WorldKind.ROLLBACK else floor
    return World(number, kind, members, (1,) * len(members), base, hold, why, ("",) * len(members), back)


def formed(job: Job, number: int) -> World:
    """The open world with that number."""
    found = job.world(number)
    assert found is not None, f"{number} is not open"
    return found


def member(name: MemberId, number: int, agent: AgentId = X, *, draining: bool = False) -> Member:
    return Member(name, number, agent, draining=draining)


def checkpoint(lineage: Lineage, name: str = "ck") -> Checkpoint:
    return Checkpoint(lineage, name, state=99)


def poison(by: MemberId, step: int = 3, slot: int = 2) -> FailingSlots:
    return FailingSlots(step, (slot,), samples=((17, 4),), member=by, error="ValueError: bad sample")


# ------------------------------------------------------------------------------------------------ commands


def join(
    name: MemberId, agent: AgentId = X, terms: Terms = TERMS, weight: int = 1, address: str = "", pid: int = 0
) -> m.Join:
    return m.Join(name, agent, terms, weight, address, pid)


def drain(name: MemberId, grace_s: float = 30.0, why: str = "spot notice") -> m.Drain:
    return m.Drain(name, grace_s, why)


def report(
    job: Job, by: MemberId, generation: int, count: int = 0, holders: Iterable[MemberId] | None = None
) -> m.Report:
    """That member's report of the next `count` steps of a generation, from its rank there."""
    rank = formed(job, generation).members.index(by)
    held = None if holders is None else frozenset(holders)
    return m.Report(by, rank, generation, lines(job.durable, generation, count), held)


def stopped(by: MemberId, generation: int, *, peer: MemberId | None = None, stateless: bool = False) -> m.Stopped:
    return m.Stopped(by, generation, GENESIS, frozenset(), "the socket closed", peer, stateless)


# ---------------------------------------------------------------------------------------------------- jobs


def made(job: Job, command: Command, now: float = NOW) -> tuple[Event, ...]:
    """The events a command leads to by itself; it must not be refused."""
    decision = decide(job, command, now)
    assert not isinstance(decision, Rejection), decision
    return decision


def refused(job: Job | None, command: Command, now: float = NOW) -> Rejection:
    decision = decide(job, command, now)
    assert isinstance(decision, Rejection), decision
    return decision


def evolved(job: Job | None, *events: Event) -> Job:
    for event in events:
        job = evolve(job, event)
    assert job is not None
    return job


def pump(job: Job, *commands: Command) -> tuple[Job, tuple[Event, ...]]:
    """One batch of commands, as the coordinator takes it: decide each, settle once."""
    before = job
    events: tuple[Event, ...] = ()
    for command in commands:
        decision = made(job, command)
        job = evolved(job, *decision)
        events += decision
    if changes_membership(events):
        job, more = settle_all(job, NOW)
        events += more
    assert all_violations(before, events) == ()
    return job, events


def after(job: Job, *commands: Command) -> Job:
    """The job after these commands, one batch each."""
    for command in commands:
        job, _ = pump(job, command)
    return job


def new_job(
    size_min: int = 1,
    size_max: int = 6,
    target: int | None = None,
    *,
    wait_limit_s: float | None = None,
    max_restarts: int = 3,
) -> Job:
    aim = Target(size_max if target is None else target)
    created = decide(None, m.Create("demo", JobSpec(size_min, size_max, aim, wait_limit_s, max_restarts)), NOW)
    assert not isinstance(created, Rejection), created
    return settle_all(evolved(None, *created), NOW)[0]


def with_spec(thing: HasSpec, **fields: Any) -> HasSpec:
    """A job or a command to create one, with other settings."""
    return replace(thing, spec=replace(thing.spec, **fields))


def gathered(count: int, job: Job | None = None) -> Job:
    """A job whose first world, generation 1, has just formed with that many members, numbered from a on."""
    return pump(job or new_job(), *(join(name) for name in NAMES[:count]))[0]


def running(count: int, job: Job | None = None, steps: int = 0) -> Job:
    """A job that trains in generation 1, every member in it holding the state."""
    job = gathered(count, job)
    return after(job, report(job, A, 1, steps, holders=formed(job, 1).members))


def with_holders(job: Job, *holders: MemberId) -> Job:
    return replace(job, holders=frozenset(holders))


def ended(state: JobState = JobState.FINISHED) -> Job:
    return replace(running(2), state=state, why="done")
