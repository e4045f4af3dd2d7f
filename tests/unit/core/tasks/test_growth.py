"""Growing data: shards as records come, the end with the mark, and what is refused."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.messages import Code, Event
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.audit import TaskAudit, TaskHistory
from pliant.core.tasks.invariants import task_change_violation, task_state_violation
from pliant.core.tasks.model import ShardKind, TaskTerms
from unit.core.tasks.queue import A, B, Queue, X

GROWING = TaskTerms(records=0, records_per_shard=10, shuffled=False, growing=True)


class GrowingQueue(Queue):
    """A queue of growing data with one member."""

    def __init__(self, terms: TaskTerms = GROWING, member: MemberId = A) -> None:
        super().__init__(terms)
        self.join(member)

    def grow(self, records: int, *, complete: bool = False, error: str = "") -> tuple[Event, ...]:
        events = self.tell(t.GrowData(A, records, complete, error))
        self.terms = self.tasks.terms
        return events

    @property
    def audit(self) -> TaskAudit:
        history = TaskHistory()
        for event in self.events:
            history.take(event)
        return history.audit


def test_shards_are_given_once_all_their_records_are_there() -> None:
    queue = GrowingQueue()
    assert queue.take(A) == ()
    queue.grow(9)
    assert queue.take(A) == ()
    queue.grow(25)
    assert [(shard.number, shard.start) for shard in queue.take(A, 8)] == [(0, 0), (1, 10)]
    for shard in queue.tasks.held:
        queue.complete(shard)
    assert queue.take(A) == ()
    assert (queue.it.state, queue.audit.missing(), queue.audit.records_done()) == (JobState.RUNNING, 0, 20)


def test_the_last_shard_is_short_and_the_job_ends_with_it() -> None:
    queue = GrowingQueue()
    queue.grow(25)
    queue.work(A, 2)
    queue.grow(25, complete=True)
    queue.work(A, 1)
    assert queue.ended == (JobState.FINISHED, "all 3 shards of 1 epoch are done")
    assert (queue.audit.wrong, queue.audit.missing(), queue.audit.records_done()) == ([], 0, 25)


@pytest.mark.parametrize("records", [0, 20])
def test_the_mark_ends_a_job_that_has_done_all(records: int) -> None:
    queue = GrowingQueue()
    queue.grow(records)
    queue.work(A, records // 10)
    assert not queue.it.state.ended
    queue.grow(records, complete=True)
    assert queue.it.state is JobState.FINISHED


def test_what_another_member_reported_before_changes_nothing() -> None:
    queue = GrowingQueue()
    queue.grow(25)
    assert queue.grow(25) == queue.grow(11) == ()
    queue.grow(30, complete=True)
    assert queue.grow(30, complete=True) == queue.grow(12) == ()


def test_the_evaluation_of_growing_data_is_at_the_end() -> None:
    queue = GrowingQueue(replace(GROWING, evaluation_records=5))
    queue.grow(25)
    queue.work(A, 2)
    assert not queue.is_evaluating()
    queue.grow(25, complete=True)
    queue.work(A, 1)
    assert queue.is_evaluating()
    queue.work(A, 1)
    assert queue.it.state is JobState.FINISHED


def test_evaluations_can_come_while_the_data_grows() -> None:
    queue = GrowingQueue(replace(GROWING, evaluation_records=5, evaluate_every=1))
    queue.grow(15)
    queue.work(A, 1)
    assert queue.is_evaluating()


@pytest.mark.parametrize(("records", "complete"), [(19, True), (31, False), (31, True)])
def test_records_that_vanish_or_come_after_the_end_fail_the_job(records: int, complete: bool) -> None:
    queue = GrowingQueue()
    queue.grow(30, complete=records > 30)
    queue.grow(records, complete=complete)
    assert queue.ended == (
        JobState.FAILED,
        f"a sees {records} records, and 30 were known before: some were removed, or added after the end",
    )


def test_data_that_cannot_be_used_fails_the_job() -> None:
    queue = GrowingQueue()
    queue.grow(0, error="part-1 is damaged")
    assert queue.ended == (JobState.FAILED, "a cannot use the data: part-1 is damaged")


def test_reports_that_make_no_sense_are_refused() -> None:
    assert queue_of_fixed_length().refused(t.GrowData(A, 5)).code is Code.BAD
    queue = GrowingQueue()
    assert queue.refused(t.GrowData(A, -1)).code is Code.BAD
    assert queue.refused(t.GrowData(B, 5)).code is Code.UNKNOWN
    for wrong in ({"records": 5}, {"complete": True}, {"shuffled": True}, {"epochs": 2}):
        refused = Queue().refused(t.JoinTasks(A, X, replace(GROWING, **wrong)))
        assert "growing data has one epoch" in refused.why


def queue_of_fixed_length() -> Queue:
    queue = Queue()
    queue.join(A)
    return queue


def test_a_member_that_joins_later_finds_the_records() -> None:
    queue = GrowingQueue()
    queue.grow(25)
    queue.terms = GROWING
    queue.join(B)
    assert queue.tasks.terms.records == 25
    assert [shard.number for shard in queue.take(B, 8)] == [0, 1]


def test_a_job_that_is_started_again_knows_its_records() -> None:
    queue = GrowingQueue()
    queue.grow(25, complete=True)
    queue.work(A, 1)
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    queue.terms = replace(GROWING, deadline_s=9.0)
    queue.join(B)
    queue.terms = queue.tasks.terms
    assert (queue.terms.records, queue.terms.complete, queue.terms.deadline_s) == (25, True, 9.0)
    queue.work(B, 2)
    assert queue.it.state is JobState.FINISHED
    assert (queue.audit.wrong, queue.audit.records_done()) == ([], 25)


def test_the_invariants_see_growth_that_is_wrong() -> None:
    queue = GrowingQueue()
    queue.grow(25)
    queue.take(A, 2)
    state = queue.tasks
    fewer = replace(state, terms=replace(state.terms, records=15))
    assert "only 1 have all their records" in task_state_violation(fewer, queue.it.members)
    grown = t.DataGrown(1.0, 15, complete=False)
    assert "had 25 records, and has 15" in task_change_violation(state, grown, fewer)
    complete = replace(state, terms=replace(state.terms, complete=True))
    assert "had 25 records" in task_change_violation(complete, grown, complete)
    assert task_change_violation(state, t.DataGrown(1.0, 25, complete=True), complete) == ""


def test_the_audit_sees_growth_that_is_wrong() -> None:
    queue = GrowingQueue()
    queue.grow(25)
    (shard,) = queue.take(A)
    audit = queue.audit
    audit.feed(t.ShardsGiven(1.0, (replace(shard, number=2, start=20, upto=20, attempt=2),)))
    audit.feed(t.DataGrown(1.0, 10, complete=True))
    audit.feed(t.DataGrown(1.0, 30, complete=True))
    assert audit.wrong == [
        "train shard 2 was given out, and its records were not there",
        "the data grew from 25 to 10 records",
        "the data grew from 10 to 30 records",
    ]
    assert audit.terms is not None
    assert audit.terms.kind is ShardKind.TRAIN
