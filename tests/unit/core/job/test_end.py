"""The end of a job, and its answers afterwards."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.assignment import desired_workers
from pliant.core.job.decide import settle_all
from pliant.core.job.next_world import STOP_GRACE_S, next_consequence
from pliant.core.messages import Code, Command, Rejection
from pliant.core.model.job import JobState, Target
from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from pliant.core.model.world import WorldKind
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
    gathered,
    join,
    made,
    new_job,
    poison,
    pump,
    refused,
    report,
    running,
    stopped,
    with_holders,
    world,
)

FINAL = [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED]
final = pytest.mark.parametrize("state", FINAL)


def test_the_states_that_end_a_job_are_three() -> None:
    assert [state for state in JobState if state.ended] == FINAL


def test_a_job_that_no_member_holds_the_state_of_is_cancelled_at_once() -> None:
    for job in (new_job(), gathered(2), with_holders(running(2))):
        cancelled, events = pump(job, m.Cancel("wrong data"))
        assert events == (m.StateChanged(NOW, JobState.CANCELLED, "wrong data"),)
        assert (cancelled.state, cancelled.why) == (JobState.CANCELLED, "wrong data")


def test_a_job_whose_states_are_not_trusted_is_cancelled_at_once() -> None:
    job = replace(running(2), untrusted_after_step=1)
    assert made(job, m.Cancel("wrong data")) == (m.StateChanged(NOW, JobState.CANCELLED, "wrong data"),)


# ----------------------------------------------------------------------------------------- it saves first


def leaving(*names: MemberId, why: str, grace_s: float = STOP_GRACE_S) -> tuple[m.Event, ...]:
    return tuple(m.MemberDraining(NOW, name, grace_s, why, immediate=True) for name in names)


def test_a_cancelled_job_stops_saves_and_ends_when_its_members_have_left() -> None:
    """P2: no committed step is lost while a healthy member holds the state."""
    job, events = pump(running(2, steps=3), m.Cancel("wrong data"))
    assert events == (
        m.StateChanged(NOW, JobState.STOPPING, "wrong data", JobState.CANCELLED),
        *leaving(A, B, why="wrong data"),
    )
    assert (job.state, job.ends_as, job.why) == (JobState.STOPPING, JobState.CANCELLED, "wrong data")
    assert view_of(job, 1, A).immediate
    kept = checkpoint(job.durable)
    job, events = pump(job, m.Publish(A, 1, kept), m.Leave(A, 0, "left as planned"))
    assert (job.state, job.checkpoint) == (JobState.STOPPING, kept)
    job, events = pump(job, m.Leave(B, 0, "left as planned"))
    assert events[-1] == m.StateChanged(NOW, JobState.CANCELLED, "wrong data")
    assert (job.state, job.ends_as) == (JobState.CANCELLED, None)


def test_a_member_that_was_leaving_anyway_keeps_its_grace_period_and_hurries() -> None:
    job = after(running(3), drain(B, 30.0))
    assert made(job, m.Cancel("enough"))[1:] == (
        *leaving(A, why="enough"),
        *leaving(B, why="enough", grace_s=30.0),
        *leaving(C, why="enough"),
    )
    hurried = after(running(2), m.DrainAgent(X, 9.0, "Ctrl-C", immediate=True))
    assert made(hurried, m.Cancel("enough")) == (m.StateChanged(NOW, JobState.STOPPING, "enough", JobState.CANCELLED),)


def test_a_repeated_request_to_cancel_does_not_keep_members_from_saving() -> None:
    """A client sends it again when it received no answer."""
    job = after(running(2), m.Cancel("wrong data"))
    assert made(job, m.Cancel("wrong data")) == ()
    failing = after(running(3, new_job(max_restarts=0)), m.Exited(B, 1))
    assert made(failing, m.Cancel("wrong data")) == ()


def test_a_job_that_is_stopping_does_not_wait_for_its_members_for_ever() -> None:
    failing = after(running(3, new_job(max_restarts=0)), m.Exited(B, 1))
    for job in (after(running(2), m.Cancel("wrong data")), failing):
        assert job.state is JobState.STOPPING
        assert made(job, m.WaitOver()) == (m.StateChanged(NOW, job.ends_as or JobState.RUNNING, job.why),)
    assert failing.ends_as is JobState.FAILED


def test_a_job_that_is_stopping_recovers_only_to_save() -> None:
    job = after(running(3, steps=2), m.Cancel("wrong data"))
    job, events = pump(job, m.Expire(C))
    recovery = world(2, A, B, kind=WorldKind.RECOVERY, base=job.durable, why="c was lost: its lease ran out")
    assert events == (m.MemberGone(NOW, C, "lost", "its lease ran out"), m.WorldFormed(NOW, recovery))
    job = after(job, report(job, A, 2))
    assert (job.state, job.current) == (JobState.STOPPING, 2)


def test_a_job_that_is_stopping_does_not_start_over_when_no_member_has_a_usable_state() -> None:
    job = after(running(2, steps=2), m.Cancel("wrong data"), stopped(A, 1, stateless=True))
    assert (job.state, job.why) == (JobState.CANCELLED, "wrong data")


def test_a_job_that_is_stopping_wants_no_workers_and_takes_no_new_member() -> None:
    job = after(running(2), m.AgentJoin(X, 4), m.Cancel("wrong data"))
    assert desired_workers(job) == {X: 0}
    assert refused(job, join(C)) == Rejection(Code.ENDED, "job demo is stopping: wrong data")
    assert made(job, join(A)) == ()  # sent again


def test_a_failure_of_a_job_that_is_stopping_changes_nothing() -> None:
    job = after(running(2, new_job(max_restarts=0)), m.Cancel("wrong data"))
    assert made(job, m.Exited(B, 1)) == (
        m.WorkerFailed(NOW, B, 1),
        m.MemberGone(NOW, B, "lost", "its process ended with exit code 1"),
    )


def test_a_job_that_commits_its_last_step_while_it_is_stopping_is_finished() -> None:
    job = running(2, steps=11)
    job = after(job, m.Cancel("wrong data"))
    job = after(job, report(job, A, 1, 1))
    assert (job.state, job.why) == (JobState.FINISHED, "all 12 steps are committed")


def test_a_job_that_waited_too_long_saves_and_fails_and_says_for_what() -> None:
    job = after(running(2, new_job(2, wait_limit_s=60.0)), m.Expire(B))
    job, events = pump(job, m.WaitOver())
    why = "waited 60.0 s, the limit: 1 of the 2 workers needed; b was lost: its lease ran out"
    assert events == (m.StateChanged(NOW, JobState.STOPPING, why, JobState.FAILED), *leaving(A, why=why))
    job = after(job, m.Leave(A, 0, "left as planned"))
    assert (job.state, job.why) == (JobState.FAILED, why)


def test_a_job_that_does_not_wait_is_not_failed_for_waiting() -> None:
    """The time ran out just as a member came."""
    job = after(running(2, new_job(2, wait_limit_s=60.0)), m.Expire(B))
    job = after(job, report(job, A, 2), join(C))
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
