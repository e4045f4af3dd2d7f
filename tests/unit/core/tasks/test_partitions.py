"""A queue with partitions: offsets become records once, shards name their offsets, and the state stays small."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.messages import Code, Event
from pliant.core.model.job import JobState
from pliant.core.tasks import messages as t
from pliant.core.tasks.audit import TaskAudit, TaskHistory
from pliant.core.tasks.decide import LOSSES_MAX
from pliant.core.tasks.describe import describe_task_event
from pliant.core.tasks.evolve import evolve_tasks
from pliant.core.tasks.invariants import task_change_violation, task_state_violation
from pliant.core.tasks.model import TaskState, TaskTerms
from pliant.core.tasks.partitions import AHEAD_SHARDS, NAME_MAX, PARTITIONS_MAX, RANGES_MAX, KnownOffsets, OffsetRange
from unit.core.tasks.queue import A, B, Queue

TERMS = TaskTerms(records=0, records_per_shard=10, shuffled=False, growing=True)


def seen(**partitions: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(name, *offsets) for name, offsets in partitions.items())


class PartitionedQueue(Queue):
    """A task queue over a queue with partitions, with one member."""

    def __init__(self, terms: TaskTerms = TERMS) -> None:
        super().__init__(terms)
        self.join(A)

    def look(self, *, complete: bool = False, **partitions: tuple[int, int]) -> tuple[Event, ...]:
        events = self.tell(t.GrowData(A, 0, complete, "", seen(**partitions)))
        self.terms = self.tasks.terms
        return events

    @property
    def known(self) -> KnownOffsets:
        assert self.tasks.offsets is not None
        return self.tasks.offsets

    @property
    def audit(self) -> TaskAudit:
        history = TaskHistory()
        for event in self.events:
            history.take(event)
        return history.audit


def test_offsets_become_records_in_the_order_in_which_they_are_seen() -> None:
    queue = PartitionedQueue()
    queue.look(p=(5, 8), q=(0, 4))
    assert (queue.terms.records, queue.take(A)) == (7, ())
    queue.look(p=(5, 20), q=(0, 4), r=(0, 0))
    (shard,) = queue.take(A)
    assert shard.offsets == (OffsetRange("p", 5, 8), OffsetRange("q", 0, 4), OffsetRange("p", 8, 11))
    queue.look(complete=True, p=(9, 20), q=(2, 5), r=(0, 1))
    queue.complete(shard)
    queue.work(A, 2)
    assert queue.it.state is JobState.FINISHED
    audit = queue.audit
    assert (audit.wrong, audit.records_done()) == ([], 21)
    assert audit.offsets is not None
    assert sorted(map(str, audit.offsets.partitions)) == [
        "offsets 0 to 0 of r",
        "offsets 0 to 4 of q",
        "offsets 5 to 19 of p",
    ]


def test_the_end_comes_with_a_report_of_all_that_is_known() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 10), q=(0, 10))
    queue.work(A, 2)
    assert queue.look(complete=True, p=(0, 10)) == ()
    assert queue.look(complete=True, p=(0, 10), q=(0, 9)) == ()
    queue.look(complete=True, p=(0, 10), q=(0, 10))
    assert queue.it.state is JobState.FINISHED


def test_old_reports_change_nothing() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 10), q=(0, 10))
    assert queue.look(p=(0, 10)) == queue.look(p=(0, 3), q=(0, 10)) == ()


def test_a_shard_that_is_given_out_again_names_the_offsets_that_are_left() -> None:
    queue = PartitionedQueue()
    queue.join(B)
    queue.look(p=(0, 5), q=(0, 15))
    first, second = queue.take(A, 2)
    queue.advance(first, 7)
    queue.complete(second)
    queue.fail(first, 8)
    (again,) = queue.take(B)
    assert (again.start, again.offsets) == (8, (OffsetRange("q", 3, 5),))
    queue.fail(again, 8)
    assert queue.ended[0] is JobState.FAILED
    assert queue.ended[1].startswith("records 8 to 9 of epoch 0 (shard 0; offsets 3 to 4 of q) raised on a and on b")


def test_a_shard_that_kills_its_workers_is_named_with_its_offsets() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 10))
    (shard,) = queue.take(A)
    lost = replace(queue.tasks, held=(replace(shard, losses=LOSSES_MAX - 1),))
    queue.change(tasks=lost)
    queue.tell(m.Exited(A, -9))
    assert "(shard 0; offsets 0 to 9 of p), without any progress" in queue.ended[1]


def test_the_state_has_only_the_offsets_of_records_that_are_not_done() -> None:
    queue = PartitionedQueue()
    for stop in range(2, 42, 2):
        queue.look(p=(0, stop), q=(0, stop))
    assert len(queue.known.waiting) == 40
    held = queue.take(A, 4)
    queue.complete(held[1])
    assert len(queue.known.waiting) == 40
    queue.complete(held[0])
    assert (queue.known.first, queue.known.waiting[0]) == (20, OffsetRange("p", 10, 12))
    for shard in held[2:]:
        queue.complete(shard)
    queue.work(A, 4)
    assert (queue.known.waiting, queue.known.first) == ((), 80)
    assert len(queue.known.partitions) == 2


def test_offsets_that_follow_each_other_are_one_range() -> None:
    queue = PartitionedQueue()
    for stop in (3, 5, 9):
        queue.look(p=(0, stop))
    assert queue.known.waiting == (OffsetRange("p", 0, 9),)


def test_much_that_waits_in_a_queue_becomes_records_by_and_by_from_all_partitions() -> None:
    queue = PartitionedQueue()
    ahead = AHEAD_SHARDS * 10
    queue.look(complete=True, p=(0, 50_000), q=(0, 50_000), r=(0, 4), s=(0, 0))
    assert queue.known.stops() == {"p": 3334, "q": 3334, "r": 4, "s": 0}
    for _ in range(3):
        queue.look(complete=True, p=(0, 50_000), q=(0, 50_000), r=(0, 4), s=(0, 0))
    assert queue.terms.records == ahead
    assert not queue.terms.complete
    assert queue.look(p=(0, 50_000)) == ()
    queue.work(A, 3)
    queue.look(p=(0, 50_000), q=(0, 50_000))
    assert queue.terms.records == ahead + 30


def test_a_state_with_many_ranges_takes_no_more() -> None:
    queue = PartitionedQueue()
    waiting = tuple(OffsetRange(name, at, at + 1) for at in range(RANGES_MAX // 2) for name in "pq")
    many = KnownOffsets(seen(p=(0, RANGES_MAX // 2), q=(0, RANGES_MAX // 2)), waiting)
    assert many.new(seen(p=(0, 9000), q=(0, 9000)), 10**6) == ()
    assert queue.tasks.offsets is None


@pytest.mark.parametrize(("given", "done"), [(0, 0), (1, 1)])
def test_offsets_that_were_dropped_before_they_were_given_out_fail_the_job(given: int, done: int) -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 10))
    queue.work(A, done)
    queue.look(p=(14, 30))
    why = "offsets 10 to 13 of p were dropped before they were given out. Keep records longer, or work faster"
    assert queue.ended == (JobState.FAILED, why)


def test_records_after_the_end_fail_the_job() -> None:
    queue = PartitionedQueue()
    queue.look(complete=True, p=(0, 15))
    assert queue.look(complete=True, p=(0, 15)) == ()
    queue.look(p=(0, 16))
    assert queue.ended == (JobState.FAILED, "a sees records that were added after the end of the queue")


def test_reports_that_make_no_sense_are_refused() -> None:
    queue = PartitionedQueue()
    bad = [
        (OffsetRange("p", 3, 2),),
        (OffsetRange("p", -1, 2),),
        (OffsetRange("", 0, 2),),
        (OffsetRange("p" * (NAME_MAX + 1), 0, 2),),
        (OffsetRange("p", 0, 2), OffsetRange("p", 0, 2)),
        tuple(OffsetRange(str(at), 0, 1) for at in range(PARTITIONS_MAX + 1)),
    ]
    for partitions in bad:
        assert queue.refused(t.GrowData(A, 0, partitions=partitions)).code is Code.BAD
    queue.look(p=(0, 5))
    assert "a folder of files" in queue.refused(t.GrowData(A, 7)).why
    folder = Queue(TERMS)
    folder.join(A)
    folder.tell(t.GrowData(A, 7))
    assert "a folder of files" in folder.refused(t.GrowData(A, 0, partitions=seen(p=(0, 5)))).why


def test_offsets_are_described() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 12))
    (shard,) = queue.take(A)
    assert describe_task_event(t.ShardsGiven(1.0, (shard,))) == "a took train shard 0 (attempt 1; offsets 0 to 9 of p)"


def test_the_invariants_see_offsets_that_are_wrong() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 25))
    (shard,) = queue.take(A)

    def violation(state: TaskState) -> str:
        return task_state_violation(state, queue.it.members)

    state, known = queue.tasks, queue.known
    assert violation(state) == ""
    assert "have offsets" in violation(replace(state, offsets=replace(known, first=3)))
    assert "have offsets" in violation(replace(state, offsets=replace(known, waiting=seen(p=(0, 24)))))
    assert "other numbers" in violation(replace(state, offsets=replace(known, partitions=seen(p=(0, 24)))))
    assert "ranges" in violation(replace(state, held=(replace(shard, offsets=seen(p=(0, 9))),)))
    again = t.DataGrown(1.0, 30, complete=False, added=seen(p=(24, 29)))
    assert "were added" in task_change_violation(state, again, evolve_tasks(state, again))


def test_the_audit_sees_offsets_that_are_wrong() -> None:
    queue = PartitionedQueue()
    queue.look(p=(0, 25))
    (shard,) = queue.take(A)
    audit = queue.audit
    audit.feed(t.DataGrown(1.0, 31, complete=False, added=seen(p=(24, 29))))
    audit.feed(t.ShardsGiven(1.0, (replace(shard, number=1, attempt=2, start=10, upto=10, offsets=seen(p=(9, 19))),)))
    assert audit.wrong == [
        "offsets 24 to 28 of p became records, and p had ended at 25",
        "the data grew to 31 records, by another number of offsets",
        "attempt 2 was given offsets 9 to 18 of p, and its records are offsets 10 to 19 of p",
    ]


def test_evaluations_of_a_queue_have_no_offsets() -> None:
    queue = PartitionedQueue(replace(TERMS, evaluation_records=5, evaluate_every=1))
    queue.look(p=(0, 15))
    queue.work(A, 1)
    (shard,) = queue.take(A)
    assert (shard.kind.value, shard.offsets) == ("evaluate", ())
    assert queue.audit.wrong == []
