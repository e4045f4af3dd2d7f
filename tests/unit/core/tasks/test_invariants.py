"""Each invariant can fail, and each bug of a queue that could be written breaks one of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.core.job.invariants import change_violations, state_violations
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.evolve import evolve_tasks
from pliant.core.tasks.invariants import task_change_violation, task_state_violation
from pliant.core.tasks.model import ReturnedShard, ShardKind, TaskState
from unit.core.tasks.queue import TERMS, A, B, Queue


def busy() -> Queue:
    """Two shards are done, one is held by each of two members, and one is returned."""
    queue = Queue()
    queue.join(A, B)
    queue.work(A, 2)
    queue.take(A, 2)
    queue.take(B)
    queue.tell(t.ShardOverdue(4, 0))
    return queue


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda s: replace(s, held=(*s.held, replace(s.held[0], attempt=2))), "held or returned twice"),
        (lambda s: replace(s, returned=(*s.returned, ReturnedShard(ShardKind.TRAIN, 2, 20))), "held or returned twice"),
        (lambda s: replace(s, returned=(*s.returned, ReturnedShard(ShardKind.TRAIN, 5, 20))), "never given out"),
        (lambda s: replace(s, returned=(*s.returned, ReturnedShard(ShardKind.EVALUATE, 0, 0))), "never given out"),
        (lambda s: replace(s, held=tuple(replace(each, attempt=3) for each in s.held)), "not unique"),
        (lambda s: replace(s, attempts=1), "above the newest"),
        (lambda s: replace(s, held=(replace(s.held[0], member=MemberId("z")),)), "is not a member"),
        (lambda s: replace(s, held=(replace(s.held[0], upto=99),)), "outside of its records"),
        (
            lambda s: replace(
                s,
                given=20,
                attempts=20,
                terms=replace(TERMS, epochs=9),
                held=tuple(
                    replace(s.held[0], number=at, attempt=at + 1, start=r.start, upto=r.start)
                    for at in range(9)
                    for r in [TERMS.range_of(ShardKind.TRAIN, at)]
                ),
                returned=(),
            ),
            "more than 8 shards",
        ),
    ],
)
def test_a_wrong_state_is_found(wrong: Callable[[TaskState], TaskState], says: str) -> None:
    queue = busy()
    assert task_state_violation(queue.tasks, queue.it.members) == ""
    assert says in task_state_violation(wrong(queue.tasks), queue.it.members)
    queue.change(tasks=wrong(queue.tasks))
    assert any(says in each for each in state_violations(queue.it))


def test_a_wrong_change_is_found() -> None:
    queue = busy()
    state = queue.tasks
    shard = state.held[0]
    done = t.ShardDone(1.0, shard.member, shard.kind, shard.number, shard.attempt, shard.start, 0)
    assert task_change_violation(state, done, evolve_tasks(state, done)) == ""
    for wrong in (replace(done, member=B), replace(done, attempt=99), replace(done, number=5)):
        assert "which it did not hold" in task_change_violation(state, wrong, evolve_tasks(state, done))
    assert "were done" in task_change_violation(state, done, replace(state, given=3))
    again = replace(shard, number=3, attempt=6, start=0, upto=0)
    assert (
        task_change_violation(state, t.ShardsGiven(1.0, (again,)), evolve_tasks(state, t.ShardsGiven(1.0, (again,))))
        == ""
    )
    skipping = t.ShardsGiven(1.0, (replace(again, start=2, upto=2),))
    assert "not where it was left" in task_change_violation(state, skipping, evolve_tasks(state, skipping))
    repeated = t.ShardsGiven(1.0, (replace(again, number=0),))
    assert "not where it was left" in task_change_violation(state, repeated, state)
    before = queue.it
    after = replace(before, tasks=replace(state, given=3))
    assert any("were done" in each for each in change_violations(before, done, after))


def test_an_event_before_the_first_member_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be TaskMemberJoined"):
        evolve_tasks(None, t.ShardReturned(1.0, 1, "x"))
