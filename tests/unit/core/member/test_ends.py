"""Ends of a member: finished, failed, cancelled, fenced, or by a slot that raised (rules 17, 20; P6)."""

from collections.abc import Callable

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Machine, Phase, react
from pliant.core.member.signals import (
    Admission,
    Boundary,
    Break,
    Computed,
    DrainNotice,
    Durable,
    Exit,
    Failed,
    GraceOver,
    GraceShort,
    Gradient,
    Installed,
    Released,
    Restored,
    Returned,
    Save,
    Send,
    Signal,
    Stripe,
    Tick,
    TransferBroken,
    UserCodeRaised,
    ViewReceived,
    Wired,
    WireFailed,
    WriteDone,
)
from pliant.core.messages import Leave, Raised
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import FailingSlots, JobState
from unit.core.build import A, B, C, D, checkpoint, world
from unit.core.member.drive import LAST, TERMS, Crew, computed, training

FENCED = "fenced: the coordinator no longer counts this member"


def done() -> Crew:
    crew = training(A, B, step=LAST)
    crew.step()
    crew.returns()
    assert crew[A].phase is Phase.DONE
    return crew


def stopped() -> Crew:
    crew = training(A, B, C)
    crew.compute()
    crew.fails(A)
    assert crew[A].phase is Phase.STOPPED
    return crew


def holding() -> Crew:
    crew = training(A, B, C)
    crew.propose(world(2, A, B, hold=True))
    crew.wire(2)
    crew.step()
    crew.returns()
    assert crew[A].phase is Phase.HOLDING
    return crew


def lingering() -> Crew:
    crew = training(B, A)
    crew.propose(world(2, B))
    crew.wire(2)
    crew.step()
    assert crew[A].phase is Phase.LINGERING
    return crew


def catching_up() -> Crew:
    crew = training(A, B, C)
    crew.compute()
    crew.returns(B)
    crew.boundary(B)
    crew.fails(A, peer=C)
    crew.recover(2, A, B)
    crew.compute(B)
    crew.wire(2)
    crew.returns(A)
    assert crew[A].phase is Phase.CATCHING_UP
    return crew


# -------------------------------------------------------------------------------------------------- the job ended


def test_a_finished_member_leaves_with_the_final_state_once_it_is_saved() -> None:
    crew = done()
    why = f"all {LAST} steps are committed"
    assert crew.tell(A, state=JobState.FINISHED, why=why) == ()
    assert crew.answer(A)
    assert crew.answer(B)
    published = Checkpoint(crew[A].lineage, checkpoint_name(crew[A].lineage, 1), crew.state(A).hash)
    actions = crew.tell(A, checkpoint=published)
    assert actions[1:] == (Break(1), Send(Leave(A, 0, why)), Exit(0, why, complete=True))
    assert crew[A].phase is Phase.GONE


def test_a_finished_member_that_has_no_place_for_checkpoints_leaves_at_once() -> None:
    crew = training(A, B, step=LAST)
    for name in (A, B):
        crew[name].can_save = False
    crew.step()
    crew.returns()
    actions = crew.tell(A, state=JobState.FINISHED, why="all of them")
    assert actions == (Break(1), Send(Leave(A, 0, "all of them")), Exit(0, "all of them", complete=True))


def test_a_finished_member_stays_until_the_coordinator_took_the_last_steps() -> None:
    """Rule 1: what is not durable might have to be reported again."""
    crew = done()
    assert crew.tell(A) == ()
    assert crew[A].phase is Phase.DONE


def test_a_finished_member_whose_world_is_sealed_recovers_with_the_others() -> None:
    """Rule 11: B died before the last steps were durable."""
    crew = done()
    crew.crash(B)
    crew.recover(2, A)
    assert crew[A].phase is Phase.STOPPED
    crew.wire(2, A)
    crew.returns(A)
    crew.returns(A)
    assert crew[A].phase is Phase.DONE


@pytest.mark.parametrize(("state", "code"), [(JobState.FINISHED, 0), (JobState.CANCELLED, 0), (JobState.FAILED, 1)])
@pytest.mark.parametrize(("crew", "number"), [(stopped, 1), (holding, 2), (lingering, 1), (catching_up, 2)])
def test_who_waits_for_something_leaves_at_once_when_the_job_ended(
    crew: Callable[[], Crew], number: int, state: JobState, code: int
) -> None:
    """It has not the final state: the exit is not a complete one."""
    here = crew()
    why = f"the job is {state.value}: enough"
    actions = here.tell(A, state=state, why="enough")
    assert actions == (Break(number), Send(Leave(A, 0, why)), Exit(code, why, complete=False))


def test_who_was_never_let_in_leaves_without_the_final_state() -> None:
    crew = training(A, B)
    crew.add(D)
    why = "the job is finished: enough"
    actions = crew.tell(D, state=JobState.FINISHED, why="enough")
    assert actions == (Send(Leave(D, 0, why)), Exit(0, why, complete=False))


def test_a_joiner_without_state_is_not_complete_though_the_run_is() -> None:
    crew = training(A, B, step=LAST)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.returns()
    assert (crew[D].phase, crew[D].holds_state) == (Phase.DONE, False)
    actions = crew.tell(D, state=JobState.FINISHED, why="enough")
    assert actions[-1] == Exit(0, "the job is finished: enough", complete=False)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_failed_with_the_last_step_applied_is_not_complete(state: JobState) -> None:
    crew = done()
    actions = crew.tell(A, state=state, why="enough")
    assert actions[-1] == Exit(int(state is JobState.FAILED), f"the job is {state.value}: enough", complete=False)


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.WAITING, JobState.RUNNING])
def test_a_job_that_goes_on_ends_no_member(state: JobState) -> None:
    crew = training(A, B)
    assert crew.tell(A, state=state, why="whatever") == ()
    assert crew[A].phase is Phase.COMPUTING


def test_an_operation_under_way_is_broken_and_waited_for() -> None:
    """Rule 9."""
    crew = training(A, B)
    crew.compute(A)
    assert crew.tell(A, state=JobState.CANCELLED, why="enough") == (Break(1),)
    assert crew[A].phase is Phase.COLLECTING
    crew.hush()
    crew.fails(A)
    why = "the job is cancelled: enough"
    assert crew.said(A) == (Break(1), Send(Leave(A, 0, why)), Exit(0, why))


def test_who_hears_of_the_end_while_its_last_words_are_under_way_leaves_when_they_return() -> None:
    """A's closing collective returned first, and its report finished the job."""
    crew = training(A, B, step=LAST)
    crew.step()
    crew.returns(A)
    assert crew.tell(B, state=JobState.FINISHED, why="all of them") == (
        Save(checkpoint_name(crew[B].lineage, 1)),
        Break(1),
    )
    crew.hush()
    crew.returns(B)
    assert crew[B].applied_line is None
    assert crew.answer(B)
    crew.hush()
    actions = crew.tell(B, written_parts=((checkpoint_name(crew[B].lineage, 1), 1),))
    assert actions == (Break(1), Send(Leave(B, 0, "all of them")), Exit(0, "all of them", complete=True))


def test_who_hears_of_the_end_while_a_world_closes_leaves_when_its_words_return() -> None:
    crew = training(A, B)
    for name in (A, B):
        crew.feed(name, GraceShort())
    crew.step()
    crew.tell(B, state=JobState.CANCELLED, why="enough")
    crew.returns(B)
    assert crew.said(B)[-1] == Exit(0, "the job is cancelled: enough")


def test_user_code_under_way_is_waited_for() -> None:
    crew = training(A, B)
    assert crew.tell(A, state=JobState.CANCELLED, why="enough") == ()
    why = "the job is cancelled: enough"
    assert crew.feed(A, computed(3, 0)) == (Break(1), Send(Leave(A, 0, why)), Exit(0, why))


# ---------------------------------------------------------------------------------------------------------- fenced


@pytest.mark.parametrize(("crew", "number"), [(stopped, 1), (holding, 2), (lingering, 1), (catching_up, 2), (done, 1)])
def test_a_fenced_member_leaves_at_once_where_nothing_runs(crew: Callable[[], Crew], number: int) -> None:
    """P6, rule 11: lost is final; it may come back only as a new member without state."""
    actions = crew().tell(A, known=False)
    assert actions == (Break(number), Send(Leave(A, 0, FENCED)), Exit(75, FENCED, complete=False))


def test_a_fenced_member_in_user_code_leaves_at_the_next_safe_moment() -> None:
    crew = training(A, B)
    assert crew.tell(A, known=False) == ()
    assert crew[A].stop_reason == FENCED
    assert crew.feed(A, computed(3, 0))[-1] == Exit(75, FENCED)


def test_a_fenced_member_in_a_collective_breaks_it_first() -> None:
    crew = training(A, B)
    crew.compute(A)
    assert crew.tell(A, known=False) == (Break(1),)
    crew.hush()
    crew.fails(A)
    assert crew.said(A) == (Break(1), Send(Leave(A, 0, FENCED)), Exit(75, FENCED))


def test_being_fenced_outweighs_the_end_of_the_job() -> None:
    crew = done()
    assert crew.tell(A, known=False, state=JobState.FINISHED, why="x")[-1] == Exit(75, FENCED)


def test_a_fenced_spare_leaves() -> None:
    crew = Crew(A)
    assert crew.tell(A, known=False) == (Send(Leave(A, 0, FENCED)), Exit(75, FENCED))


# ------------------------------------------------------------------------------------------------------------ poison


def test_a_slot_that_raises_is_named_and_ends_the_member() -> None:
    """Rule 20: if it raises on a second member as well, the coordinator fails the job."""
    crew = training(A, B)
    crew.propose(world(2, A, B), A)
    actions = crew.feed(A, UserCodeRaised(3, (2,), ((17, 4),), "ValueError: bad sample"))
    why = "slot 2 of step 3 raised: ValueError: bad sample"
    assert actions == (Send(Raised(FailingSlots(3, (2,), ((17, 4),), A, "ValueError: bad sample"))), Exit(1, why))
    assert crew[A].phase is Phase.GONE


# -------------------------------------------------------------------------------------------------------------- gone

EVERY_SIGNAL: tuple[Signal, ...] = (
    ViewReceived(Crew(A).view),
    Durable(99, GENESIS),
    Tick(),
    Wired(1),
    WireFailed(1, B),
    Computed(frozenset(), 0, 0),
    Returned(1, ()),
    Failed(1, B),
    Boundary(1),
    Restored(1),
    Gradient(None),
    Stripe(0, 1, GENESIS, 1, ()),
    TransferBroken(),
    Installed(1),
    Admission(2, GENESIS, (B,)),
    Released(2),
    DrainNotice(1.0, "spot"),
    GraceShort(),
    GraceOver(),
    WriteDone(checkpoint(GENESIS)),
    UserCodeRaised(1, (1,), ((),), "x"),
)


@pytest.mark.parametrize("signal", EVERY_SIGNAL, ids=lambda signal: type(signal).__name__)
def test_who_is_gone_says_nothing_more(signal: Signal) -> None:
    machine, _ = react(Machine(A, TERMS), GraceOver())
    assert machine.phase is Phase.GONE
    assert react(machine, signal) == (machine, ())
    assert react(machine, signal)[0] is machine


def test_a_step_is_committed_once_the_coordinator_has_recorded_it_though_no_word_of_it_returned() -> None:
    crew = training(A, B)
    crew.step()
    third = crew[A].lineage
    assert (third.step, crew[A].committed_step) == (3, 2)
    crew.tell(A, durable=third)
    assert crew[A].committed_step == 3
