"""A batch that user code changes: the members agree on it in the next step's words (ADR 0051)."""

from dataclasses import replace

import pytest

from pliant.core.data.grid import Changes
from pliant.core.data.ledger import GENESIS
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word, agreed_batch, ranks_with_another_batch
from pliant.core.member.signals import Apply, Exit, SendToPeer
from pliant.core.messages import Stopped
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, Crew, commands, rollback, training

WIDE: Changes = ((3, 18),)


def changes(crew: Crew, *names: MemberId) -> list[Changes]:
    return [crew[name].terms.grid.changes for name in names]


def test_a_batch_holds_from_the_step_after_the_one_that_agrees_on_it() -> None:
    crew = training(A, B)
    crew.wanted = dict.fromkeys(range(2, LAST), 18)  # set after step 2, and a part of the state since then
    crew.compute()
    crew.returns()
    (applied,) = (action for action in crew.said(A) if isinstance(action, Apply))
    assert (applied.line.samples, applied.line.next_batch) == (12, 18)
    assert changes(crew, A, B) == [WIDE, WIDE]
    crew.boundary()
    crew.compute()
    assert crew.word(A).next_batch == 0  # it is agreed
    crew.returns()
    line = crew[A].applied_line
    assert line is not None
    assert (line.position, line.samples, line.next_batch) == (36, 4, 0)
    crew.boundary()
    crew.step()
    line = crew[A].applied_line
    assert line is not None
    assert line.samples == 18


def test_the_job_ends_by_the_cursor() -> None:
    crew = training(A, B)
    crew.wanted = dict.fromkeys(range(2, LAST), 18)
    crew.run(lambda: crew[A].phase is Phase.DONE)
    assert (LAST, crew[A].lineage.step) == (12, 10)  # 3 steps of 12, then 4 samples, then 18, 18 and 4 twice
    assert crew[A].is_at_end


def test_members_in_the_minority_leave_and_the_others_go_on_without_them() -> None:
    crew = training(A, B, C)
    crew.wanted = {2: 18, (B, 2): 24}
    crew.compute()
    crew.returns()
    assert crew.said(B)[-1] == Exit(
        1,
        "after step 2 this member set the batch to 24, and the others to 18: decide about the batch from reduced "
        "values, which are equal on every member",
    )
    why = "b set another batch than the others (18)"
    (stopped,) = (each for each in commands(*crew.said(A)) if isinstance(each, Stopped))
    assert stopped.why == why
    assert (crew[A].phase, crew[A].stop_reason, crew[A].lineage.step) == (Phase.STOPPED, why, 2)
    crew.recover(2, A, C)
    crew.run(lambda: crew[A].lineage.step == 4)
    assert changes(crew, A, C) == [WIDE, WIDE]


def test_of_two_members_the_first_is_right_even_if_it_set_none() -> None:
    crew = training(A, B)
    crew.wanted = {(B, 2): 24}
    crew.compute()
    crew.returns()
    assert (crew[A].phase, crew[B].phase) == (Phase.STOPPED, Phase.GONE)
    assert crew[A].stop_reason == "b set another batch than the others (none)"


def test_a_joiner_follows_with_the_batches_of_the_others() -> None:
    crew = training(A, B, step=5)
    crew.wanted = dict.fromkeys(range(4, LAST), 18)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()  # step 5 agrees on the batch, and leads into the new world
    admissions = [action.signal for action in crew.said(A) if isinstance(action, SendToPeer)]
    assert [each.changes for each in admissions if hasattr(each, "changes")] == [((5, 18),)]
    crew.deliver()
    assert changes(crew, D) == [((5, 18),)]
    crew.wanted |= dict.fromkeys(range(5, LAST), 24)
    crew.run(lambda: crew[D].holds_state and crew[D].phase is Phase.COMPUTING)
    assert changes(crew, A, B, D)[2] == changes(crew, A, B, D)[0]
    assert changes(crew, D)[0][:2] == ((5, 18), (6, 24))
    crew.run(lambda: crew[D].phase is Phase.DONE)
    assert len({crew[name].lineage for name in (A, B, D)}) == 1


def test_a_member_that_followed_a_disagreement_stops() -> None:
    crew = training(A, B, step=5)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.wanted = {(B, 5): 24}
    crew.compute()
    crew.returns()
    assert (crew[A].phase, crew[B].phase, crew[D].phase) == (Phase.STOPPED, Phase.GONE, Phase.STOPPED)


@pytest.mark.parametrize("gradient", [True, False], ids=["gradient", "state"])
def test_a_member_that_missed_the_agreement_catches_up_with_it(gradient: bool) -> None:
    crew = training(A, B, C)
    crew.wanted = dict.fromkeys(range(2, LAST), 18)
    crew.compute()
    crew.returns(A)
    crew.boundary(A)
    crew.crash(C)
    crew.fails(B, peer=C)
    crew.recover(2, A, B)
    if not gradient:
        crew.tell(A, durable=crew[A].lineage)  # its line is durable, and it offers none
    crew.run(lambda: crew[A].generation == 2 and crew[A].phase is Phase.COLLECTING)
    assert crew.word(A).changes == WIDE
    assert changes(crew, B) == [()]  # not before it has the state
    crew.run(lambda: crew[B].lineage.step == 4)
    assert changes(crew, A, B) == [WIDE, WIDE]
    assert crew[B].shares == crew[A].shares


def test_a_rollback_has_the_batches_up_to_its_base() -> None:
    crew = training(A, B)
    crew.wanted = dict.fromkeys(range(2, 6), 18) | dict.fromkeys(range(6, LAST), 24)
    crew.run(lambda: all(crew[each].lineage.step == 5 and crew[each].phase is Phase.COMPUTING for each in (A, B)))
    base = crew[A].lineage
    crew.files["published"] = crew.state(A)
    checkpoint = Checkpoint(base, "published", crew.state(A).hash)
    crew.run(lambda: all(crew[each].lineage.step == 8 and crew[each].phase is Phase.COMPUTING for each in (A, B)))
    assert changes(crew, A) == [((3, 18), (7, 24))]
    crew.compute()
    crew.fails()
    crew.view = replace(crew.view, checkpoint=checkpoint, changes=((3, 18), (7, 24)))
    crew.seal(rollback(2, A, B, base=base))
    crew.wire(2)
    assert changes(crew, A, B) == [WIDE, ()]
    crew.run(lambda: crew[B].lineage.step == 6)
    assert changes(crew, A, B) == [WIDE, WIDE]


def word(batch: int, *, holds: bool = True) -> Word:
    return Word(Purpose.STEP, 1, 3, GENESIS, holds=holds, next_batch=batch)


@pytest.mark.parametrize(
    ("words", "batch", "odd"),
    [
        ((word(0), word(0)), 0, set()),
        ((word(18), word(18), word(0, holds=False)), 18, set()),
        ((word(18), word(24), word(24)), 24, {0}),
        ((word(18), word(24)), 18, {1}),
        ((word(0), word(24), word(0)), 0, {1}),
        ((word(0, holds=False),), 0, set()),
    ],
)
def test_what_most_holders_want_counts(words: tuple[Word, ...], batch: int, odd: set[int]) -> None:
    assert agreed_batch(words) == batch
    assert set(ranks_with_another_batch(words)) == odd
