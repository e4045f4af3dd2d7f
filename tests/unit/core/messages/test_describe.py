"""Every event has words, and they say what a person would want to know."""

from typing import get_args

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Event, SlotDisputed, StatesDiffered
from pliant.core.messages.commands import SCHEDULED
from pliant.core.messages.describe import NAMES_MAX, describe
from pliant.core.model.job import Dispute, Disputed, JobSpec, JobState, Member, Target
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.ps.messages import ServerEvent
from pliant.core.tasks.messages import TaskEvent
from unit.core.build import NOW, TERMS, A, B, checkpoint, lines, poison

SEAT = Seat(MemberId("x-g4.0"), AgentId("x"), "worker", "10.0.0.1:20000")
MANY = tuple(MemberId(f"m{i}") for i in range(NAMES_MAX + 3))


def world(members: tuple[MemberId, ...], *, hold: bool = False) -> World:
    return World(4, WorldKind.PLANNED, members, (1,) * len(members), GENESIS, hold, "b joined")


TOLD: dict[Event, str] = {
    m.JobCreated(NOW, "demo", JobSpec(1, 4, Target(2))): "job demo created: 1 to 4 workers, 2 wanted",
    m.JobCreated(NOW, "demo", JobSpec(1, 4, Target(2)), attempt=2): (
        "job demo created, attempt 2: 1 to 4 workers, 2 wanted"
    ),
    m.SettingsChanged(NOW, JobSpec(1, 5), Target(5), "--workers 1:4 -> 1:5"): "settings changed: --workers 1:4 -> 1:5",
    m.TargetChanged(NOW, Target(3)): "target changed to 3",
    m.Granted(
        NOW, 2, "2 of 8: b beside it has 6 of 8 slots"
    ): "2 workers granted: 2 of 8: b beside it has 6 of 8 slots",
    m.PriceChanged(NOW, 0.25): "a slot costs 0.25 an hour",
    m.Advised(NOW, 4, "it scales", True): "4 workers advised: it scales",
    m.AgentJoined(NOW, AgentId("x"), 2): "agent x joined (2 worker slots)",
    m.WorkersPermitted(NOW, AgentId("x"), (A, B)): "agent x may start a, b",
    m.PermitReturned(NOW, A): "a has ended; its slot of the pool is free",
    m.AgentGone(NOW, AgentId("x"), "it left"): "agent x left",
    m.AgentGone(NOW, AgentId("x"), "its lease ran out", lost=True): "agent x was lost: its lease ran out",
    m.MemberGone(NOW, A, "left", "drained"): "a left: drained",
    m.AgentReadied(NOW, AgentId("x"), (20000,)): "all workers of x have ended",
    m.AgentDraining(NOW, AgentId("x"), 30.0, "a spot notice"): "agent x drains within 30 s: a spot notice",
    m.Launched(NOW, Launch(4, (SEAT,), "x leaves")): "generation 4 launched: x-g4.0 (x leaves)",
    m.SeatEnded(NOW, 4, SeatEnd(SEAT.member, -9)): "x-g4.0 ended with signal 9",
    m.SeatEnded(NOW, 4, SeatEnd(SEAT.member, 1, "ValueError")): "x-g4.0 ended with exit code 1",
    m.SeatRefilled(NOW, 4, 2, MemberId("x-g4.2.1")): "x-g4.2.1 took rank 2",
    m.LaunchOver(NOW, 4, "x leaves"): "generation 4 was stopped: x leaves",
    m.MemberJoined(NOW, Member(A, 1, AgentId("x")), TERMS): "a joined",
    m.MemberDraining(NOW, A, 30.0, "a spot notice"): "a drains within 30 s: a spot notice",
    m.MemberGone(NOW, A, "lost", "its lease ran out"): "a was lost: its lease ran out",
    m.WorldFormed(NOW, world((A, B))): "generation 4 formed (planned): a, b (b joined)",
    m.WorldFormed(NOW, world((A,), hold=True)): "generation 4 formed (planned, holding): a (b joined)",
    m.WorldEntered(NOW, 4): "generation 4 became current",
    m.WorldBroken(NOW, 4, True, "a died"): "generation 4 broke: a died",
    StatesDiffered(NOW, 4, 7, (A,), False, "states differ"): "generation 4 broke: states differ",
    SlotDisputed(NOW, Disputed(4, 7, Dispute(3, A, B))): "slot 3 of step 7 has different gradients on a and on b",
    m.PairAccused(NOW, 4, A, B): "a and b could not reach one another in generation 4",
    m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 2)): "steps up to 2 are committed (reported by a in generation 1)",
    m.HoldersChanged(NOW, 4, frozenset({B, A})): "the state is held by a, b",
    m.HoldersChanged(NOW, 4, frozenset(MANY)): "the state is held by m0, m1, m10, m2, m3, m4, m5, m6 and 3 more",
    m.CheckpointPublished(NOW, 1, checkpoint(GENESIS)): "checkpoint saved: step 0",
    m.PartWritten(NOW, 1, A, checkpoint(GENESIS), 1, 3): "a wrote part 2 of 3 of the checkpoint of step 0",
    m.CheckpointRequested(NOW, 7, SCHEDULED): "saving a checkpoint at step 7 or later (scheduled)",
    m.CheckpointFailed(NOW, 1, "ck", A, "the disk is full"): (
        "checkpoint ck failed: a could not write its part: the disk is full"
    ),
    m.CheckpointUnreadable(
        NOW, 1, "ck", A, "a bit is another", damaged=True
    ): "checkpoint ck is damaged: a bit is another",
    m.CheckpointUnreadable(NOW, 1, "ck", A, "no such file", damaged=False): (
        "checkpoint ck cannot be read by a: no such file"
    ),
    m.SlotRaised(NOW, poison(A)): "slot 2 of step 3 raised on a: ValueError: bad sample",
    m.WorkerFailed(NOW, A, 1): "a failed (exit code 1)",
    m.StateChanged(NOW, JobState.RUNNING, "2 members train"): "the job is running: 2 members train",
    m.StateChanged(NOW, JobState.FAILED, "b: ValueError"): "the job failed: b: ValueError",
    m.StateChanged(NOW, JobState.CANCELLED, "enough"): "the job was cancelled: enough",
}


@pytest.mark.parametrize("event", TOLD, ids=lambda event: type(event).__name__)
def test_an_event_is_told_in_one_phrase(event: Event) -> None:
    assert describe(event) == TOLD[event]


def test_no_event_is_left_without_words() -> None:
    of_tasks = {*get_args(TaskEvent), *get_args(ServerEvent)}  # tests/unit/core/tasks and ps have theirs
    assert {type(event) for event in TOLD} == set(get_args(Event)) - of_tasks
