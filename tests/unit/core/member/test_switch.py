"""The switch into a planned world, and who lingers behind (rules 3, 5, 8, 9)."""

from typing import Any

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import (
    Admission,
    Apply,
    Break,
    Collect,
    Compute,
    Exit,
    Failed,
    Fetch,
    Released,
    Returned,
    Send,
    SendToPeer,
    Tick,
    Wire,
)
from pliant.core.messages import Leave, Report, Stopped
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from unit.core.build import A, B, C, D, E, world
from unit.core.member.drive import LAST, Crew, commands, lines, recovery, these, training

STEPS = lines(GENESIS, 1, LAST)
NEXT = world(2, A, B, D)  # C leaves and D joins


def switching(to: World = NEXT, step: int = 5) -> Crew:
    """A, B and C at the end of `step`, whose words said to enter `to`; the post-step code is still running."""
    crew = training(A, B, C, step=step)
    for name in to.members:
        if name not in crew.seats:
            crew.add(name)
    crew.propose(to, *to.members)
    crew.wire(to.number)
    crew.compute()
    crew.returns(A, B, C)
    crew.hush()
    return crew


# ------------------------------------------------------------------------------------------------ the switch


def test_the_word_carries_the_generation_wired_and_how_many_must_say_so() -> None:
    """Rule 6: A and B are in both worlds, so two must say 2; C is in one only, and says nothing."""
    crew = training(A, B, C)
    crew.add(D)
    crew.propose(NEXT)
    assert crew[A].wiring_generation == 2
    crew.compute(A)
    assert (crew.word(A).wired, crew.word(A).wired_needed) == (0, 0)
    crew.wire(2)
    assert (crew[A].wiring_generation, crew[A].wired_worlds) == (0, (NEXT,))
    assert crew.said(A)[0] == Wire(NEXT)
    crew.compute(B, C)
    assert (crew.word(B).wired, crew.word(B).wired_needed) == (2, 2)
    assert (crew.word(C).wired, crew.word(C).wired_needed) == (0, 0)
    crew.returns()
    assert [crew[name].switch_to for name in (A, B, C)] == [0, 0, 0]
    crew.boundary()
    crew.compute()
    assert (crew.word(A).wired, crew.word(A).wired_needed) == (2, 2)
    crew.returns()
    assert [crew[name].switch_to for name in (A, B, C)] == [2, 2, 2]


def test_nothing_changes_before_the_boundary() -> None:
    """Rule 3, H7: the words decided, but the user's post-step code still runs in the old world."""
    crew = switching()
    for rank, name in enumerate((A, B, C)):
        m = crew[name]
        assert (m.phase, m.generation, m.rank, m.switch_to) == (Phase.APPLIED, 1, rank, 2)


def test_from_the_boundary_on_a_member_is_in_the_next_world() -> None:
    """Rule 8: and it tells who is new there that the world was entered."""
    crew = switching()
    before = crew[A].world
    crew.boundary(A)
    let_in = SendToPeer(D, Admission(2, STEPS[4].lineage, (A, B)))
    assert crew.said(A) == (let_in, Compute(6, (0, 1, 2), idle=False))
    m = crew[A]
    assert (m.world, m.generation, m.rank, m.previous_world) == (NEXT, 2, 0, before)
    assert (m.holders, m.switch_to, m.closing, m.entered, m.wired_worlds) == (these(0, 1), 0, False, False, ())
    crew.boundary(B)
    assert crew.said(B) == (let_in, Compute(6, (3, 4, 5), idle=False))
    assert crew[B].rank == 1


def test_ranks_change_with_the_world() -> None:
    """Holders are looked up by who they are, not by which rank they had."""
    crew = switching(to=world(2, D, C, A))
    crew.boundary(A)
    assert (crew[A].rank, crew[A].holders) == (2, these(1, 2))
    assert crew.said(A) == (SendToPeer(D, Admission(2, STEPS[4].lineage, (C, A))), Compute(6, (3, 4, 5), idle=False))
    crew.boundary(C)
    assert (crew[C].rank, crew[C].holders) == (1, these(1, 2))
    crew.boundary(B)
    assert crew[B].phase is Phase.LINGERING


def test_a_member_that_never_heard_of_the_next_world_can_tell_that_its_own_is_over() -> None:
    """H17: C was not told of generation 2; the words say it all the same."""
    crew = switching()
    view = crew[C].view
    assert view is not None
    assert NEXT not in view.worlds
    crew.boundary(C)
    assert (crew[C].phase, crew[C].switch_to, crew[C].generation) == (Phase.LINGERING, 2, 1)


def test_a_count_of_members_that_wired_something_is_not_enough() -> None:
    """H3: A and B wired 2, C wired 3 alone. Three members say something; no two worlds come of it."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B, C))
    crew.wire(2, A, B)
    crew.propose(world(3, A, B, C))
    assert crew.said(C)[-2:] == (Break(2), Wire(world(3, A, B, C)))
    crew.wire(3, C)
    crew.compute()
    assert [(crew.word(name).wired, crew.word(name).wired_needed) for name in (A, B, C)] == [(2, 3), (2, 3), (3, 3)]
    crew.returns()
    crew.boundary()
    assert [(crew[name].switch_to, crew[name].generation) for name in (A, B, C)] == [(0, 1)] * 3
    crew.wire(3, A, B)
    assert [one.number for one in crew[A].wired_worlds] == [2, 3]
    crew.step()
    assert [(crew[name].generation, crew[name].wired_worlds) for name in (A, B, C)] == [(3, ())] * 3


def beside_joiners(*names: MemberId) -> Crew:
    """A took step 3 alone and let these into generation 2, which hold no state yet."""
    crew = training(A)
    for name in names:
        crew.add(name)
    crew.propose(world(2, A, *names))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    return crew


def test_a_world_without_a_holder_is_not_entered() -> None:
    """Rule 8, H11: B and C are to replace A, and have no state yet."""
    crew = beside_joiners(B, C)
    crew.propose(world(3, B, C))
    crew.wire(3)
    for _ in range(2):
        crew.compute(A)
        crew.returns()
        crew.boundary(A)
    assert [crew.word(name).wired for name in (B, C)] == [3, 3]
    assert [crew[name].switch_to for name in (A, B, C)] == [0, 0, 0]
    crew.receive(B)
    crew.compute(A)
    crew.returns()
    crew.boundary(A)
    crew.install(B)
    assert [crew[name].generation for name in (A, B, C)] == [2, 2, 2]
    crew.compute()
    crew.returns()
    crew.boundary()
    assert [crew[name].generation for name in (A, B, C)] == [2, 3, 3]
    assert (crew[A].phase, crew[A].switch_to) == (Phase.LINGERING, 3)
    assert (crew[B].holders, crew[B].holds_state, crew[B].previous_world) == (these(0), True, crew[A].world)
    assert (crew[C].holders, crew[C].holds_state, crew[C].phase) == (these(0), False, Phase.COLLECTING)


def test_after_a_switch_a_newer_world_is_wired_that_was_out_of_reach_before_it() -> None:
    """C died, so A was to stop and could wire no planned world (rule 10); the switch took it out of C's reach."""
    crew = switching()
    newer = world(3, A, B, D)
    crew.tell(A, gone_in_open_worlds=frozenset({C}), worlds=(*crew.view.worlds, newer))
    assert (crew.said(A), crew[A].wiring_generation) == ((), 0)
    crew.boundary(A)
    assert crew.said(A)[1:] == (Compute(6, (0, 1, 2), idle=False), Wire(newer))
    assert (crew[A].generation, crew[A].wiring_generation) == (2, 3)


def test_a_switch_at_the_last_step_goes_straight_to_the_closing_collective() -> None:
    """Rule 1: the last step, too, needs a later collective; here the next world's first."""
    crew = switching(to=world(2, A, B), step=LAST)
    crew.boundary(A, B)
    word = Word(Purpose.CLOSE, 2, 0, STEPS[-1].lineage, holds=True, state=crew.state(A).hash)
    assert crew.said(A)[1:] == (Collect(world(2, A, B), word),)
    crew.returns(A, B)
    assert [crew[name].phase for name in (A, B)] == [Phase.DONE, Phase.DONE]
    assert crew[A].committed_lines[-1] == STEPS[-1]


# ------------------------------------------------------------------------------------------------ mixed entry


def test_a_member_whose_reduction_failed_never_enters_the_planned_world() -> None:
    """H2: B applied step 3 and is in 2; A, which did not, must not meet it there with gradients of another step."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.compute()
    crew.returns(B)
    crew.boundary(B)
    assert (crew[B].generation, crew[B].lineage.step) == (2, 3)
    crew.hush()
    crew.fails(A, peer=C)
    stopped = Stopped(A, 1, STEPS[1].lineage, frozenset({0, 1}), "a collective failed", C, False)
    assert crew.said(A) == (Break(1), Send(stopped))
    assert (crew[A].phase, crew[A].blamed_peer) == (Phase.STOPPED, C)
    assert crew.feed(A, Admission(2, STEPS[2].lineage, (B,))) == ()
    crew.propose(world(3, A, B, C), A)
    assert crew.said(A) == ()
    assert (crew[A].generation, crew[A].wiring_generation) == (1, 0)
    after = recovery(4, A, B, C)
    crew.seal(after, A)
    assert crew.said(A) == (Wire(after),)


def test_planned_worlds_wired_before_a_failure_are_not_entered_after_it() -> None:
    """Rule 10: only a recovery world above everything known is."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.compute()
    crew.fails(A)
    crew.wire(2, A)
    assert (crew[A].phase, crew[A].generation, crew[A].wired_worlds) == (Phase.STOPPED, 1, (world(2, A, B),))
    crew.recover(3, A, B, C)
    crew.wire(3, A)
    assert (crew[A].generation, crew[A].wired_worlds, crew[A].phase) == (3, (), Phase.COLLECTING)
    assert (crew.word(A).purpose, crew.word(A).wired) == (Purpose.HELLO, 0)


# -------------------------------------------------------------------------------------------------- leavers


def test_a_leaver_lingers_until_a_collective_completed_in_the_next_world() -> None:
    """Rule 9, H12: its sockets stay open under the others' reductions."""
    crew = switching()
    crew.boundary()
    crew.deliver()
    assert crew.said(C) == ()
    assert (crew[C].phase, crew[C].holds_state, crew[C].released_by) == (Phase.LINGERING, True, 0)
    last = crew[C].lineage.step
    assert crew[C].committed_step == last - 1
    assert crew.feed(C, Tick()) == ()
    crew.compute()
    crew.hush()
    crew.returns(A)
    assert crew.said(A) == (
        SendToPeer(C, Released(2)),
        Break(1),
        Apply(lines(STEPS[4].lineage, 2, 1)[0]),
        Send(Report(A, 0, 2, STEPS[3:5], frozenset({A, B}))),
    )
    assert (crew[A].previous_world, crew[A].entered) == (None, True)
    assert crew[C].phase is Phase.LINGERING
    crew.deliver()
    why = "left as planned"
    assert crew.said(C) == (Break(1), Send(Leave(C, 2, why)), Exit(0, why, complete=False))
    assert (crew[C].phase, crew[C].released_by) == (Phase.GONE, 2)
    assert crew[C].committed_step == last  # the others went on from it


def test_the_group_before_is_kept_until_the_first_collective_and_given_up_once() -> None:
    """Rule 9."""
    crew = switching()
    crew.boundary()
    crew.deliver()
    assert 1 not in crew.broken
    crew.step()
    crew.hush()
    crew.step()
    assert not any(isinstance(action, Break | SendToPeer) for action in crew.said(A))


@pytest.mark.parametrize(("generation", "goes"), [(1, False), (2, True), (3, True)])
def test_only_the_world_it_waits_for_or_a_later_one_releases_a_leaver(generation: int, goes: bool) -> None:
    crew = switching()
    crew.boundary(C)
    actions = crew.feed(C, Released(generation))
    assert (crew[C].phase is Phase.GONE) == goes
    assert commands(*actions) == ((Leave(C, generation, "left as planned"),) if goes else ())


@pytest.mark.parametrize(("current", "goes"), [(1, False), (2, True), (3, True)])
def test_the_coordinators_word_that_the_next_world_works_is_as_good(current: int, goes: bool) -> None:
    """Rule 9: the word of a member may be lost."""
    crew = switching()
    crew.boundary(C)
    actions = crew.tell(C, current=current)
    assert (crew[C].phase is Phase.GONE) == goes
    assert commands(*actions) == ((Leave(C, current, "left as planned"),) if goes else ())


def test_a_leaver_that_knows_already_goes_at_the_boundary() -> None:
    """The others may have gone on to the next world's first collective while its post-step code ran."""
    crew = switching()
    crew.tell(C, current=2)
    assert crew.said(C) == ()
    crew.boundary(C)
    assert crew.said(C)[-1] == Exit(0, "left as planned")


def test_no_member_is_released_who_is_not_leaving() -> None:
    crew = switching()
    assert crew.feed(C, Released(2)) == ()
    assert (crew[C].phase, crew[C].released_by) == (Phase.APPLIED, 0)


def test_a_lingering_leaver_is_taken_into_the_recovery_world() -> None:
    """Rule 11: the next world never worked; who lingers holds what the others have, and comes with it."""
    crew = switching()
    crew.boundary()
    crew.deliver()
    crew.compute()
    crew.crash(D)
    crew.fails(A, B, peer=D)
    crew.hush()
    after = crew.recover(3, A, B, C)
    assert crew.said(C) == (Break(1), Wire(after))
    assert (crew[C].phase, crew[C].switch_to) == (Phase.STOPPED, 0)
    crew.wire(3)
    hello = crew.word(C)
    assert (hello.purpose, hello.lineage, hello.kept) == (Purpose.HELLO, STEPS[4].lineage, frozenset())
    assert crew.word(A).kept == {0, 1, 2}
    crew.returns()
    assert crew.said(C)[-1] == Compute(6, (2,), idle=True)


# ------------------------------------------------------------------------------------------------- joiners


def test_joiners_are_told_again_until_they_are_there() -> None:
    """The word that lets them in may be lost."""
    crew = switching()
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, STEPS[3:4], None)),)
    crew.boundary(A, B)
    let_in = SendToPeer(D, Admission(2, STEPS[4].lineage, (A, B)))
    assert crew.feed(A, Tick()) == (let_in,)
    crew.deliver()
    crew.compute()
    crew.returns(A)
    assert not any(isinstance(action, SendToPeer) for action in crew.feed(A, Tick()))


def test_a_joiner_in_the_world_before_is_no_member_new() -> None:
    crew = beside_joiners(B)
    crew.add(C)
    crew.propose(world(3, A, B, C))
    crew.wire(3)
    for _ in range(2):
        crew.compute(A)
        crew.returns()
        crew.boundary(A)
    assert [target for target, _ in crew.post] == [C, C]
    assert (crew[B].generation, crew[B].holds_state, crew[B].holders) == (3, False, these(0))


def test_a_member_without_state_crosses_with_the_others() -> None:
    """Rule 15: it follows their collectives, into the next world as well."""
    crew = beside_joiners(B)
    crew.propose(world(3, A, B))
    crew.wire(3)
    crew.compute(A)
    crew.returns()
    crew.boundary(A)
    crew.compute(A)
    crew.hush()
    crew.returns(B)
    word = Word(Purpose.STEP, 3, 0, GENESIS, holds=False)
    assert crew.said(B) == (Collect(world(3, A, B), word, ((0, 1, 2, 3, 4, 5), ())),)
    assert crew[B].fetching


# ----------------------------------------------------------------------------- what is wrong with this world only


def test_a_leaver_that_dies_does_not_stop_the_others_from_crossing() -> None:
    """P2: C is gone from generation 1, which is over; the next world does without it."""
    crew = switching()
    crew.tell(A, gone_in_open_worlds=frozenset({C}))
    assert crew.said(A) == ()
    assert crew[A].stop_reason == "c is gone"
    crew.boundary(A)
    assert (crew[A].generation, crew[A].stop_reason, crew[A].phase) == (2, "", Phase.COMPUTING)


def test_what_is_wrong_with_the_next_world_alone_stops_a_member_inside_it() -> None:
    """Rule 8: the words decide the switch, and nothing a member knows besides; D died, so the world stops there."""
    crew = switching()
    assert crew.tell(A, gone_in_open_worlds=frozenset({D}), unenterable_generations=frozenset({2})) == ()
    assert crew[A].stop_reason == ""
    crew.boundary(A)
    assert crew.said(A)[-1] == Compute(6, (0, 1, 2), idle=False)
    assert (crew[A].generation, crew[A].phase) == (2, Phase.COMPUTING)
    assert crew[A].stop_reason == "generation 2 cannot be entered by all its members"
    crew.compute(A)
    assert (crew[A].generation, crew[A].phase) == (2, Phase.STOPPED)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"sealed": 2}, "generation 1 is sealed"),
        ({"gone_in_open_worlds": frozenset({C}), "unenterable_generations": frozenset({2})}, "c is gone"),
        ({"gone_in_open_worlds": frozenset({C, D})}, "c is gone"),
    ],
)
def test_what_is_wrong_with_the_next_world_too_stops_a_member_at_the_boundary(facts: dict[str, Any], why: str) -> None:
    """Rule 10."""
    crew = switching()
    crew.tell(A, **facts)
    assert crew.said(A) == ()
    crew.boundary(A)
    assert (crew[A].generation, crew[A].phase, crew[A].stop_reason) == (1, Phase.STOPPED, why)
    assert crew[A].switch_to == 0
    assert crew.said(A)[0] == Break(1)


@pytest.mark.parametrize(("known", "state", "code"), [(False, JobState.RUNNING, 75), (True, JobState.CANCELLED, 0)])
def test_no_member_crosses_who_is_fenced_or_whose_job_has_ended(known: bool, state: JobState, code: int) -> None:
    crew = switching()
    crew.tell(A, known=known, state=state, why="enough")
    assert crew.said(A) == ()
    crew.boundary(A)
    assert (crew[A].generation, crew[A].phase) == (1, Phase.GONE)
    last = crew.said(A)[-1]
    assert isinstance(last, Exit)
    assert last.code == code


def test_a_leaver_with_something_wrong_in_its_world_stops_and_does_not_linger() -> None:
    """Rule 11: it is taken into the recovery world with the others."""
    crew = switching()
    crew.tell(C, gone_in_open_worlds=frozenset({A}))
    crew.boundary(C)
    assert (crew[C].phase, crew[C].switch_to) == (Phase.STOPPED, 0)
    stopped = Stopped(C, 1, STEPS[4].lineage, frozenset(), "a is gone", None, False)
    assert crew.said(C) == (Break(1), Send(stopped))


def test_replacing_every_member_takes_two_generations() -> None:
    """Rule 16, H11: old and new together, then the new ones alone; no step is lost and no member leaves too early."""
    crew = training(A, B)
    old: tuple[MemberId, ...] = (A, B)
    new: tuple[MemberId, ...] = (D, E)
    for name in new:
        crew.add(name)
    crew.propose(world(2, *old, *new))
    crew.run(lambda: all(crew[name].holds_state for name in new))
    assert [crew[name].phase is Phase.GONE for name in old] == [False, False]
    crew.propose(world(3, *new))
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in new))
    assert [crew[name].phase for name in old] == [Phase.GONE, Phase.GONE]
    assert [crew.said(name)[-1] for name in old] == [Exit(0, "left as planned")] * 2
    assert [line.lineage.step for line in crew.history] == list(range(1, LAST + 1))
    assert crew.state(D).hash == crew.state(E).hash
    assert crew.state(D).posts == LAST


def test_a_reduction_that_fails_for_a_leaver_and_for_no_other_member_keeps_its_state() -> None:
    """Rule 10: it has not applied the step, so it has not left either."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.compute()
    crew.returns(A, B)
    assert crew.feed(C, Failed(1, A)) == (
        Break(1),
        Send(Stopped(C, 1, STEPS[1].lineage, frozenset({4, 5}), "a collective failed", A, False)),
    )
    assert (crew[C].phase, crew[C].holds_state) == (Phase.STOPPED, True)


def test_the_donors_a_joiner_is_given_are_the_holders() -> None:
    crew = switching()
    crew.boundary(A)
    crew.deliver()
    assert crew.said(D) == (
        Fetch(2, (A, B)),
        Collect(NEXT, Word(Purpose.STEP, 2, 0, GENESIS, holds=False), ((0, 1, 2), (3, 4, 5), ())),
    )
    assert crew[A].holders == {0, 1}
    assert crew.feed(A, Returned(2, ())) == ()
    assert crew[D].holders == {0, 1}
