from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.job import Target
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.audit import WRONG_MAX, TaskAudit, TaskHistory
from pliant.core.tasks.model import ShardKind, TaskTerms, range_digest
from unit.core.tasks.queue import TERMS, A, B, C, Queue


def audited(events: list[Event]) -> TaskAudit:
    return followed(events).audit


def followed(events: list[Event]) -> TaskHistory:
    history = TaskHistory()
    for event in events:
        history.take(event)
    return history


def eventful() -> Queue:
    """A queue with a lost member, one that left, one that was slow, one that raised, and an evaluation."""
    queue = Queue(replace(TERMS, evaluation_records=5))
    queue.join(A, B)
    queue.tell(m.Resize(Target(2)))
    first, _ = queue.take(A, 2)
    queue.advance(first, 4)
    queue.tell(m.Expire(A))  # 6 and 10 records may be repeated
    (slow,) = queue.take(B)
    queue.tell(t.ShardOverdue(slow.attempt, 4))  # 6 more
    (again,) = queue.take(B)
    queue.fail(again, 6)
    queue.join(C)
    queue.advance(queue.take(C)[0], 8)
    queue.tell(m.Leave(C, 0, "drained"))
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    queue.join(last := MemberId("e"))
    while not queue.it.state.ended:
        queue.work(last, 1)
    return queue


def test_a_history_with_faults_is_accounted_for_exactly_once() -> None:
    queue = eventful()
    audit = audited(queue.events)
    assert audit.wrong == []
    assert (audit.missing(), audit.done(ShardKind.TRAIN), audit.done(ShardKind.EVALUATE)) == (0, 6, 2)
    assert audit.records_done() == 50
    assert audit.repeated_max == 22
    assert audit.returned == 5
    empty = TaskAudit()
    assert (empty.missing(), empty.records_done()) == (0, 0)


def test_the_records_of_a_job_that_only_evaluates_are_counted() -> None:
    queue = Queue(TaskTerms(records=0, records_per_shard=10, evaluation_records=15))
    queue.join(A)
    queue.work(A, 1)
    begun = audited(queue.events)
    assert (begun.records_done(), begun.missing()) == (10, 1)
    queue.work(A, 1)
    done = audited(queue.events)
    assert (done.records_done(), done.missing(), done.wrong) == (15, 0, [])


def test_an_evaluation_that_begins_again_repeats_what_was_reported_of_it() -> None:
    queue = Queue(replace(TERMS, evaluation_records=9))
    queue.join(A, B)
    queue.work(A, 3)
    (evaluated,) = queue.take(A)
    queue.advance(evaluated, 4)
    queue.fail(evaluated, 6)
    assert audited(queue.events).repeated_max == 6
    (evaluated,) = queue.take(B)
    queue.advance(evaluated, 5)
    queue.tell(m.Expire(B))
    assert audited(queue.events).repeated_max == 6 + 9


def test_a_history_is_finished_until_another_attempt_begins_and_a_fresh_one_forgets_it() -> None:
    queue = eventful()
    assert followed(queue.events).finished
    queue.tell(m.Create("demo", queue.it.spec, fresh=True))
    again = followed(queue.events)
    assert not again.finished
    assert (again.audit.attempts, again.audit.terms) == (0, None)


def altered(events: list[Event], kind: type[Event], change: Callable[[Event], list[Event]]) -> list[Event]:
    """Alter the first event of a kind."""
    at = next(index for index, event in enumerate(events) if isinstance(event, kind))
    return [*events[:at], *change(events[at]), *events[at + 1 :]]


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (t.ShardDone, lambda e: [replace(e, digest=e.digest ^ 1)], "read other records"),
        (t.ShardAdvanced, lambda e: [replace(e, upto=e.upto + 1)], "read other records"),
        (t.ShardDone, lambda e: [e, e], "completed after it was over"),
        (t.ShardDone, lambda e: [e, t.ShardAdvanced(1.0, e.attempt, e.start, 0)], "reported records after"),
        (m.MemberGone, lambda e: [], "held by two members"),
        (t.ShardReturned, lambda e: [e, e], "returned after it was over"),
        (t.ShardRaised, lambda e: [replace(e, upto=e.upto - 1, digest=0)], "not where it was left"),
    ],
)
def test_a_wrong_history_is_found(kind: type[Event], change: Callable[[Event], list[Event]], says: str) -> None:
    found = audited(altered(eventful().events, kind, change)).wrong
    assert any(says in each for each in found), found


def test_a_shard_that_is_never_done_is_missing_and_one_given_again_is_found() -> None:
    events = eventful().events
    last = max(index for index, event in enumerate(events) if isinstance(event, t.ShardDone) and event.kind == "train")
    assert audited([*events[:last], *events[last + 1 :]]).missing() == 1
    done = events[last]
    assert isinstance(done, t.ShardDone)
    given = next(e for e in events if isinstance(e, t.ShardsGiven) and e.shards[0].attempt == done.attempt)
    again = t.ShardsGiven(9.0, (replace(given.shards[0], attempt=99),))
    assert any("after it was done" in each for each in audited([*events, again]).wrong)


def test_a_returned_shard_of_an_evaluation_begins_again() -> None:
    queue = Queue(replace(TERMS, epochs=1, evaluation_records=10))
    queue.join(A, B)
    queue.work(A, 3)
    (shard,) = queue.take(A)
    queue.advance(shard, 6)
    queue.tell(m.Expire(A))
    (again,) = queue.take(B)
    assert (again.kind, again.start) == (ShardKind.EVALUATE, 0)
    queue.complete(again)
    audit = audited(queue.events)
    assert (audit.wrong, audit.missing(), audit.done(ShardKind.EVALUATE)) == ([], 0, 1)


def test_the_list_of_findings_is_bounded() -> None:
    queue = eventful()
    done = next(event for event in queue.events if isinstance(event, t.ShardDone))
    assert len(audited([*queue.events, *[done] * 50]).wrong) == WRONG_MAX


def test_digests_of_adjoining_ranges_add_up_and_differ_by_epoch_and_kind() -> None:
    parts = range_digest(ShardKind.TRAIN, 1, 3, 7) + range_digest(ShardKind.TRAIN, 1, 7, 20)
    assert parts % 2**64 == range_digest(ShardKind.TRAIN, 1, 3, 20)
    kinds = {range_digest(kind, epoch, 3, 20) for kind in ShardKind for epoch in range(2)}
    assert len(kinds) == 6
