"""Pair averaging: a shard is done with a saved mean, and begins again if its member is gone before."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.evolve import evolve
from pliant.core.messages import Code, Event
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import model_peers, view_of
from pliant.core.tasks import messages as t
from pliant.core.tasks.audit import TaskHistory
from pliant.core.tasks.decide import bad_task_terms
from pliant.core.tasks.invariants import task_change_violation
from pliant.core.tasks.member import TaskMember
from pliant.core.tasks.model import UNSAVED_MAX, HeldShard, ModelPeers, ShardKind, TaskTerms
from pliant.core.tasks.pairs import FIRST_PAUSE_S, CopyFacts, SavePace, partner_of, savable, saves
from unit.core.tasks.queue import A, B, C, Queue, X

TERMS = TaskTerms(records=25, records_per_shard=10, shuffled=False, averages=True)  # shards of 10, 10 and 5 records


def averaging(*members: MemberId, terms: TaskTerms = TERMS) -> Queue:
    queue = Queue(terms)
    for member in members:
        queue.tell(t.JoinTasks(member, X, terms, address=f"{member}:1"))
    return queue


def save(member: MemberId, number: int, *attempts: int) -> t.SaveModel:
    return t.SaveModel(member, number, f"mean-{number}-{member}", attempts)


def audited(events: list[Event]) -> TaskHistory:
    history = TaskHistory()
    for event in events:
        history.take(event)
    return history


def test_a_shard_is_done_with_the_save_that_has_it() -> None:
    queue = averaging(A)
    queue.tell(save(A, 1))
    first, second, third = queue.take(A, 3)
    for shard in (first, second, third):
        queue.complete(shard)
        assert queue.complete(shard) == ()  # sent again
    assert queue.tasks.done == 0
    queue.tell(save(A, 2, first.attempt, third.attempt, 99))
    assert (queue.tasks.done, queue.it.furthest_step) == (2, 2)
    assert queue.tell(save(A, 2, first.attempt)) == ()  # sent again
    assert queue.complete(third) == ()  # sent again, and saved meanwhile
    queue.tell(save(A, 3, second.attempt))
    assert queue.ended == (JobState.FINISHED, "all 3 shards of 1 epoch are done")
    audit = audited(queue.events).audit
    assert (audit.wrong, audit.records_done(), audit.repeated_max) == ([], 25, 0)


def test_a_save_has_only_shards_that_are_processed() -> None:
    queue = averaging(A)
    shard = queue.take(A)[0]
    queue.advance(shard, 4)
    queue.tell(save(A, 1, shard.attempt))
    assert queue.tasks.done == 0


def test_a_processed_shard_begins_again_if_its_member_is_lost_before_the_save() -> None:
    queue = averaging(A, B)
    first, second = queue.take(A, 2)
    queue.complete(first)
    queue.advance(second, 14)
    queue.tell(m.Expire(A))
    assert [(shard.number, shard.start) for shard in queue.take(B, 2)] == [(0, 0), (1, 10)]
    for shard in queue.take(B, 2):
        queue.complete(shard)
    last = queue.take(B, 1)[-1]
    queue.complete(last)
    queue.tell(save(B, 1, *(shard.attempt for shard in queue.tasks.held)))
    audit = audited(queue.events).audit
    assert (audit.wrong, audit.records_done(), audit.repeated_max) == ([], 25, 20)


def test_a_late_save_is_refused() -> None:
    queue = averaging(A, B)
    queue.tell(save(A, 1))
    found = queue.refused(save(B, 1))
    assert (found.code, found.why) == (Code.PAST, "save 1 of b is over: 1 are stored")
    assert queue.refused(save(B, 3)).code is Code.PAST
    assert queue.refused(replace(save(B, 2), name="../x")).code is Code.BAD


def test_a_queue_without_averaging_takes_no_save() -> None:
    queue = averaging(A, terms=replace(TERMS, averages=False))
    assert queue.refused(save(A, 1)).code is Code.BAD


def test_shards_that_wait_for_a_save_do_not_count_up_to_a_limit() -> None:
    queue = averaging(A, terms=replace(TERMS, records=1000))
    for count in range(1, UNSAVED_MAX + 1):
        held = queue.take(A, 1)
        assert len(held) == count
        queue.complete(held[-1])
    assert len(queue.take(A, 1)) == UNSAVED_MAX


@pytest.mark.parametrize(
    "terms",
    [
        replace(TERMS, predicts=True),
        replace(TERMS, evaluation_records=5),
        replace(TERMS, growing=True, records=0),
    ],
)
def test_averaging_is_for_training_on_data_of_a_fixed_length(terms: TaskTerms) -> None:
    assert bad_task_terms(terms) == "pair averaging needs training on data of a fixed length, without evaluation"


def test_members_see_the_others_that_stay_and_the_newest_mean() -> None:
    queue = averaging(A, B, C)
    queue.tell(save(A, 1))
    queue.tell(m.Drain(B, 5.0, "why"))
    assert view_of(queue.it, 7, A).model_peers == ModelPeers(3, (A, C), ("a:1", "c:1"), 1, "mean-1-a")
    assert model_peers(averaging(A, terms=replace(TERMS, averages=False)).it) is None


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (t.ModelSaved(1.0, A, 3, "x", ()), "save 3 came after save 0"),
        (t.ModelSaved(1.0, A, 1, "x", (2,)), "save 1 completed (2,), and only [1] were processed"),
        (t.ShardDone(1.0, A, ShardKind.TRAIN, 0, 1, 0, 0), "attempt 1 was completed without a saved model"),
    ],
)
def test_a_bug_of_pair_averaging_breaks_an_invariant(event: t.TaskEvent, says: str) -> None:
    queue = averaging(A)
    first, _ = queue.take(A, 2)
    queue.complete(first)
    after = evolve(queue.it, event).tasks
    assert after is not None
    assert says in task_change_violation(queue.tasks, event, after)


def test_the_audit_finds_a_shard_that_no_mean_has() -> None:
    queue = averaging(A)
    first, second = queue.take(A, 2)
    done = queue.completion(first)
    wrong: list[Event] = [
        t.ShardDone(1.0, A, ShardKind.TRAIN, 0, first.attempt, 0, done.digest),
        t.ModelSaved(1.0, A, 1, "x", (second.attempt,)),
    ]
    found = "\n".join(audited(queue.events + wrong).audit.wrong)
    assert "attempt 1 was completed, and no saved model has all of its records" in found
    assert "attempt 2 was completed, and no saved model has all of its records" in found


# ------------------------------------------------------------------------------------------------- a member


def shard(attempt: int, upto: int = 0) -> HeldShard:
    return HeldShard(ShardKind.TRAIN, attempt - 1, attempt, A, 0, upto)


def test_a_member_keeps_processed_shards_until_they_are_saved_and_takes_others() -> None:
    member = TaskMember(A, 100.0)
    take = member.next_command(0.0)
    assert isinstance(take, t.TakeShards)
    waits = [member.waits]
    member.answered(take, (shard(1), shard(2)), 0.0)
    first = member.next_shard(0.0)
    assert first is not None
    assert [*waits, member.waits] == [True, False]
    member.complete(first, 10, 7, ())
    unsaved = [member.unsaved]
    done = member.next_command(0.0)
    assert isinstance(done, t.CompleteShard)
    member.answered(done, (shard(1, 10), shard(2)), 0.0)  # it is held, and waits for a save
    assert member.next_command(0.0) == take
    unsaved.append(member.unsaved)
    member.answered(take, (shard(1, 10), shard(2), shard(3)), 0.0)
    assert [member.next_shard(0.0), member.next_shard(0.0)] == [shard(2), shard(3)]
    member.answered(take, (shard(2), shard(3)), 0.0)  # it is saved
    assert [*unsaved, member.unsaved] == [(1,), (1,), ()]


def test_a_member_reports_a_save_once_and_ignores_that_another_one_was_first() -> None:
    member = TaskMember(A, 100.0)
    member.save(2, "mean", (1,))
    assert member.has_save
    command = member.next_command(0.0)
    assert command == t.SaveModel(A, 2, "mean", (1,))
    member.refused(command, Code.PAST, "over", 0.0)
    assert (member.has_save, member.is_over) == (False, False)


def test_a_refused_completion_is_not_saved() -> None:
    member = TaskMember(A, 100.0)
    member.complete(shard(1), 10, 7, ())
    command = member.next_command(0.0)
    assert command is not None
    member.refused(command, Code.PAST, "over", 0.0)
    assert member.unsaved == ()


# -------------------------------------------------------------------------------------------- the decisions


def test_partners_are_drawn_among_all_others() -> None:
    peers = ModelPeers(3, (A, B, C), ("", "", ""), 1, "x")
    drawn = [partner_of(peers, A, 0, step) for step in range(300)]
    assert {*drawn} == {B, C}
    assert 120 < drawn.count(B) < 180
    assert drawn != [partner_of(peers, A, 1, step) for step in range(300)]
    assert partner_of(replace(peers, members=(A,)), A, 0, 1) is None
    assert [saves(peers, each) for each in (A, B)] == [True, False]
    assert not saves(replace(peers, members=()), A)


def test_a_mean_has_models_that_were_averaged_with_the_mean_before() -> None:
    peers = ModelPeers(3, (A, B, C), ("", "", ""), 4, "x")
    copies = [CopyFacts(9, 4, (5, 2)), CopyFacts(9, 3, (7,)), CopyFacts(9, 4, ())]
    assert savable(peers, copies) == ([0, 2], (2, 5))


def test_a_save_comes_soon_while_its_member_waits_and_more_rarely_without_anything_to_save() -> None:
    pace = SavePace(10.0, now=0.0)
    assert (pace.due_in_s(4.0, waits=False), pace.due_in_s(4.0, waits=True)) == (6.0, 0.0)
    pace.tried(5.0, saved=False)
    assert pace.due_in_s(5.0, waits=True) == pytest.approx(2 * FIRST_PAUSE_S)
    pace.tried(6.0, saved=True)
    assert pace.due_in_s(6.0, waits=True) == pytest.approx(FIRST_PAUSE_S)
