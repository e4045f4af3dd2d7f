import pytest

from pliant.core.messages.describe import describe
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, ShardKind
from unit.core.tasks.queue import TERMS, A, X

SHARD = HeldShard(ShardKind.TRAIN, 3, 7, A, 0, 0)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (t.TaskMemberJoined(1.0, A, X, 1, 5, TERMS), "a joined the task queue"),
        (t.ShardsGiven(1.0, (SHARD,)), "a took train shard 3 (attempt 7)"),
        (t.ShardAdvanced(1.0, 7, 4, 0), "attempt 7 processed its records before 4"),
        (t.ShardDone(1.0, A, ShardKind.EVALUATE, 3, 7, 0, 0), "a completed evaluate shard 3 (attempt 7)"),
        (t.ShardReturned(1.0, 7, "a is slow"), "attempt 7 was returned: a is slow"),
        (t.ShardRaised(1.0, A, 7, 4, 0, "ValueError"), "attempt 7 raised on a: ValueError"),
        (t.EvaluationBegun(1.0, 2, 8), "evaluation 2 began after 8 shards"),
        (t.EvaluationDone(1.0, 2, 8, 4, (("loss", 2.0),)), "evaluation 2 is done: 4 records, loss 0.5"),
        (t.EvaluationDone(1.0, 2, 8, 4, ()), "evaluation 2 is done: 4 records"),
        (t.ModelSaved(1.0, A, 3, "mean-3", (4, 7)), "a saved the mean mean-3 with 2 more shards"),
        (t.DataGrown(1.0, 40, complete=False), "the data has 40 records so far"),
        (t.DataGrown(1.0, 41, complete=True), "the data has 41 records, and is complete"),
    ],
)
def test_every_event_has_a_sentence(event: t.TaskEvent, text: str) -> None:
    assert describe(event) == text
