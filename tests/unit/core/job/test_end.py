"""How a job ends, and what it still answers then."""

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.decide import settle_all
from pliant.core.job.next_world import desired_workers, next_consequence
from pliant.core.messages import Code, Command, Rejection
from pliant.core.model.job import JobState, Target
from unit.core.build import (
    NOW,
    A,
    B,
    C,
    X,
    after,
    checkpoint,
    drain,
    ended,
    join,
    made,
    new_job,
    poison,
    pump,
    refused,
    running,
    stopped,
)

FINAL = [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED]
final = pytest.mark.parametrize("state", FINAL)


def test_the_states_that_end_a_job_are_three() -> None:
    assert [state for state in JobState if state.ended] == FINAL


def test_a_user_may_cancel_at_any_time() -> None:
    for job in (new_job(), running(2), after(running(2, new_job(2)), m.Expire(B))):
        cancelled, events = pump(job, m.Cancel("wrong data"))
        assert events == (m.StateChanged(NOW, JobState.CANCELLED, "wrong data"),)
        assert (cancelled.state, cancelled.why) == (JobState.CANCELLED, "wrong data")


def test_a_job_that_waited_too_long_fails_and_says_for_what() -> None:
    job = after(running(2, new_job(2, wait_limit_s=60.0)), m.Expire(B))
    job, events = pump(job, m.WaitOver())
    why = "waited 60.0 s, the limit: 1 of the 2 workers needed; b was lost: its lease ran out"
    assert events == (m.StateChanged(NOW, JobState.FAILED, why),)
    assert job.state is JobState.FAILED


def test_a_job_that_does_not_wait_is_not_failed_for_waiting() -> None:
    """The time ran out just as a member came."""
    job = after(running(2, new_job(2, wait_limit_s=60.0)), m.Expire(B), join(C))
    assert job.state is JobState.RUNNING
    assert made(job, m.WaitOver()) == ()
    assert made(after(new_job(), join(A)), m.WaitOver()) == ()


QUIET: list[Command] = [
    m.Leave(A, 1, "bye"),
    m.Exited(A, 1),
    m.Cancel("again"),
    m.AgentLeave(X),
    m.Expire(A),
    m.AgentExpire(X),
    m.AgentSuspect(X),
    m.WaitOver(),
]
LOUD: list[Command] = [
    join(C),
    m.Report(A, 0, 1, ()),
    stopped(A, 1),
    m.WiringFailed(A, 1, B),
    m.Publish(A, 1, checkpoint(GENESIS)),
    m.Raised(poison(A)),
    m.Suspect(A),
    drain(A),
    m.DrainAgent(X, 1.0, "maintenance"),
    m.Resize(Target(2)),
    m.AgentJoin(X, 1),
    m.AgentReady(X, 1, (20000,)),
]


@final
@pytest.mark.parametrize("command", QUIET, ids=lambda command: type(command).__name__)
def test_an_ended_job_takes_goodbyes_quietly(state: JobState, command: Command) -> None:
    assert made(ended(state), command) == ()


@final
@pytest.mark.parametrize("command", LOUD, ids=lambda command: type(command).__name__)
def test_an_ended_job_refuses_the_rest_and_says_how_it_ended(state: JobState, command: Command) -> None:
    if state is JobState.FINISHED and isinstance(command, m.Publish):
        return  # the last state may still be being saved
    assert refused(ended(state), command) == Rejection(Code.ENDED, f"job demo is {state.value}: done")


@final
def test_nothing_follows_from_an_ended_job(state: JobState) -> None:
    job = ended(state)
    assert next_consequence(job, NOW) == ()
    assert settle_all(job, NOW) == (job, ())


def test_an_ended_job_wants_no_workers() -> None:
    job = after(running(2), m.AgentJoin(X, 4))
    assert desired_workers(job) == {X: 4}
    assert desired_workers(after(job, m.Cancel("enough"))) == {X: 0}
