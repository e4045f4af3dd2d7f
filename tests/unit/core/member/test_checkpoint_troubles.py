"""Checkpoints that cannot be: no place to write to, parts in several places, and what is left of them (rule 17)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member.checkpoint import NO_STORAGE
from pliant.core.member.signals import CollectGarbage, Discard, Exit, Save, Snapshot, Tick, WriteDone, WriteFailed
from pliant.core.messages import PartNotWritten as SayNotWritten
from pliant.core.model.checkpoint import NEVER_WHOLE, Checkpoint
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C
from unit.core.member.drive import LAST, TERMS, Crew, commands, lines, training

STEPS = lines(GENESIS, 1, LAST)
EVERY_3 = replace(TERMS, checkpoint_every=3)
THIRD = STEPS[2].lineage
NAME = checkpoint_name(THIRD, 1)
NEVER = ((NAME, NEVER_WHOLE),)


def begun(crew: Crew, *names: MemberId) -> list[tuple[int, int]]:
    """Of what each of these began to write since it was heard last: which part, of how many."""
    said = (action for name in names for action in crew.said(name))
    return [(each.part, each.count) for each in said if isinstance(each, Snapshot)]


def without_place(crew: Crew, *names: MemberId) -> Crew:
    for name in names:
        crew[name].can_save = False
    return crew


# ------------------------------------------------------------------------------------------ no place to write to


def test_who_has_no_place_for_checkpoints_leaves_them_to_those_who_have() -> None:
    crew = without_place(training(A, B, C, terms=EVERY_3), A)
    crew.step()
    assert begun(crew, A, B, C) == [(0, 2), (1, 2)]
    crew.hush()
    newest = Checkpoint(THIRD, NAME, 5)
    told = {name: crew.tell(name, checkpoint=newest, kept_checkpoints=(NAME,)) for name in (A, B, C)}
    assert told == {A: (), B: (CollectGarbage(newest, (A, B, C), (NAME,), 0, 1, 1),), C: ()}


def test_if_the_member_that_collects_garbage_is_gone_the_next_one_does_once() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    crew.hush()
    newest = Checkpoint(THIRD, NAME, 5)
    assert crew.tell(B, checkpoint=newest, kept_checkpoints=(NAME,)) == ()
    crew[B].cannot_save_ranks = frozenset({crew[A].rank})
    collected = (CollectGarbage(newest, (A, B), (NAME,), 0, 1, 1),)
    assert crew.tell(B, kept_checkpoints=(NAME,)) == collected
    assert crew.tell(B, kept_checkpoints=(NAME,)) == ()


def test_what_is_asked_for_comes_though_a_member_has_no_place() -> None:
    crew = without_place(training(A, B), A)
    crew.tell(checkpoint_wanted=True)
    crew.step()
    assert begun(crew, A, B) == [(0, 1)]


@pytest.mark.parametrize("how", ["every so many steps", "asked for"])
def test_if_no_member_has_a_place_a_member_that_wants_a_checkpoint_is_told_once(how: str) -> None:
    crew = without_place(training(A, B, terms=EVERY_3 if how != "asked for" else TERMS), A, B)
    crew.tell(checkpoint_wanted=how == "asked for")
    crew.step()
    said = [action for name in (A, B) for action in crew.said(name)]
    assert not any(isinstance(action, Snapshot) for action in said)
    assert [each for each in commands(*said) if isinstance(each, SayNotWritten)] == [
        SayNotWritten(A, 1, NAME, NO_STORAGE)
    ]


def test_if_no_member_has_a_place_and_no_member_wants_a_checkpoint_nothing_is_said() -> None:
    crew = without_place(training(A, B, step=LAST), A, B)
    crew.step()
    assert not any(isinstance(each, SayNotWritten) for name in (A, B) for each in commands(*crew.said(name)))


def test_the_last_state_is_written_by_the_first_holder_that_has_a_place() -> None:
    crew = without_place(training(A, B, C, step=LAST), A)
    crew.step()
    crew.returns()
    crew.write()
    crew.tell(state=JobState.FINISHED, why="all of them", holders=frozenset({A, B, C}))
    name = checkpoint_name(STEPS[-1].lineage, 1)
    said = {each: crew.tell(each, written_parts=((name, NEVER_WHOLE),)) for each in (A, B, C)}
    assert [type(action) for action in said[B]] == [Discard, Snapshot, Save]
    assert said[C][-1] == Exit(0, "all of them", complete=True)


# ------------------------------------------------------------------------------------------- what is given up


def test_what_will_never_be_whole_is_removed_by_the_first_holder_and_written_no_further() -> None:
    """A has written its part, B is at it, C never had one."""
    crew = training(A, B, C, terms=EVERY_3)
    crew.step()
    crew.step()
    crew.write(A)
    crew[C].part_in_progress = None
    told = {name: crew.tell(name, written_parts=NEVER) for name in (A, B, C)}
    assert told == {A: (Discard(NAME),), B: (Discard(NAME),), C: ()}
    assert crew[B].part_in_progress is None
    assert {name: crew.tell(name, written_parts=NEVER) for name in (A, B, C)} == {A: (), B: (), C: ()}, "once"


def test_a_part_that_was_too_late_to_stop_is_removed_when_it_is_there() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    crew.step()
    crew.tell(B, written_parts=NEVER)
    late = WriteDone(Checkpoint(THIRD, NAME, 5), 1, 2)
    assert crew.feed(B, late) == (Discard(NAME),)
    assert crew[B].unpublished_part is None


def test_after_one_that_was_given_up_the_next_is_begun() -> None:
    crew = training(A, B, terms=EVERY_3)
    for _ in range(3):
        crew.step()
    crew.tell(written_parts=NEVER)
    crew.hush()
    crew.step()
    assert begun(crew, A, B) == [(0, 2), (1, 2)]


def test_where_no_member_can_save_no_member_removes_anything() -> None:
    crew = without_place(training(A, B, terms=EVERY_3), A, B)
    crew.step()
    assert [crew.tell(name, written_parts=NEVER) for name in (A, B)] == [(), ()]


# ---------------------------------------------------------------------------------------- in several places


@pytest.mark.parametrize(
    "known", [{"split_storage": True}, {"kept_checkpoints": ("newer",)}], ids=["known", "not kept any more"]
)
def test_that_parts_lie_in_several_places_is_said_until_the_coordinator_knows(known: dict[str, Any]) -> None:
    crew = training(A, B)
    newest = Checkpoint(THIRD, NAME, 5)
    crew.tell(A, checkpoint=newest, kept_checkpoints=(NAME,))
    halved = SayNotWritten(A, 1, NAME, "/checkpoints", split_storage=True)
    assert commands(*crew.feed(A, WriteFailed(NAME, "/checkpoints", split_storage=True))) == (halved,)
    crew.tell(A)
    assert halved in commands(*crew.feed(A, Tick()))
    crew.tell(A, **known)
    assert halved not in commands(*crew.feed(A, Tick()))
