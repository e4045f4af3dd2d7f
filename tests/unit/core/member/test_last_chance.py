"""A member whose time runs out while no world works saves what it alone may have (rule 16)."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.signals import GraceShort, Save, Send, Snapshot, Tick, WriteFailed
from pliant.core.messages import Publish, Report
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.world import World
from unit.core.build import A, B, C, E, world
from unit.core.member.drive import LAST, TERMS, Crew, lines, training, wrote

STEPS = lines(GENESIS, 1, LAST)
THIRD = STEPS[2].lineage
ALONE = checkpoint_name(THIRD, 1, A)
BEGUN = Snapshot(THIRD, ALONE, 0, 1, waits=True)


def stopped(verify: int = 0) -> tuple[Crew, World]:
    """B died after step 3, which no collective has committed. A stopped, and waits for a world without B."""
    crew = training(A, B, C, terms=replace(TERMS, verify=verify))
    crew.step()
    crew.compute()
    crew.crash(B)
    crew.crash(C)
    crew.fails(A, peer=B)
    after = crew.recover(2, A, B, C)
    crew.hush()
    return crew, after


def test_a_stopped_member_whose_time_is_short_saves_alone_and_hands_its_steps_over_with_it() -> None:
    crew, _ = stopped()
    assert crew[A].applied_line == STEPS[2]
    assert crew.feed(A, GraceShort()) == (BEGUN, Save(ALONE))
    crew.write(A)
    written = wrote(BEGUN, crew.state(A).hash)
    assert crew[A].unpublished_part == written
    publish = Send(Publish(A, 2, written.checkpoint, 0, 1, STEPS[1:3]))
    assert crew.said(A)[-1] == publish
    assert publish in crew.feed(A, Tick())  # until the coordinator has it


def test_it_is_saved_once_only() -> None:
    crew, _ = stopped()
    crew.feed(A, GraceShort())
    assert not [action for action in crew.feed(A, WriteFailed(ALONE, "full")) if isinstance(action, Snapshot)]
    assert not [action for action in crew.feed(A, Tick()) if isinstance(action, Snapshot)]


def test_a_published_checkpoint_of_the_state_is_not_written_again() -> None:
    crew, _ = stopped()
    crew.tell(A, checkpoint=Checkpoint(THIRD, "there", 1))
    assert crew.feed(A, GraceShort()) == ()


def test_a_member_without_the_state_saves_nothing() -> None:
    crew = training(A, B)
    crew.add(E)
    crew.propose(world(2, A, B, E))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.crash(A)
    crew.fails(E, peer=A)
    crew.hush()
    assert crew[E].phase is Phase.STOPPED
    assert crew.feed(E, GraceShort()) == ()


@pytest.mark.parametrize("verify", [1, 2])
def test_a_stopped_member_saves_nothing_if_states_are_verified(verify: int) -> None:
    """P4 comes before P2: the error of a machine must not become the state that all return to."""
    crew, _ = stopped(verify)
    assert crew.feed(A, GraceShort()) == ()


def test_who_stops_with_little_time_left_saves_at_once() -> None:
    crew = training(A, B)
    crew.step()
    crew.compute()
    crew.feed(A, GraceShort())
    crew.hush()
    crew.crash(B)
    crew.fails(A, peer=B)
    assert crew.said(A)[-2:] == (BEGUN, Save(ALONE))


def test_without_a_recovery_world_to_publish_it_in_the_step_stays_uncommitted() -> None:
    """Rule 1: the coordinator does not know yet that the world is over, so another member may have gone on."""
    crew = training(A, B)
    crew.step()
    crew.compute()
    crew.feed(A, GraceShort())
    crew.crash(B)
    crew.fails(A, peer=B)
    crew.hush()
    crew.write(A)
    report, publish = crew.said(A)
    assert report == Send(Report(A, 0, 1, (STEPS[1],), None))
    assert publish == Send(Publish(A, 1, wrote(BEGUN, crew.state(A).hash).checkpoint))
    crew.recover(2, A, B)
    again = [action.command for action in crew.feed(A, Tick()) if isinstance(action, Send)]
    assert [each.lines for each in again if isinstance(each, Publish)] == [STEPS[2:3]]


def test_what_a_comparison_commits_when_time_is_short_already_is_saved_alone_too() -> None:
    """The others receive the state only now, and may not have it before the deadline."""
    crew, _ = stopped(verify=1)
    crew.feed(A, GraceShort())
    crew.add(E)
    crew.recover(3, A, E)
    crew.wire(3, A, E)
    crew.hush()
    crew.returns()
    alone = checkpoint_name(THIRD, 3, A)
    assert crew.said(A)[-2:] == (Snapshot(THIRD, alone, 0, 1, waits=True), Save(alone))
