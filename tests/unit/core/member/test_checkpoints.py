"""Checkpoints: a holder's part, begun at a boundary, wanted when committed, said until known (rules 1, 3, 17)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.checkpoints import WRITERS_MAX, checkpoint_name
from pliant.core.member import Machine, Phase, react
from pliant.core.member.checkpoint import is_first_saver
from pliant.core.member.leave import ALONE_TICKS, END_TICKS
from pliant.core.member.signals import (
    Apply,
    CollectGarbage,
    Compute,
    Discard,
    Exit,
    Released,
    Save,
    Send,
    Snapshot,
    Tick,
    ViewReceived,
    WriteDone,
    WriteFailed,
)
from pliant.core.messages import PartNotWritten as SayNotWritten
from pliant.core.messages import Publish, Report
from pliant.core.model.checkpoint import NEVER_WHOLE, Checkpoint
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, TERMS, Crew, commands, lines, piece, rollback, training

STEPS = lines(GENESIS, 1, LAST)
EVERY_3 = replace(TERMS, checkpoint_every=3)
THIRD = STEPS[2].lineage
NAME = checkpoint_name(THIRD, 1)
WHOLE = WriteDone(Checkpoint(THIRD, NAME, 5, (piece(0),)))


def part(index: int, count: int = 2, name: str = NAME) -> WriteDone:
    return WriteDone(Checkpoint(THIRD, name, 5, (piece(index),)), index, count)


def begun(crew: Crew, *names: MemberId) -> list[tuple[int, int, int]]:
    """Of what these members began to write since they were heard last: the step, which part, of how many."""
    said = (action for name in names or tuple(crew.seats) for action in crew.said(name))
    return [(each.lineage.step, each.part, each.count) for each in said if isinstance(each, Snapshot)]


# --------------------------------------------------------------------------------------------------- when, and who


def test_a_part_is_begun_at_the_boundary_and_wanted_when_its_step_is_committed() -> None:
    """H1: a checkpoint of a step that only one member applied must not be published."""
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    assert crew.said(A) == (Snapshot(THIRD, NAME, 0, 2), Compute(4, (0, 1), idle=False))
    assert crew.said(B) == (Snapshot(THIRD, NAME, 1, 2), Compute(4, (1,), idle=True))
    crew.compute()
    crew.hush()
    crew.returns()
    assert crew.said(A) == (Save(NAME), Apply(STEPS[3]))
    assert crew.said(B) == (Save(NAME), Apply(STEPS[3]))
    crew.boundary()
    assert crew.said(A)[0] == Compute(5, (0, 1, 2), idle=False)


@pytest.mark.parametrize(("every", "steps"), [(0, []), (2, [4, 6]), (4, [4]), (7, [])])
@pytest.mark.parametrize("said_by", ["the script", "the job"])
def test_so_many_steps_lie_between_two_checkpoints(every: int, steps: list[int], said_by: str) -> None:
    terms = replace(TERMS, checkpoint_every=every) if said_by == "the script" else TERMS
    crew = training(A, B, terms=terms)
    if said_by == "the job":
        crew.tell(save_steps=every)
    for _ in range(4):
        crew.step()
        crew.write()
    taken = [action.lineage.step for action in crew.said(A) if isinstance(action, Snapshot)]
    assert taken == steps


def test_the_last_step_is_always_saved() -> None:
    crew = training(A, B, step=LAST)
    crew.step()
    assert begun(crew) == [(LAST, 0, 2), (LAST, 1, 2)]


def test_who_has_no_place_for_checkpoints_writes_none() -> None:
    crew = training(A, B, terms=EVERY_3)
    for name in (A, B):
        crew[name].can_save = False
    crew.step()
    assert begun(crew) == []
    assert crew.tell(A, checkpoint=Checkpoint(STEPS[1].lineage, "x", 1)) == ()


def test_only_members_that_hold_the_state_have_a_part() -> None:
    """D, the new rank 0, has no state yet."""
    crew = training(A, B, terms=EVERY_3, step=5)
    crew.write()
    crew.add(D)
    crew.propose(world(2, D, B, A))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    crew.step()
    assert begun(crew, D, B, A) == [(6, 0, 2), (6, 1, 2)]


def test_who_leaves_at_this_very_boundary_has_no_part() -> None:
    crew = training(A, B, C, terms=EVERY_3)
    crew.propose(world(2, B, C))
    crew.wire(2)
    crew.hush()
    crew.step()
    assert crew[A].phase is Phase.LINGERING
    assert begun(crew, A) == []
    assert begun(crew, B, C) == [(3, 0, 2), (3, 1, 2)]


@pytest.mark.parametrize(("going", "parts"), [((A,), [(3, 0, 2), (3, 1, 2)]), ((A, B), [(3, 0, 1)])])
def test_who_drains_is_let_off(going: tuple[MemberId, ...], parts: list[tuple[int, int, int]]) -> None:
    crew = training(A, B, C, terms=EVERY_3)
    for each in going:
        crew.tell(each, draining=True, grace_s=30.0)
    crew.hush()
    crew.step()
    assert begun(crew, *going) == []
    assert begun(crew) == parts


def test_without_a_common_place_the_first_holder_writes_everything() -> None:
    crew = training(A, B, terms=EVERY_3)
    for each in (A, B):
        crew.tell(each, split_storage=True)
    crew.hush()
    crew.step()
    assert begun(crew) == [(3, 0, 1)]


def test_if_every_member_drains_no_member_is_let_off() -> None:
    crew = training(A, B, terms=EVERY_3)
    for each in (A, B):
        crew.tell(each, draining=True, grace_s=30.0)
    crew.hush()
    crew.step()
    assert begun(crew) == [(3, 0, 2), (3, 1, 2)]


def test_who_is_to_leave_at_once_does_not_train_until_the_last_moment() -> None:
    """Ctrl-C: a person waits."""
    crew = training(A, B)
    for each in (A, B):
        crew.tell(each, draining=True, grace_s=30.0, immediate=True)
    crew.hush()
    crew.step()
    crew.returns()
    assert begun(crew, A, B) == [(crew[A].lineage.step, 0, 2), (crew[A].lineage.step, 1, 2)]
    assert crew[A].phase is crew[B].phase is Phase.LINGERING


def test_so_many_write_and_no_more() -> None:
    names = tuple(MemberId(f"m{number:02}") for number in range(WRITERS_MAX + 1))
    crew = training(*names, terms=EVERY_3)
    crew.step()
    assert begun(crew, *names[:-1]) == [(3, index, WRITERS_MAX) for index in range(WRITERS_MAX)]
    assert begun(crew, names[-1]) == []


def test_a_world_of_one_writes_at_once() -> None:
    """Rule 1: it commits as it applies."""
    crew = training(A, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    assert crew.said(A)[:2] == (Snapshot(THIRD, NAME, 0, 1), Save(NAME))


def test_where_a_world_closes_at_a_step_that_is_due_it_is_saved_once() -> None:
    """Twice under one name would make the second spoil the first."""
    crew = training(A, B, C, terms=EVERY_3)
    crew.propose(world(2, A, B, hold=True))
    crew.wire(2)
    crew.hush()
    crew.step()
    assert begun(crew, A, B) == []
    crew.returns(A, B)
    assert begun(crew, A, B) == [(3, 0, 2), (3, 1, 2)]


def test_what_was_begun_of_another_step_than_the_one_committed_is_not_wanted() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.boundary()
    saving = crew[A].part_in_progress
    assert saving is not None
    crew[A].part_in_progress = replace(saving, lineage=STEPS[0].lineage)
    crew.compute()
    crew.hush()
    crew.returns()
    assert crew.said(A) == (Apply(STEPS[3]),)


def test_a_part_survives_a_failure_and_is_of_no_use_when_others_may_be_lost() -> None:
    """The comparison commits the step; but a member of that world may have taken its part with it."""
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    crew.compute()
    crew.fails()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Save(NAME)
    crew.hush()
    assert crew.answer(A)
    assert (crew[A].part_in_progress, crew[A].unpublished_part, commands(*crew.said(A))) == (None, None, ())


# ----------------------------------------------------------------------------------------------- wanted by a member


def test_a_checkpoint_that_is_asked_for_is_begun_once_every_holder_has_heard() -> None:
    crew = training(A, B)
    crew.tell(A, checkpoint_wanted=True)
    crew.step()
    assert begun(crew) == []
    crew.tell(B)
    crew.compute()
    assert [crew.word(name).wants_checkpoint for name in (A, B)] == [True, True]
    crew.returns()
    crew.boundary()
    assert begun(crew) == [(4, 0, 2), (4, 1, 2)]
    crew.step()
    crew.step()
    assert begun(crew) == []


def test_while_a_member_writes_no_member_begins_what_is_asked_for() -> None:
    """A new holder does not know what the others are at."""
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    crew.tell(checkpoint_wanted=True)
    crew[B].part_in_progress = None
    crew.compute()
    assert [crew.word(name).wants_checkpoint for name in (A, B)] == [False, True]
    crew.returns()
    crew.hush()
    crew.boundary()
    assert begun(crew) == []


@pytest.mark.parametrize(("there", "asks"), [((), True), (((NAME, 1),), False), (((NAME, NEVER_WHOLE),), True)])
def test_a_checkpoint_that_is_half_there_is_waited_for(there: tuple[tuple[str, int], ...], asks: bool) -> None:
    crew = training(A, B)
    crew.tell(checkpoint_wanted=True, written_parts=there)
    crew.compute()
    assert crew.word(A).wants_checkpoint == asks


def test_what_is_asked_for_is_a_state_that_was_verified() -> None:
    crew = training(A, B, terms=replace(TERMS, verify=2))
    crew.tell(checkpoint_wanted=True)
    crew.step()
    assert begun(crew) == []
    crew.step()
    assert begun(crew) == [(4, 0, 2), (4, 1, 2)]


# ------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("lineage", "generation", "alone"),
    [
        (Lineage(1, 3, 8), 1, None),
        (Lineage(1, 4, 7), 1, None),
        (Lineage(2, 3, 7), 1, None),
        (Lineage(1, 3, 7), 2, None),
        (Lineage(1, 3, 7), 1, A),
    ],
)
def test_no_two_histories_share_a_name(lineage: Lineage, generation: int, alone: MemberId | None) -> None:
    """H5, rule 17: step, generation, digest, the world that writes it, and who does if it is one alone."""
    assert checkpoint_name(Lineage(1, 3, 7), 1) == "step-3-g1-0000000000000007-w1"
    assert checkpoint_name(lineage, generation, alone) != checkpoint_name(Lineage(1, 3, 7), 1)


# ---------------------------------------------------------------------------------------------- said until it is known


def test_a_part_is_said_after_its_step_was_reported() -> None:
    """Rule 17: a manifest of a step that is not durable is refused."""
    crew = training(A, B)
    crew.step()
    crew.step()
    actions = crew.feed(A, part(0))
    publish = Publish(A, 1, part(0).checkpoint, 0, 2)
    assert actions == (Send(Report(A, 0, 1, STEPS[1:3], None)), Send(publish))
    assert crew[A].unpublished_part == part(0)


def test_a_part_is_said_again_until_the_coordinator_knows_it() -> None:
    crew = training(A, B)
    crew.feed(B, part(1))
    crew.tell(B, durable=THIRD)
    publish = Publish(B, 1, part(1).checkpoint, 1, 2)
    assert commands(*crew.feed(B, Tick()))[-1] == publish
    crew.tell(B, checkpoint=Checkpoint(STEPS[1].lineage, "older", 1), written_parts=((NAME, 0),))
    assert commands(*crew.feed(B, Tick()))[-1] == publish
    crew.tell(B, written_parts=((NAME, 0), (NAME, 1)))
    assert crew[B].unpublished_part is None
    assert publish not in commands(*crew.feed(B, Tick()))


def test_who_wrote_the_first_part_stays_until_all_are_there() -> None:
    """A member has to put the manifest beside the files."""
    crew = training(A, B)
    crew.feed(A, part(0))
    crew.tell(A, written_parts=((NAME, 0),))
    assert crew[A].unpublished_part == part(0)
    crew.tell(A, checkpoint=part(0).checkpoint, written_parts=())
    assert crew[A].unpublished_part is None


@pytest.mark.parametrize("wrote", [part(0), part(1)])
def test_what_will_never_be_whole_is_not_said_again(wrote: WriteDone) -> None:
    """Else a member that leaves would wait for it until its time is over."""
    crew = training(A, B)
    crew.feed(A, wrote)
    crew.tell(A, written_parts=((NAME, NEVER_WHOLE),))
    assert crew[A].unpublished_part is None
    crew.feed(A, wrote)
    assert crew[A].unpublished_part is None


def test_a_newer_checkpoint_makes_an_older_part_pointless() -> None:
    crew = training(A, B)
    crew.feed(A, part(0))
    crew.tell(A, checkpoint=Checkpoint(STEPS[3].lineage, "newer", 1))
    assert crew[A].unpublished_part is None


def test_what_comes_after_a_rollback_is_of_a_history_that_is_over() -> None:
    """A whole state, written by one alone, needs no member's other part; but its steps were rolled back."""
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.fails()
    crew.seal(rollback(2, A, B))
    crew.wire(2)
    crew.hush()
    assert crew.feed(A, WHOLE) == ()
    assert crew[A].unpublished_part is None


def test_a_stopped_member_still_says_what_it_wrote() -> None:
    """The step was committed before; whether its generation is open yet is for the coordinator to say (rule 17)."""
    crew = training(A, B)
    crew.compute()
    crew.fails()
    said = commands(*crew.feed(A, WHOLE))
    assert said[-1] == Publish(A, 1, WHOLE.checkpoint)
    assert crew[A].phase is Phase.STOPPED
    assert commands(*crew.feed(A, Tick()))[-1] == Publish(A, 1, WHOLE.checkpoint)


def test_what_is_finished_in_no_world_is_said_by_no_member() -> None:
    machine, actions = react(Machine(C, TERMS), WHOLE)
    assert actions == ()
    assert machine.unpublished_part == WHOLE
    assert react(machine, Tick())[1] == ()


def test_who_hears_of_the_end_before_its_last_words_come_back_saves_its_part_all_the_same() -> None:
    """A's closing collective returned, and its report finished the job; B's was broken by that very word."""
    crew = training(A, B, step=LAST)
    crew.step()
    crew.returns(A)
    last = checkpoint_name(STEPS[-1].lineage, 1)
    assert Save(last) in crew.tell(B, state=JobState.FINISHED, why="all of them")
    crew.fails(B)
    assert crew[B].phase is Phase.DONE
    crew.write(A, B)
    assert crew.tell(B, written_parts=((last, 1),))[-1] == Exit(0, "all of them", complete=True)


def finished() -> Crew:
    """A and B have written their parts of the last state, and the coordinator has heard of the end alone."""
    crew = training(A, B, step=LAST)
    crew.step()
    crew.returns()
    crew.write()
    crew.tell(state=JobState.FINISHED, why="all of them", holders=frozenset({A, B}))
    crew.hush()
    return crew


@pytest.mark.parametrize("name", [A, B])
def test_who_wrote_the_last_part_does_not_wait_for_ever_for_a_coordinator_that_does_not_answer(name: MemberId) -> None:
    crew = finished()
    for _ in range(END_TICKS - 1):
        crew.feed(name, Tick())
    assert crew[name].phase is Phase.DONE
    assert crew.feed(name, Tick())[-1] == Exit(0, "all of them", complete=True)


def test_if_other_parts_of_the_last_state_do_not_come_the_first_holder_writes_all_of_it() -> None:
    """B died after the job had finished, with its part."""
    crew = finished()
    for _ in range(ALONE_TICKS):
        crew.feed(A, Tick())
    alone = checkpoint_name(STEPS[-1].lineage, 1, A)
    assert crew.said(A)[-2:] == (Snapshot(STEPS[-1].lineage, alone, 0, 1, waits=True), Save(alone))
    crew.write(A)
    said = commands(*crew.said(A))[-1]
    assert isinstance(said, Publish)
    assert (said.checkpoint.name, said.part, said.count) == (alone, 0, 1)
    assert crew.tell(A, checkpoint=Checkpoint(STEPS[-1].lineage, alone, 5))[-1] == Exit(0, "all of them", complete=True)


def test_a_holder_that_still_catches_up_does_not_count_as_the_first_to_save() -> None:
    """The job finished during a comparison that showed A at an older step: B writes the last state, not A."""
    machine = training(A, B, step=LAST)[B].copy()
    assert machine.view is not None
    view = replace(machine.view, holders=frozenset({A, B}))
    assert not is_first_saver(machine, view)
    machine.behind_ranks = frozenset({0})
    assert is_first_saver(machine, view)
    machine.behind_ranks = frozenset({0, 1})
    assert not is_first_saver(machine, view)


def test_a_holder_whose_words_did_not_show_its_state_yet_collects_garbage() -> None:
    """A joiner got the state and saved it, but broke off the collective that would have shown it as a holder."""
    machine = training(A, B, terms=EVERY_3)[A].copy()
    assert machine.view is not None
    machine.holders = frozenset({1})
    view = replace(machine.view, revision=machine.view.revision + 1, checkpoint=WHOLE.checkpoint)
    _, actions = react(machine, ViewReceived(view))
    assert [action.newest.name for action in actions if isinstance(action, CollectGarbage)] == [NAME]


def test_if_there_are_no_parts_of_the_last_state_the_first_holder_writes_all_of_it() -> None:
    """The parts begun belonged to a world that did not survive."""
    crew = finished()
    name = checkpoint_name(STEPS[-1].lineage, 1)
    said = {each: crew.tell(each, written_parts=((name, NEVER_WHOLE),)) for each in (A, B)}
    assert [type(action) for action in said[A]] == [Discard, Snapshot, Save]
    assert said[B][-1] == Exit(0, "all of them", complete=True)
    assert crew.feed(A, WriteFailed(checkpoint_name(STEPS[-1].lineage, 1, A), "full"))[-1] == Exit(
        0, "all of them", complete=True
    )


def leaver() -> Crew:
    """B wrote its part of what was begun at step 3, and then its world went on without it."""
    crew = training(A, B, C, terms=EVERY_3)
    crew.step()
    crew.propose(world(2, A, C))
    crew.wire(2)
    crew.step()
    crew.deliver()
    return crew


def test_a_leaver_stays_until_its_part_is_known() -> None:
    crew = leaver()
    crew.tell(B, current=2)
    crew.feed(B, Released(2))
    assert crew[B].phase is Phase.LINGERING
    crew.write(B)
    assert crew[B].phase is Phase.LINGERING
    assert crew.tell(B, written_parts=((NAME, 1),))[-1] == Exit(0, "left as planned")


def test_a_leaver_whose_part_will_never_come_may_go() -> None:
    crew = leaver()
    crew.tell(B, current=2)
    assert crew.feed(B, WriteFailed(NAME, "No space left on device"))[-1] == Exit(0, "left as planned")


# ------------------------------------------------------------------------------------------------- what goes wrong


def test_a_part_that_will_never_come_is_said_until_the_coordinator_knows() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    crew.compute()
    crew.returns()
    full = SayNotWritten(A, 1, NAME, "No space left on device")
    assert crew.feed(A, WriteFailed(NAME, "No space left on device"))[-1] == Send(full)
    assert crew[A].part_in_progress is None
    assert full in commands(*crew.feed(A, Tick()))
    crew.tell(A, written_parts=((NAME, NEVER_WHOLE),))
    assert full not in commands(*crew.feed(A, Tick()))


@pytest.mark.parametrize(
    "facts",
    [{"checkpoint": Checkpoint(STEPS[3].lineage, "newer", 1)}, {"sealed": 1}],
)
def test_once_no_member_waits_for_it_no_more_is_said(facts: dict[str, Any]) -> None:
    crew = training(A, B)
    crew.feed(A, WriteFailed(NAME, "No space left on device"))
    crew.tell(A, checkpoint=Checkpoint(STEPS[1].lineage, "older", 1))
    assert crew[A].unreported_failure is not None
    crew.tell(A, **facts)
    assert crew[A].unreported_failure is None


def test_of_what_is_not_under_way_any_more_nothing_is_cleared() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    saving = crew[A].part_in_progress
    crew.feed(A, WriteFailed("another one", "No space left on device"))
    crew.feed(A, part(0, name="step-2-g1-0000000000000007-w1"))
    assert crew[A].part_in_progress == saving


def test_one_part_is_written_at_a_time() -> None:
    """A slow disk makes the next checkpoint fail, and not this one late."""
    crew = training(A, B, terms=EVERY_3)
    for _ in range(3):
        crew.step()
    crew.hush()
    crew.step()
    sixth = checkpoint_name(STEPS[5].lineage, 1)
    busy = SayNotWritten(A, 1, sixth, "the previous checkpoint is still being written")
    assert busy in commands(*crew.said(A))
    saving = crew[A].part_in_progress
    assert saving is not None
    assert (saving.name, saving.confirmed) == (NAME, True)


def test_the_last_state_waits_for_the_one_before() -> None:
    crew = training(A, B, step=9, terms=EVERY_3)
    for _ in range(4):
        crew.step()
    twelfth = Snapshot(STEPS[-1].lineage, checkpoint_name(STEPS[-1].lineage, 1), 0, 2, waits=True)
    assert twelfth in crew.said(A)


# ----------------------------------------------------------------------------------------------------- tidying up


def test_the_first_holder_tidies_up_after_each_new_checkpoint() -> None:
    crew = training(A, B)
    newest = Checkpoint(THIRD, NAME, 5)
    tidy = CollectGarbage(newest, (A, B), ("older", NAME), 0, 1, 1)
    assert crew.tell(A, checkpoint=newest, kept_checkpoints=("older", NAME)) == (tidy,)
    assert crew.tell(A) == ()
    assert crew.tell(B) == ()


def test_who_holds_nothing_removes_nothing() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, D, A, B))
    crew.wire(2)
    crew.step()
    crew.deliver()
    assert not crew[D].holds_state
    assert crew.tell(D, checkpoint=Checkpoint(THIRD, NAME, 5)) == ()


def test_a_whole_run_leaves_a_checkpoint_every_so_often() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.run(lambda: False)
    written = sorted(state.lineage.step for state in crew.files.values())
    assert written == [3, 6, 9, 12]
    assert all(crew.states[state.lineage] == state.hash for state in crew.files.values())


def test_a_member_that_was_told_nothing_begins_nothing() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew[A].view = None
    crew.hush()
    crew.boundary(A)
    assert begun(crew, A) == []
