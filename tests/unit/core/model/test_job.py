"""Reading a job: what a member is told, and how a person calls what it does."""

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import Job, JobSpec, JobState, Member, Target, Terms, member_limit
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState, View, member_state, view_of
from unit.core.build import (
    GRID,
    A,
    B,
    C,
    D,
    X,
    after,
    checkpoint,
    drain,
    formed,
    gathered,
    join,
    new_job,
    report,
    running,
    with_spec,
    world,
)


def test_a_rank_is_the_place_in_the_world() -> None:
    two = world(1, B, A)
    assert (two.rank_of(B), two.rank_of(A), two.rank_of(C)) == (0, 1, None)


def test_worlds_are_found_by_number() -> None:
    job = after(running(2), join(C))
    assert job.world(1) == job.worlds[0]
    assert job.world(2) == job.worlds[1] == job.newest
    assert job.world(0) is None
    assert job.world(3) is None
    assert new_job().newest is None


def test_a_world_is_open_while_it_is_listed_and_not_sealed() -> None:
    job = after(running(2), join(C))
    assert [number for number in range(4) if job.is_open(number)] == [1, 2]
    assert [number for number in range(4) if replace(job, sealed=1).is_open(number)] == [2]


def test_a_job_starts_with_nothing() -> None:
    job = Job("demo", JobSpec(1, 2), Target(2))
    assert (job.spec.wait_limit_s, job.spec.max_restarts, job.terms) == (None, 3, None)
    assert (job.state, job.why, job.broken, job.stateless) == (JobState.STARTING, "", "", False)
    assert (job.agents, job.members, job.gone, job.worlds) == ((), {}, (), ())
    assert (job.joined, job.generation, job.current, job.sealed, job.failures) == (0, 0, 0, 0, ())
    assert (job.durable, job.checkpoint) == (GENESIS, None)
    assert Terms(GRID, seed=1).checkpoint_every == 0
    assert Member(A, 1, X) == Member(A, 1, X, weight=1, draining=False, grace_s=0.0, why="")


def test_a_job_has_as_many_slots_as_its_terms_say() -> None:
    assert new_job(1, 9).slots == 9
    assert running(1, new_job(1, 9)).slots == 6


def test_a_member_is_told_all_it_needs() -> None:
    job = running(2, new_job(2), steps=3)
    job = after(job, m.Publish(A, 1, checkpoint(job.durable)), join(C), m.WiringFailed(A, 2, C), m.Expire(C))
    assert view_of(job, 17, A) == View(
        revision=17,
        state=JobState.RUNNING,
        why="c leaves",
        known=True,
        draining=False,
        grace_s=0.0,
        worlds=job.worlds,
        current=1,
        sealed=0,
        unenterable_generations=frozenset({2, 3}),
        gone_in_open_worlds=frozenset({C}),
        holders=frozenset({A, B}),
        durable=job.durable,
        checkpoint=checkpoint(job.durable),
        kept_checkpoints=("ck",),
    )


def test_a_draining_member_is_told_how_long_it_has() -> None:
    job = after(running(2), drain(B, 12.5))
    told = view_of(job, 1, B)
    assert (told.known, told.draining, told.grace_s) == (True, True, 12.5)
    assert not view_of(job, 1, A).draining


def test_a_member_that_is_gone_or_was_never_seen_is_told_so() -> None:
    job = after(running(3), drain(B, 12.5), m.Expire(B))
    for name in (B, D):
        told = view_of(job, 1, name)
        assert (told.known, told.draining, told.grace_s) == (False, False, 0.0)


def test_the_memory_of_the_departed_grows_with_the_job() -> None:
    assert member_limit(new_job(1, 1)) == 68
    assert member_limit(new_job(1, 100)) == 464


def test_a_member_in_a_world_is_active_once_it_holds_the_state() -> None:
    job = gathered(2)
    assert member_state(job, A) is MemberState.JOINING
    job = after(job, report(job, A, 1, holders=(A,)))
    assert (member_state(job, A), member_state(job, B)) == (MemberState.ACTIVE, MemberState.JOINING)


def test_a_member_in_an_older_open_world_is_still_active() -> None:
    job = after(running(3), m.Resize(Target(2)))
    assert C not in formed(job, 2).members
    assert member_state(job, C) is MemberState.ACTIVE


def test_a_member_that_drains_is_draining_wherever_it_is() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C), drain(A), drain(C))
    assert (member_state(job, A), member_state(job, C)) == (MemberState.DRAINING, MemberState.DRAINING)


def test_outside_every_world_a_member_is_joining_or_spare() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    assert member_state(job, C) is MemberState.SPARE
    assert member_state(replace(job, target=Target(3)), C) is MemberState.JOINING
    assert member_state(replace(with_spec(job, size_max=2), target=Target(3)), C) is MemberState.SPARE
    assert member_state(after(new_job(2), join(A)), A) is MemberState.JOINING


def test_a_member_is_called_a_spare_only_once_the_job_has_its_target() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    assert view_of(job, 1, C).spare_why == "the job has its target number of members"
    assert view_of(job, 1, A).spare_why == ""
    assert view_of(replace(job, target=Target(3)), 1, C).spare_why == ""


def test_beyond_the_slots_a_member_is_a_spare() -> None:
    late = MemberId("late")
    job = running(6, new_job(1, 8, 8))
    job = after(job, join(late))
    assert member_state(job, late) is MemberState.SPARE
