"""The story of a job: one line for each change, and nothing else."""

import pytest

from pliant.cli.run.narrator import CHECKPOINT_LINE_S, Narrator
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.messages.commands import SCHEDULED
from pliant.core.model.job import JobState, Target
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from unit.core.build import NOW, TERMS, A, B, C, checkpoint, lines, member, poison


class Story:
    """A narrator with a clock, and the lines it told so far."""

    def __init__(self) -> None:
        self.now = 0.0
        self.narrator = Narrator("own", lambda: self.now)

    def tell(self, *events: m.Event) -> list[str]:
        return [line.text for event in events for line in self.narrator.narrate(event)]

    def enters(
        self, number: int, *members: MemberId, kind: WorldKind = WorldKind.PLANNED, base: Lineage = GENESIS
    ) -> list[str]:
        world = World(number, kind, members, (1,) * len(members), base)
        return self.tell(m.WorldFormed(NOW, world), m.WorldEntered(NOW, number))


@pytest.fixture
def story() -> Story:
    return Story()


def test_training_starts_grows_loses_a_worker_and_shrinks(story: Story) -> None:
    assert story.enters(2, A, kind=WorldKind.ROLLBACK) == ["training starts with 1 worker"]
    assert story.enters(3, A, B) == ["training goes on with 2 workers (b joined)"]
    assert story.tell(m.TargetChanged(NOW, Target(3))) == ["resizing to 3 workers"]
    scheduled = m.TargetChanged(NOW, Target(3), "scheduled from step 9")
    assert story.tell(scheduled) == ["resizing to 3 workers (scheduled from step 9)"]
    assert story.enters(4, A, B, C) == ["training goes on with 3 workers (c joined)"]
    lost = m.MemberGone(NOW, B, "lost", "its process ended with signal 9")
    assert story.tell(m.WorldBroken(NOW, 4, True, "b died"), lost) == [
        "worker b was lost (its process ended with signal 9)"
    ]
    assert story.enters(5, A, C, kind=WorldKind.RECOVERY) == ["training goes on with 2 workers"]
    assert story.tell(m.MemberGone(NOW, C, "left", "drained")) == []
    assert story.enters(6, A) == ["training goes on with 1 worker (c left)"]
    assert story.enters(7, A, kind=WorldKind.RECOVERY) == [], "the same members"


def test_a_rollback_names_its_step(story: Story) -> None:
    base = lines(GENESIS, 1, 4)[-1].lineage
    assert story.enters(2, A, B, kind=WorldKind.ROLLBACK, base=base) == ["training resumes at step 4 with 2 workers"]
    story.tell(m.MemberJoined(NOW, member(C, 3), TERMS))
    assert story.enters(3, A, B, kind=WorldKind.ROLLBACK, base=base) == [
        "training resumes at step 4 of 12 with 2 workers"
    ]


def test_a_machine_that_comes_later_tells_how_many_train(story: Story) -> None:
    assert story.tell(m.WorldEntered(NOW, 8)) == [], "it was formed before this agent came"
    assert story.enters(9, A, B, C) == ["training with 3 workers"]


def test_a_world_that_was_never_entered_is_no_news(story: Story) -> None:
    story.enters(2, A, kind=WorldKind.ROLLBACK)
    unused = World(3, WorldKind.PLANNED, (A, B), (1, 1), GENESIS)
    assert story.tell(m.WorldFormed(NOW, unused)) == []
    assert story.enters(4, A, B, C) == ["training goes on with 3 workers (b, c joined)"]


def test_scheduled_checkpoints_are_told_once_a_minute_and_requested_ones_always(story: Story) -> None:
    saved = m.CheckpointPublished(NOW, 1, checkpoint(GENESIS))
    due = m.CheckpointRequested(NOW, 1, SCHEDULED)
    assert story.tell(due, saved) == ["checkpoint saved: step 0"]
    assert story.tell(due, saved) == []
    assert story.tell(m.CheckpointRequested(NOW, 1, "requested with pliant checkpoint"), saved) == [
        "checkpoint saved: step 0"
    ]
    story.now += CHECKPOINT_LINE_S
    assert story.tell(due, saved) == ["checkpoint saved: step 0"]


def test_a_plain_script_starts_and_starts_again(story: Story) -> None:
    seats = tuple(Seat(MemberId(f"x-g1.{rank}"), AgentId("x"), "worker", f"x:{rank}") for rank in range(2))
    assert story.tell(m.Launched(NOW, Launch(1, seats, "the job starts"))) == ["the script starts with 2 workers"]
    ends = [m.SeatEnded(NOW, 1, SeatEnd(seats[0].member, 0)), m.SeatEnded(NOW, 1, SeatEnd(seats[1].member, -9))]
    assert story.tell(*ends) == ["x-g1.1 ended with signal 9"]
    again = m.Launched(NOW, Launch(2, seats[:1], "x-g1.1 ended with signal 9"))
    assert story.tell(again) == ["the script starts again with 1 worker (x-g1.1 ended with signal 9)"]


def test_other_machines_are_told_and_this_one_is_not(story: Story) -> None:
    events = [m.AgentJoined(NOW, AgentId(name), 1) for name in ("own", "other")]
    assert story.tell(*events) == ["agent other joined (1 worker slot)"]


def test_states_between_are_not_told_and_ends_are(story: Story) -> None:
    assert story.tell(m.StateChanged(NOW, JobState.RUNNING, "b joins")) == []
    assert story.tell(m.StateChanged(NOW, JobState.FAILED, "b: KeyError")) == ["the job failed: b: KeyError"]


def test_problems_are_marked(story: Story) -> None:
    events = (m.SlotRaised(NOW, poison(A)), m.CheckpointFailed(NOW, 1, "ck", A, "the disk is full"))
    assert all(line.problem for event in events for line in story.narrator.narrate(event))


def test_the_lowest_rank_is_that_of_the_world_or_of_the_launch(story: Story) -> None:
    assert story.narrator.first_rank([B, A]) == B, "nothing is known yet"
    seats = tuple(Seat(name, AgentId("x"), "worker", "x:1") for name in (A, B))
    story.tell(m.Launched(NOW, Launch(1, seats, "the job starts")))
    assert story.narrator.first_rank([B, A]) == A
    story.enters(2, B, A, kind=WorldKind.ROLLBACK)
    assert story.narrator.first_rank([A, B]) == B
    assert story.narrator.first_rank([MemberId("stranger"), A]) == A
