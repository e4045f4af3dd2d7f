"""Creating and resizing a job; agents offering room."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.decide import decide
from pliant.core.job.validation import SIZE_MAX, WAIT_MAX_S
from pliant.core.messages import Code, Command, Rejection
from pliant.core.model.job import Agent, Job, JobSpec, JobState, Target
from pliant.core.model.names import AgentId
from unit.core.build import (
    NOW,
    A,
    B,
    X,
    Y,
    Z,
    after,
    checkpoint,
    drain,
    evolved,
    join,
    lines,
    made,
    new_job,
    poison,
    refused,
    running,
    stopped,
)


def create(
    size_min: int = 2,
    size_max: int = 4,
    target: Target | None = None,
    wait_limit_s: float | None = 60.0,
    max_restarts: int = 5,
) -> m.Create:
    return m.Create("demo", JobSpec(size_min, size_max, target or Target(3), wait_limit_s, max_restarts))


def test_a_new_job_waits_for_its_first_member() -> None:
    decision = decide(None, create(), NOW)
    assert decision == (m.JobCreated(NOW, "demo", JobSpec(2, 4, Target(3), 60.0, 5)),)
    job = evolved(None, *decision)
    assert job == Job("demo", JobSpec(2, 4, Target(3), 60.0, 5), Target(3), created_at=NOW, state_since=NOW)
    assert job.state is JobState.STARTING
    job = new_job(2, 4)
    assert (job.state, job.why) == (JobState.WAITING, "no member has joined yet")


def test_a_job_asked_for_again_is_the_same_job() -> None:
    job = evolved(None, *_decided(create()))
    assert decide(job, create(), NOW) == ()
    assert decide(job, create(target=Target(4)), NOW) == ()  # the target may have been changed since


@pytest.mark.parametrize(("size_min", "size_max"), [(0, 4), (-1, 4), (4, 3), (1, SIZE_MAX + 1)])
def test_sizes_that_make_no_sense_are_refused(size_min: int, size_max: int) -> None:
    refusal = refused(None, create(size_min, size_max, Target(size_max)))
    why = f"sizes must satisfy 1 <= min <= max <= 100000; got min {size_min}, max {size_max}"
    assert refusal == Rejection(Code.BAD, why)


def test_the_largest_sizes_are_allowed() -> None:
    assert isinstance(decide(None, create(1, SIZE_MAX, Target(SIZE_MAX)), NOW), tuple)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "x" * 64])
def test_a_name_that_would_not_fit_into_an_address_is_refused(name: str) -> None:
    refusal = refused(None, replace(create(), name=name))
    assert refusal.code is Code.BAD
    assert "a name has" in refusal.why


@pytest.mark.parametrize("wait_limit_s", [0.0, -1.0, float("nan"), WAIT_MAX_S * 2])
def test_a_wait_limit_that_makes_no_sense_is_refused(wait_limit_s: float) -> None:
    assert refused(None, create(wait_limit_s=wait_limit_s)).code is Code.BAD
    assert isinstance(decide(None, create(wait_limit_s=WAIT_MAX_S), NOW), tuple)


def test_a_negative_number_of_restarts_is_refused() -> None:
    why = "max_restarts cannot be negative; got -1"
    assert refused(None, create(max_restarts=-1)) == Rejection(Code.BAD, why)
    assert isinstance(decide(None, create(max_restarts=0), NOW), tuple)


def test_the_smallest_sizes_are_allowed() -> None:
    assert decide(None, create(1, 1, Target(1)), NOW) != ()
    assert isinstance(decide(None, create(1, 1, Target(1)), NOW), tuple)
    assert isinstance(decide(None, create(3, 3, Target(3)), NOW), tuple)


@pytest.mark.parametrize("size", [1, 5])
def test_a_target_outside_the_sizes_is_refused(size: int) -> None:
    why = f"the target must lie between min 2 and max 4; got {size}"
    assert refused(None, create(target=Target(size))) == Rejection(Code.BAD, why)
    assert refused(new_job(2, 4), m.Resize(Target(size))) == Rejection(Code.BAD, why)


def test_a_target_may_be_exactly_min_or_max() -> None:
    job = new_job(2, 4, 3)
    for size in (2, 4):
        assert made(job, m.Resize(Target(size))) == (m.TargetChanged(NOW, Target(size)),)
        assert isinstance(decide(None, create(target=Target(size)), NOW), tuple)


@pytest.mark.parametrize("placement", [((X, 1), (Y, 1)), ((X, 2), (Y, 2)), ((X, 4),)])
def test_a_placement_must_add_up_to_the_target(placement: tuple[tuple[AgentId, int], ...]) -> None:
    target = Target(3, placement)
    why = "the placement's counts must add up to the target 3"
    assert refused(None, create(target=target)) == Rejection(Code.BAD, why)
    assert refused(new_job(2, 4), m.Resize(target)) == Rejection(Code.BAD, why)


def test_a_placement_with_a_negative_count_is_refused() -> None:
    target = Target(3, ((X, 4), (Y, -1)))
    why = "a placement's counts cannot be negative"
    assert refused(None, create(target=target)) == Rejection(Code.BAD, why)
    assert refused(new_job(2, 4), m.Resize(target)) == Rejection(Code.BAD, why)


def test_a_placement_may_leave_an_agent_empty() -> None:
    target = Target(3, ((X, 3), (Y, 0)))
    assert made(new_job(2, 4), m.Resize(target)) == (m.TargetChanged(NOW, target),)


def test_resizing_to_the_present_target_changes_nothing() -> None:
    job = new_job(2, 4, 3)
    assert made(job, m.Resize(Target(3))) == ()
    assert made(job, m.Resize(Target(3, ((X, 3),)))) != ()


def test_resizing_keeps_everything_but_the_target() -> None:
    job = new_job(2, 4, 3)
    assert evolved(job, *made(job, m.Resize(Target(2)))).target == Target(2)


EVERYTHING_BUT_CREATE: list[Command] = [
    m.Resize(Target(2)),
    drain(A),
    m.DrainAgent(X, 1.0, "maintenance"),
    m.Cancel("enough"),
    m.AgentJoin(X, 2),
    m.AgentReady(X, 0, (20000, 20001)),
    m.AgentLeave(X),
    join(A),
    m.Report(A, 0, 1, lines(GENESIS, 1, 1)),
    stopped(A, 1),
    m.WiringFailed(A, 1, B),
    m.Raised(poison(A)),
    m.Publish(A, 1, checkpoint(GENESIS)),
    m.Leave(A, 0, "bye"),
    m.Exited(A, 1),
    m.Expire(A),
    m.AgentExpire(X),
    m.AgentSuspect(X),
    m.Suspect(A),
    m.WaitOver(),
]


@pytest.mark.parametrize("command", EVERYTHING_BUT_CREATE, ids=lambda command: type(command).__name__)
def test_nothing_can_be_asked_of_a_job_that_does_not_exist(command: Command) -> None:
    assert refused(None, command) == Rejection(Code.NO_JOB, "there is no such job; create it first")


# -------------------------------------------------------------------------------------------------- agents


def test_an_agent_that_offers_room_is_known() -> None:
    job = new_job()
    assert made(job, m.AgentJoin(X, 2)) == (m.AgentJoined(NOW, X, 2),)
    job = after(job, m.AgentJoin(X, 2), m.AgentJoin(Y, 0))
    assert job.agents == (Agent(X, 2), Agent(Y, 0))


def test_an_agent_that_says_hello_again_changes_nothing() -> None:
    job = after(new_job(), m.AgentJoin(X, 2))
    assert made(job, m.AgentJoin(X, 2)) == ()


def test_an_agent_may_change_its_capacity() -> None:
    job = after(new_job(), m.AgentJoin(X, 2), m.AgentJoin(Y, 1), m.AgentJoin(X, 3))
    assert job.agents == (Agent(Y, 1), Agent(X, 3))


@pytest.mark.parametrize("capacity", [-1, SIZE_MAX + 1])
def test_a_capacity_that_makes_no_sense_is_refused(capacity: int) -> None:
    why = f"an agent's capacity must be 0 to 100000 workers; got {capacity}"
    assert refused(new_job(), m.AgentJoin(X, capacity)) == Rejection(Code.BAD, why)
    assert isinstance(decide(new_job(), m.AgentJoin(X, SIZE_MAX), NOW), tuple)


def test_an_agent_has_a_name_that_fits_into_an_address() -> None:
    assert refused(new_job(), m.AgentJoin(AgentId("a/b"), 1)).code is Code.BAD


def test_an_agent_that_goes_is_forgotten_and_its_workers_are_not() -> None:
    """Rule 19: an agent's lease says nothing about its workers, which have leases of their own."""
    job = after(running(2), m.AgentJoin(X, 2), m.AgentJoin(Y, 2))
    left: list[tuple[Command, str]] = [(m.AgentLeave(X), "it left"), (m.AgentExpire(X), "its lease ran out")]
    for command, why in left:
        lost = isinstance(command, m.AgentExpire)
        assert made(job, command) == (m.AgentGone(NOW, X, why, lost),)
        gone = after(job, command)
        assert gone.agents == (Agent(Y, 2),)
        assert gone.members == job.members
        assert gone.worlds == job.worlds


def test_an_agent_that_no_member_knows_goes_quietly() -> None:
    job = after(new_job(), m.AgentJoin(X, 2))
    assert made(job, m.AgentLeave(Z)) == ()
    assert made(job, m.AgentExpire(Z)) == ()


def _decided(command: m.Create) -> tuple[m.Event, ...]:
    decision = decide(None, command, NOW)
    assert not isinstance(decision, Rejection)
    return decision
