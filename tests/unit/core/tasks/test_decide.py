from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.accounting.activity import Category, categories_of
from pliant.core.messages import Code
from pliant.core.model.job import JobSpec, JobState, Mode, member_limit
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState, member_state
from pliant.core.tasks import decide as rules
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HELD_MAX, ShardKind, TaskTerms
from unit.core.build import TERMS as LIVE_TERMS
from unit.core.tasks.queue import TERMS, A, B, C, D, Queue, X


def test_shards_are_given_in_order_and_the_job_finishes_when_all_are_done() -> None:
    queue = Queue()
    queue.join(A, B)
    assert queue.ended == (JobState.RUNNING, "shards are given out")
    (first,) = queue.take(A)
    (second,) = queue.take(B)
    assert [(each.number, each.attempt, each.start) for each in (first, second)] == [(0, 1, 0), (1, 2, 10)]
    assert member_state(queue.it, A) is MemberState.ACTIVE
    queue.join(C)
    assert categories_of(queue.it, (A, C)) == {A: Category.TRAINING, C: Category.SPARE}
    queue.complete(first)
    assert member_state(queue.it, A) is MemberState.SPARE
    queue.complete(second)
    assert queue.tasks.done == 2
    queue.work(A, 3)
    events = queue.complete(queue.take(B)[0])
    assert queue.ended == (JobState.FINISHED, "all 6 shards of 2 epochs are done")
    assert isinstance(events[0], t.ShardDone)
    assert queue.refused(t.TakeShards(A, 1)).code is Code.ENDED
    assert queue.tell(t.ShardOverdue(1, 0)) == ()


def test_the_last_shard_of_an_epoch_is_shorter_and_epochs_have_orders_of_their_own() -> None:
    assert [TERMS.range_of(ShardKind.TRAIN, number).stop for number in range(6)] == [10, 20, 25] * 2
    shuffled = replace(TERMS, records=1000, shuffled=True)
    orders = [
        [shuffled.range_of(ShardKind.TRAIN, epoch * 100 + place).start for place in range(100)] for epoch in range(2)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(0, 1000, 10))
    assert orders[0] != orders[1]


def test_a_member_holds_as_many_shards_as_it_asks_for_and_no_more() -> None:
    queue = Queue()
    queue.join(A)
    assert [each.number for each in queue.take(A, 2)] == [0, 1]
    assert queue.tell(t.TakeShards(A, 2)) == ()
    assert [each.number for each in queue.take(A, 8)] == [0, 1, 2, 3, 4, 5]
    assert queue.tell(t.TakeShards(A, 8)) == ()  # none is left
    for count in (0, HELD_MAX + 1):
        assert queue.refused(t.TakeShards(A, count)).code is Code.BAD


def test_nothing_is_given_below_the_smallest_size_nor_to_a_member_that_leaves() -> None:
    queue = Queue(spec=JobSpec(2, 4, mode=Mode.TASKS))
    queue.join(A)
    assert queue.ended == (JobState.WAITING, "1 of the 2 workers needed")
    assert queue.take(A) == ()
    queue.join(B)
    assert queue.take(A)
    queue.tell(m.Drain(B, 5.0, "spot"))
    assert queue.take(B) == ()
    assert queue.it.state is JobState.WAITING


def test_the_end_of_a_member_returns_its_shards_from_where_it_reported() -> None:
    queue = Queue()
    queue.join(A, B)
    first, second = queue.take(A, 2)
    queue.advance(first, 4)
    assert queue.advance(first, 4) == ()
    assert queue.advance(first, 3) == ()
    queue.tell(m.Expire(A))
    again = queue.take(B, 2)
    assert [(each.number, each.start, each.attempt) for each in again] == [(0, 4, 3), (1, 10, 4)]
    late = queue.refused(queue.completion(second))
    assert (late.code, "gone for good" in late.why) == (Code.GONE, True)
    queue.join(C)
    stolen = replace(queue.completion(again[0]), member=C)
    assert "attempt 3 of c is over" in queue.refused(stolen).why
    queue.complete(again[0])
    queue.complete(again[1])
    assert queue.tasks.done == 2


def test_a_repeated_report_changes_nothing() -> None:
    queue = Queue()
    queue.join(A)
    (shard,) = queue.take(A)
    queue.complete(shard)
    assert queue.tell(queue.completion(shard)) == ()
    queue.work(A, 1)
    assert queue.refused(queue.completion(shard)).code is Code.PAST
    queue.join(A)


def test_a_shard_without_progress_is_given_to_another_member() -> None:
    queue = Queue(replace(TERMS, deadline_s=30.0))
    queue.join(A, B)
    (slow,) = queue.take(A)
    queue.advance(slow, 3)
    assert queue.tell(t.ShardOverdue(slow.attempt, slow.start)) == ()  # it made progress since
    (event,) = queue.tell(t.ShardOverdue(slow.attempt, 3))
    assert event == t.ShardReturned(5.0, slow.attempt, "a made no progress for 30 s")
    (again,) = queue.take(B)
    assert (again.number, again.start, again.losses) == (0, 3, 0)
    assert queue.refused(t.AdvanceShard(A, slow.attempt, 5, 0)).code is Code.PAST
    assert queue.tell(t.ShardOverdue(slow.attempt, 3)) == ()
    assert Queue().tell(t.ShardOverdue(1, 0)) == ()  # before any member joined


def test_a_shard_that_raises_on_two_members_fails_the_job_and_names_the_records() -> None:
    queue = Queue()
    queue.join(A, B)
    (first,) = queue.take(A)
    queue.fail(first, 7)
    assert queue.fail(first, 7) == ()  # sent again
    assert [each.number for each in queue.take(A)] == [1]  # another member tries it
    (again,) = queue.take(B)
    assert (again.number, again.start) == (0, 7)
    queue.fail(again, 7, "ValueError: worse")
    assert queue.ended == (
        JobState.FAILED,
        "records 7 to 9 of epoch 0 (shard 0) raised on a and on b: ValueError: worse",
    )


def test_a_shard_that_raised_is_given_to_the_same_member_if_there_is_no_other() -> None:
    queue = Queue()
    queue.join(A)
    (shard,) = queue.take(A)
    queue.fail(shard, 2)
    (again,) = queue.take(A)
    assert (again.number, again.start) == (0, 2)
    queue.fail(again, 1)  # a position before the reported one does not count
    assert queue.tasks.returned[0].upto == 2
    assert queue.it.state is JobState.RUNNING
    assert queue.refused(t.FailShard(A, 99, 0, 0, "x")).code is Code.PAST


def test_a_shard_that_ends_every_worker_fails_the_job() -> None:
    queue = Queue(spec=JobSpec(1, 8, mode=Mode.TASKS, max_restarts=100))
    members = [MemberId(f"m{at}") for at in range(rules.LOSSES_MAX + 1)]
    for at, member in enumerate(members):
        queue.join(member)
        (shard,) = queue.take(member)
        assert (shard.number, shard.losses) == (0, max(at - 1, 0))
        if at == 0:
            queue.advance(shard, 5)
        queue.tell(m.Expire(member))
        if at == 0:
            assert queue.tasks.returned[0].losses == 1
            queue.change(tasks=replace(queue.tasks, returned=(replace(queue.tasks.returned[0], losses=0),)))
    state, why = queue.ended
    assert state is JobState.FAILED
    assert why.startswith("8 workers in a row were lost while they processed records 5 to 9 of epoch 0 (shard 0)")


def test_a_worker_that_exits_without_leaving_is_lost_if_it_holds_a_shard() -> None:
    queue = Queue()
    queue.join(A, B)
    queue.take(A)
    lost, left = (queue.tell(m.Exited(member, 0)) for member in (A, B))
    assert [event.how for event in (*lost, *left) if isinstance(event, m.MemberGone)] == ["lost", "left"]
    assert queue.it.losses_without_progress == 1
    queue.join(C)
    queue.work(C, 1)
    assert queue.it.losses_without_progress == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"records": 9}, "not all of them"),
        ({"digest": -1}, "a digest must be"),
        ({"sums": (("loss", float("nan")),)}, "finite"),
        ({"sums": (("loss", 1.0), ("loss", 2.0))}, "different names"),
        ({"sums": tuple((str(at), 1.0) for at in range(65))}, "up to 64"),
        ({"sums": (("x" * 64, 1.0),)}, "up to 63 characters"),
        ({"member": B}, "not a member of the task queue"),
    ],
)
def test_a_wrong_completion_is_refused(change: dict[str, object], why: str) -> None:
    queue = Queue()
    queue.join(A)
    (shard,) = queue.take(A)
    assert why in queue.refused(replace(queue.completion(shard), **change)).why  # type: ignore[arg-type]


@pytest.mark.parametrize(("upto", "digest"), [(-1, 0), (11, 0), (5, 2**64)])
def test_a_wrong_position_is_refused(upto: int, digest: int) -> None:
    queue = Queue()
    queue.join(A)
    (shard,) = queue.take(A)
    assert queue.refused(t.AdvanceShard(A, shard.attempt, upto, digest)).code is Code.BAD
    if upto > 0:
        assert queue.refused(t.FailShard(A, shard.attempt, upto, digest, "x")).code is Code.BAD


def test_evaluations_come_between_training_shards_and_their_sums_add_up() -> None:
    terms = replace(TERMS, evaluation_records=15, evaluate_every=2)  # evaluation shards of 10 and 5
    queue = Queue(terms)
    queue.join(A, B)
    assert queue.tasks.open_evaluation_shards == 0
    queue.work(A, 1)
    train, ahead = queue.take(A, 2)
    events = queue.complete(train)
    assert events[1:] == (t.EvaluationBegun(5.0, 0, 2),)
    one = queue.take(B)[0]
    assert (one.kind, one.number, one.start) == (ShardKind.EVALUATE, 0, 0)
    both = queue.take(A, 2)  # held already: a training shard; then the rest of the evaluation
    assert [(each.kind, each.number) for each in both] == [(ShardKind.TRAIN, 2), (ShardKind.EVALUATE, 1)]
    queue.complete(ahead)
    queue.complete(one, (("loss", 2.0),))
    done = queue.complete(queue.tasks.held_by(A)[0], (("loss", 1.0), ("right", 4.0)))
    assert done[1:] == (t.EvaluationDone(5.0, 0, 2, 15, (("loss", 3.0), ("right", 4.0))),)
    queue.work(B, 1)
    assert queue.is_evaluating()  # after four shards
    queue.work(B, 2)
    assert not queue.is_evaluating()
    queue.work(B, 2)
    assert queue.it.state is JobState.RUNNING  # all is trained, and the last evaluation is due
    queue.work(B, 2)
    assert queue.ended == (JobState.FINISHED, "all 6 shards of 2 epochs are done")
    assert queue.tasks.evaluations == 3


def test_evaluations_that_come_due_during_one_are_made_as_one_after_it() -> None:
    queue = Queue(replace(TERMS, evaluation_records=5, evaluate_every=1))
    queue.join(A, B)
    held = queue.take(A, 4)
    for shard in held:
        queue.complete(shard)
    assert queue.tasks.evaluations == 1
    events = queue.complete(queue.take(B)[0])
    assert [type(event) for event in events] == [t.ShardDone, t.EvaluationDone, t.EvaluationBegun]
    assert queue.tasks.evaluated_after == 4


def test_without_an_interval_each_epoch_is_evaluated_and_the_last_records_always_are() -> None:
    queue = Queue(replace(TERMS, evaluation_records=5))
    queue.join(A)
    queue.work(A, 3)
    assert queue.is_evaluating()
    queue.work(A, 4)
    assert queue.is_evaluating()
    assert queue.tasks.done == 6
    odd = Queue(replace(TERMS, epochs=1, evaluation_records=5, evaluate_every=2))
    odd.join(A)
    odd.work(A, 3)
    odd.work(A, 1)
    assert odd.is_evaluating()
    assert odd.tasks.evaluated_after == 3
    odd.work(A, 1)
    assert odd.it.state is JobState.FINISHED


def test_a_returned_evaluation_shard_is_given_before_training_shards() -> None:
    queue = Queue(replace(TERMS, evaluation_records=5, evaluate_every=1))
    queue.join(A, B, C)
    queue.work(A, 1)
    train, evaluate = queue.take(B)[0], queue.take(C)[0]
    assert [train.kind, evaluate.kind] == [ShardKind.EVALUATE, ShardKind.TRAIN]
    queue.tell(m.Expire(B))
    assert queue.tasks.open_evaluation_shards == 1
    assert queue.take(A)[0].kind is ShardKind.EVALUATE


def test_a_prediction_is_one_pass_without_evaluation() -> None:
    queue = Queue(TaskTerms(records=3, records_per_shard=10, predicts=True))
    queue.join(A)
    (shard,) = queue.take(A)
    assert shard.kind is ShardKind.PREDICT
    queue.complete(shard)
    assert queue.ended == (JobState.FINISHED, "all 1 shards of 1 epoch are done")


def test_a_job_without_records_to_train_on_is_one_evaluation() -> None:
    queue = Queue(TaskTerms(records=0, records_per_shard=10, evaluation_records=15))
    queue.join(A, B)
    assert queue.is_evaluating()
    assert queue.tasks.wanted_done == 0
    (first,), (second,) = queue.take(A), queue.take(B)
    queue.advance(first, 4)
    queue.tell(m.Expire(A))
    queue.complete(second, (("loss", 1.0),))
    assert queue.tasks.wanted_done == 1
    (again,) = queue.take(B)
    assert (again.kind, again.start) == (ShardKind.EVALUATE, 0), "the sums of a lost member are lost"
    events = queue.complete(again, (("loss", 2.0),))
    assert [each.sums for each in events if isinstance(each, t.EvaluationDone)] == [(("loss", 3.0),)]
    assert queue.ended == (JobState.FINISHED, "the evaluation is done")
    assert queue.tasks.wanted_done == 2


def test_an_evaluation_that_was_cancelled_goes_on_with_the_shards_that_are_left() -> None:
    queue = Queue(TaskTerms(records=0, records_per_shard=10, evaluation_records=15))
    queue.join(A)
    queue.work(A, 1)
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    queue.join(B)
    queue.work(B, 1)
    assert queue.ended == (JobState.FINISHED, "the evaluation is done")


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (replace(TERMS, records=0), "1 to"),
        (replace(TERMS, records=0, evaluation_records=5), "only evaluates has one epoch"),
        (replace(TERMS, records=0, evaluation_records=5, epochs=1, evaluate_every=2), "only evaluates has one epoch"),
        (replace(TERMS, evaluation_records=-1), "1 to"),
        (replace(TERMS, records_per_shard=0), "records_per_shard must be 1 or more"),
        (replace(TERMS, epochs=0), "epochs must be"),
        (replace(TERMS, evaluate_every=-1), "evaluate_every 0 or more"),
        (replace(TERMS, predicts=True), "one epoch and no evaluation"),
        (replace(TERMS, predicts=True, epochs=1, evaluation_records=3), "one epoch and no evaluation"),
        (replace(TERMS, deadline_s=0.0), "deadline_s must be above 0"),
        (replace(TERMS, deadline_s=float("nan")), "deadline_s must be above 0"),
        (replace(TERMS, extra=(("a", "1"), ("a", "2"))), "different names"),
        (replace(TERMS, extra=(("a", "1" * 256),)), "up to 255 characters"),
        (replace(TERMS, extra=tuple((str(at), "") for at in range(33))), "up to 32 pairs"),
    ],
)
def test_terms_that_cannot_work_are_refused(terms: TaskTerms, why: str) -> None:
    assert why in Queue().refused(t.JoinTasks(A, X, terms)).why


def test_members_must_agree_on_the_terms() -> None:
    queue = Queue()
    queue.join(A)
    other = queue.refused(t.JoinTasks(B, X, replace(TERMS, seed=3)))
    assert other.code is Code.MISMATCH
    assert other.why.startswith("b would work with seed 3 where the job has 0: pass the job's value")
    assert other.why.endswith("or start over with --fresh")
    longer = t.JoinTasks(B, X, replace(TERMS, epochs=3))
    assert "other members work now" in queue.refused(longer).why
    queue.take(A, 4)
    queue.tell(m.Leave(A, 0, "done"))
    assert "4 shards were given out already" in queue.refused(t.JoinTasks(B, X, replace(TERMS, epochs=1))).why
    queue.tell(longer)
    assert queue.tasks.terms.epochs == 3
    assert len(queue.tasks.returned) == 4


def test_a_worker_joins_the_kind_of_job_that_there_is() -> None:
    live = Queue(spec=JobSpec(1, 4, mode=Mode.LIVE))
    assert "demo is a live job" in live.refused(t.JoinTasks(A, X, TERMS)).why
    auto = Queue(spec=JobSpec(1, 4, mode=Mode.AUTO))
    auto.tell(m.Join(A, X, LIVE_TERMS))
    assert "demo is a live job" in auto.refused(t.JoinTasks(B, X, TERMS)).why
    tasks = Queue(spec=JobSpec(1, 4, mode=Mode.AUTO))
    tasks.join(A)
    assert tasks.it.is_live
    assert "its mode is tasks" in tasks.refused(m.Join(B, X, LIVE_TERMS)).why
    assert "its mode is tasks" in Queue().refused(m.Join(B, X, LIVE_TERMS)).why
    assert "cannot have roles" in Queue().refused(m.Create("y", JobSpec(1, 4, mode=Mode.TASKS, roles=(("ps", 1),)))).why


def test_a_member_that_is_gone_or_has_a_bad_name_or_is_one_too_many_is_refused() -> None:
    queue = Queue(spec=JobSpec(1, 1, mode=Mode.TASKS))
    queue.join(A)
    queue.tell(m.Leave(A, 0, "done"))
    assert queue.refused(t.JoinTasks(A, X, TERMS)).code is Code.GONE
    assert queue.refused(t.TakeShards(A, 1)).code is Code.GONE
    assert queue.refused(t.JoinTasks(MemberId("-"), X, TERMS)).code is Code.BAD
    assert queue.refused(t.JoinTasks(B, AgentId(""), TERMS)).code is Code.BAD
    for at in range(member_limit(queue.it)):
        queue.join(MemberId(f"m{at}"))
    assert "far more than its largest size" in queue.refused(t.JoinTasks(D, X, TERMS)).why


def test_members_beyond_the_wanted_number_of_their_agent_are_drained_the_youngest_first() -> None:
    queue = Queue()
    queue.tell(m.AgentJoin(X, 4))
    queue.join(A, B, C)
    queue.tell(t.JoinTasks(D, AgentId("stranger"), TERMS))
    queue.tell(m.Resize(replace(queue.it.target, size=1)))
    assert [each.id for each in queue.it.members.values() if each.draining] == [B, C]
    assert queue.take(A)


def test_a_job_that_stops_ends_at_once() -> None:
    queue = Queue()
    queue.join(A)
    queue.tell(m.Cancel("enough"))
    assert queue.ended == (JobState.CANCELLED, "enough")
    assert queue.refused(t.JoinTasks(B, X, TERMS)).code is Code.ENDED
    stopping = Queue()
    stopping.join(A)
    stopping.change(state=JobState.STOPPING, ends_as=JobState.FAILED)
    assert stopping.refused(t.JoinTasks(B, X, TERMS)).code is Code.ENDED
    stopping.join(A)
    stopping.tell(m.Expire(A))
    assert stopping.it.state is JobState.FAILED


def test_another_attempt_goes_on_with_the_shards_that_are_left() -> None:
    queue = Queue()
    queue.join(A, B)
    queue.work(A, 2)
    (shard,) = queue.take(B)
    queue.advance(shard, 23)
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    assert queue.tasks.done == 2
    queue.join(C)
    (again,) = queue.take(C)
    assert (again.number, again.start, again.attempt) == (2, 23, 4)
    queue.complete(again)
    queue.work(C, 3)
    assert queue.it.state is JobState.FINISHED
    queue.tell(m.Create("demo", queue.it.spec))
    assert queue.it.tasks is None  # a finished queue begins again


def test_another_attempt_with_fewer_epochs_finishes_if_they_are_done() -> None:
    queue = Queue()
    queue.join(A)
    queue.work(A, 3)
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    queue.join(B, terms=replace(TERMS, epochs=1))
    assert queue.ended == (JobState.FINISHED, "all 3 shards of 1 epoch are done")


def test_another_attempt_with_fewer_epochs_makes_the_evaluation_that_is_left() -> None:
    terms = replace(TERMS, evaluation_records=5, evaluate_every=100)
    queue = Queue(terms)
    queue.join(A)
    queue.work(A, 3)
    queue.tell(m.Cancel("enough"))
    queue.tell(m.Create("demo", queue.it.spec))
    queue.terms = replace(terms, epochs=1)
    queue.join(B)
    assert queue.is_evaluating()
    queue.work(B, 1)
    assert queue.ended == (JobState.FINISHED, "all 3 shards of 1 epoch are done")
