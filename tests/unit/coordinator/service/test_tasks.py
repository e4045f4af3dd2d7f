"""Shards and their deadlines in the coordinator's service."""

from pliant.coordinator.service.inbox import Accepted, Sender, truncate_texts
from pliant.coordinator.service.pump import Service
from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Mode
from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, TaskTerms
from pliant.stores.memory import MemoryStore

A, B = MemberId("a"), MemberId("b")
TERMS = TaskTerms(records=100, records_per_shard=10, shuffled=False, deadline_s=4.0)


class Coordinator:
    """A service with a clock of its own, and a task queue with two members."""

    def __init__(self) -> None:
        self.service = Service(MemoryStore("one"), "me", lambda: self.now, lease_ttl_s=10.0)
        self.now = 0.0
        self.tell(m.Create("demo", JobSpec(1, 4, mode=Mode.TASKS)))
        for member in (A, B):
            self.tell(t.JoinTasks(member, AgentId("x"), TERMS))

    def tell(self, command: m.Command) -> Accepted:
        assert self.service.submit("demo", command, 1)
        (reply,) = self.service.pump(self.now).replies
        assert isinstance(reply.answer, Accepted), reply.answer
        return reply.answer

    def wait(self, seconds: float) -> None:
        """Let time pass, as a coordinator that pumps often and hears from both members does."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for member in (A, B):
                self.service.note_renewal("demo", Sender("member", member), self.now)
            self.service.pump(self.now)

    @property
    def held(self) -> tuple[HeldShard, ...]:
        found = self.service.job("demo")
        assert found is not None
        assert found[0].tasks is not None
        return found[0].tasks.held


def test_the_answer_has_the_shards_of_the_sender() -> None:
    one = Coordinator()
    first = one.tell(t.TakeShards(A, 2)).shards
    assert first is not None
    assert [shard.number for shard in first] == [0, 1]
    assert one.tell(t.TakeShards(A, 2)).shards == first
    assert one.tell(t.TakeShards(B, 1)).shards == one.held[2:]
    assert one.tell(m.Resize(one.service.job("demo")[0].target)).shards is None  # type: ignore[index]


def test_a_shard_without_progress_is_returned_at_its_deadline_and_progress_starts_the_time_again() -> None:
    one = Coordinator()
    one.tell(t.TakeShards(A, 1))
    one.wait(3.0)
    one.tell(t.AdvanceShard(A, 1, 5, 0))
    one.wait(3.0)
    assert [shard.upto for shard in one.held] == [5]
    one.wait(2.0)
    assert one.held == ()
    shards = one.tell(t.TakeShards(B, 1)).shards
    assert shards is not None
    assert (shards[0].number, shards[0].start) == (0, 5)


def test_a_long_error_is_truncated() -> None:
    short = truncate_texts(t.FailShard(A, 1, 0, 0, "x" * 5000))
    assert isinstance(short, t.FailShard)
    assert len(short.error) < 2100
