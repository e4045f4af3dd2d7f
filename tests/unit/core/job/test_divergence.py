"""Members that should have the same bits have not: who is believed, who goes, what is given up."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.divergence import DIVERGENCES_MAX, PAIR_DISPUTES
from pliant.core.job.evolve import DISPUTE_STEPS, DISPUTES_KEPT
from pliant.core.messages import SlotDisputed, StatesDiffered
from pliant.core.model.job import Dispute, Disputed, Job, JobState, StateDivergence
from pliant.core.model.names import MemberId
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    TERMS,
    A,
    B,
    C,
    after,
    checkpoint,
    evolved,
    formed,
    join,
    made,
    new_job,
    pump,
    report,
)

OTHER = "rank 1 holds another state than the ranks before it"
DIFFER = f"members hold different states after step 2: {OTHER}"
CORRUPT = "its state differs from that of most members after step 2: silent corruption"


def verifying(count: int, verify: int = 1, steps: int = 2, checkpoint_of: int = 1) -> Job:
    """A job that trains in generation 1, with a checkpoint of an earlier step, and verifies states every so often."""
    terms = replace(TERMS, verify=verify)
    job = pump(new_job(), *(join(name, terms=terms) for name in (A, B, C)[:count]))[0]
    holders = formed(job, 1).members
    if checkpoint_of:
        job = after(job, report(job, A, 1, checkpoint_of, holders=holders))
        job = after(job, m.Publish(A, 1, checkpoint(job.durable)))
    return after(job, report(job, A, 1, steps - checkpoint_of, holders=holders))


def differing(job: Job, by: MemberId, *suspects: MemberId, generation: int = 1) -> m.Stopped:
    return m.Stopped(by, generation, job.durable, frozenset(), OTHER, diverged=True, suspects=suspects)


def test_a_replica_that_differs_is_evicted_by_majority() -> None:
    job = verifying(3)
    job, events = pump(job, differing(job, A, B))
    assert events[:2] == (StatesDiffered(NOW, 1, 2, (B,), False, DIFFER), m.MemberGone(NOW, B, "lost", CORRUPT))
    [world] = job.worlds
    assert (world.kind, world.members, world.base) == (WorldKind.RECOVERY, (A, C), job.durable)
    assert (job.durable.step, job.state, B in job.gone) == (2, JobState.RUNNING, True)


def test_the_suspects_own_word_is_as_good() -> None:
    job = verifying(3)
    assert made(job, differing(job, B, B)) == made(job, differing(job, A, B))


def test_states_that_are_not_compared_in_every_step_may_have_spoilt_the_others() -> None:
    job = verifying(3, verify=5)
    job, events = pump(job, differing(job, A, B))
    assert events[:2] == (StatesDiffered(NOW, 1, 2, (B,), True, DIFFER), m.MemberGone(NOW, B, "lost", CORRUPT))
    [world] = job.worlds
    assert (world.kind, world.members, world.base.step) == (WorldKind.ROLLBACK, (A, C), 1)
    assert world.why == f"{DIFFER}: back to step 1, the last step that all members agreed on; 1 step is recomputed"
    assert (job.durable.step, job.untrusted_after_step) == (1, None)


def test_without_a_majority_no_member_goes_and_all_go_back() -> None:
    job = verifying(2)
    job, events = pump(job, differing(job, A))
    assert events[0] == StatesDiffered(NOW, 1, 2, (), True, DIFFER)
    [world] = job.worlds
    assert (world.kind, world.members, world.base.step) == (WorldKind.ROLLBACK, (A, B), 1)


def test_without_a_checkpoint_the_last_agreed_state_is_the_first() -> None:
    job = verifying(2, checkpoint_of=0)
    job = pump(job, differing(job, A))[0]
    assert (job.worlds[0].base.step, job.durable.step) == (0, 0)
    assert job.worlds[0].why.endswith(
        "back to step 0, the last step that all members agreed on; 2 steps are recomputed"
    )


def test_going_back_to_where_they_are_says_that_no_step_is_computed_again() -> None:
    job = verifying(2, steps=2, checkpoint_of=2)
    job = pump(job, differing(job, A))[0]
    assert job.worlds[0].why == f"{DIFFER}: back to step 2, the last step that all members agreed on"


def test_a_majority_cannot_be_suspect() -> None:
    """The member that says so misread the words: no member goes."""
    job = verifying(3)
    [event] = made(job, differing(job, A, B, C))
    assert isinstance(event, StatesDiffered)
    assert (event.suspects, event.rolls_back) == ((), True)


def test_only_members_of_that_world_are_suspect() -> None:
    job = after(verifying(3), join(MemberId("z"), terms=replace(TERMS, verify=1)))
    [event] = made(job, differing(job, A, MemberId("z"), MemberId("stranger")))
    assert isinstance(event, StatesDiffered)
    assert event.suspects == ()


def test_several_who_tell_of_one_difference_are_counted_once() -> None:
    job = verifying(3)
    job, events = pump(job, differing(job, A, B), differing(job, C, B))
    assert len([event for event in events if isinstance(event, StatesDiffered)]) == 1
    assert job.state_divergences == (StateDivergence(1, 2),)


def test_a_failure_and_a_difference_told_together_make_one_recovery() -> None:
    job = verifying(3)
    failed = m.Stopped(C, 1, job.durable, frozenset(), "a collective failed")
    job, _ = pump(job, failed, differing(job, A, B))
    assert [(world.members, world.why) for world in job.worlds] == [((A, C), DIFFER)]


@pytest.mark.parametrize("verify", [0, 1])
def test_members_that_differ_again_and_again_fail_the_job(verify: int) -> None:
    """A machine's mistake does not come back at one place; what user code does on one member alone does."""
    job = verifying(2, verify)
    for generation in range(1, (DIVERGENCES_MAX if verify else 1)):
        job = pump(job, differing(job, A, generation=generation))[0]
        assert job.state is JobState.RUNNING
    last = job.worlds[-1].number
    job = pump(job, differing(job, A, generation=last))[0]
    assert job.state is JobState.FAILED
    assert "must do the same on every member" in job.why


def test_once_the_history_got_beyond_it_a_difference_is_forgotten() -> None:
    job = verifying(2)
    for generation in (1, 2):
        job = pump(job, differing(job, A, generation=generation))[0]
    assert len(job.state_divergences) == DIVERGENCES_MAX - 1
    job = after(job, report(job, A, 3, 3, holders=(A, B)))
    assert job.durable.step == 4
    job = pump(job, differing(job, A, generation=3))[0]
    assert (job.state, job.state_divergences) == (JobState.RUNNING, (StateDivergence(3, 4),))


def test_a_recovery_after_a_rollback_no_member_entered_knows_of_it() -> None:
    job = verifying(2)
    job = pump(job, differing(job, A))[0]
    job = after(job, m.WiringFailed(A, 2, None))
    [world] = job.worlds
    assert (world.kind, world.rollback_generation) == (WorldKind.RECOVERY, 2)


def test_a_world_whose_words_were_compared_was_entered_and_stays_broken() -> None:
    """No member had reported that the switch was made; the report comes after the word that states differ."""
    job = after(verifying(2), join(C, terms=replace(TERMS, verify=1)))
    assert (job.current, job.generation) == (1, 2)
    late = report(job, A, 2, holders=(A, B))
    job, events = pump(job, differing(job, A, generation=2), late)
    assert events[0] == m.WorldEntered(NOW, 2)
    assert (job.worlds[0].kind, job.worlds[0].number) == (WorldKind.ROLLBACK, 3)


# ----------------------------------------------------------------------------------------------------- disputes


def disputing(job: Job, by: MemberId, *disputes: Dispute) -> m.Stopped:
    """That member's word, in the newest world, that gradients differ."""
    return m.Stopped(by, job.generation, job.durable, frozenset(), "gradients differ", disputes=disputes)


def gone(events: tuple[m.Event, ...]) -> list[tuple[MemberId, str]]:
    return [(event.member, event.why) for event in events if isinstance(event, m.MemberGone)]


def test_a_dispute_is_remembered_and_the_step_is_computed_again_by_all() -> None:
    job = verifying(3)
    job, events = pump(job, disputing(job, A, Dispute(4, A, B)))
    assert events[:2] == (
        SlotDisputed(NOW, Disputed(1, 3, Dispute(4, A, B))),
        m.WorldBroken(NOW, 1, True, "a stopped in 1: slot 4 of step 3 has different gradients on a and on b"),
    )
    [world] = job.worlds
    assert (world.kind, world.members, world.base) == (WorldKind.RECOVERY, (A, B, C), job.durable)
    assert job.disputes == (Disputed(1, 3, Dispute(4, A, B)),)


def test_all_who_tell_of_a_dispute_tell_of_one() -> None:
    job = verifying(3)
    found = (Dispute(4, A, B), Dispute(5, B, A))
    job, events = pump(job, disputing(job, A, *found), disputing(job, B, *found), disputing(job, C, *found))
    assert len([event for event in events if isinstance(event, SlotDisputed)]) == 1


def test_who_is_in_dispute_with_two_others_is_not_believed() -> None:
    job = verifying(3)
    job = after(job, disputing(job, A, Dispute(4, A, B)))
    job, events = pump(job, disputing(job, C, Dispute(1, C, B)))
    assert gone(events) == [(B, "its gradients differ from those of a and of c")]
    assert job.disputes == ()
    assert [world.members for world in job.worlds] == [(A, C)]


def test_two_disputes_of_one_step_are_as_good() -> None:
    job = verifying(3)
    _, events = pump(job, disputing(job, A, Dispute(4, A, B), Dispute(0, B, C)))
    assert gone(events) == [(B, "its gradients differ from those of a and of c")]


def test_one_goes_at_a_time_the_one_with_most_against_it_or_the_youngest() -> None:
    """Disputes of the remaining members are resolved without those of a member that is gone."""
    job = verifying(3)
    job, events = pump(job, disputing(job, A, Dispute(4, A, B), Dispute(0, B, C), Dispute(1, C, A)))
    assert gone(events) == [(C, "its gradients differ from those of a and of b")]
    assert [each.dispute for each in job.disputes] == [Dispute(4, A, B)]


def test_of_two_with_no_other_member_to_ask_the_younger_goes_in_the_end() -> None:
    job = verifying(2)
    for times in range(1, PAIR_DISPUTES + 1):
        job, events = pump(job, disputing(job, A, Dispute(4, B, A)))
        why = "its gradients differed 3 times from those of a, and it is the younger of the two"
        assert gone(events) == ([(B, why)] if times == PAIR_DISPUTES else [])


def test_a_dispute_of_long_ago_is_forgotten() -> None:
    job = verifying(3)
    old = Disputed(1, 3, Dispute(4, A, B))
    job = replace(job, disputes=(old,), durable=replace(job.durable, step=old.step + DISPUTE_STEPS - 1))
    _, events = pump(job, disputing(job, C, Dispute(1, C, B)))
    assert gone(events) == []
    job = replace(job, durable=replace(job.durable, step=old.step + DISPUTE_STEPS - 2))
    _, events = pump(job, disputing(job, C, Dispute(1, C, B)))
    assert [name for name, _ in gone(events)] == [B]


def test_so_many_are_remembered() -> None:
    job = verifying(3)
    old = Disputed(1, 2, Dispute(4, A, B))
    job = evolved(replace(job, disputes=(old,) * DISPUTES_KEPT), SlotDisputed(NOW, Disputed(1, 3, Dispute(1, A, B))))
    assert (len(job.disputes), job.disputes[-1].step) == (DISPUTES_KEPT, 3)


def test_two_who_err_with_others_each_go_both() -> None:
    job = verifying(3)
    terms = replace(TERMS, verify=1)
    d, e, f = (MemberId(name) for name in "def")
    job = after(job, join(d, terms=terms), join(e, terms=terms), join(f, terms=terms))
    job = after(job, report(job, A, job.generation, holders=formed(job, job.generation).members))
    pairs = ((A, B), (C, A), (d, e), (f, d))
    _, events = pump(job, disputing(job, A, *(Dispute(slot, *pair) for slot, pair in enumerate(pairs))))
    assert [name for name, _ in gone(events)] == [d, A]


@pytest.mark.parametrize("dispute", [Dispute(1, A, A), Dispute(1, A, MemberId("z"))])
def test_a_dispute_with_oneself_or_a_stranger_is_none(dispute: Dispute) -> None:
    job = verifying(3)
    job, events = pump(job, disputing(job, A, dispute))
    assert isinstance(events[0], m.WorldBroken)
    assert (job.disputes, gone(events)) == ((), [])
