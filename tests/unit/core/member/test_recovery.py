"""After a failure: stop, hello, catch up, redo (rules 10-14)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word, slot_checksum
from pliant.core.member.signals import (
    Apply,
    Break,
    CatchUp,
    Collect,
    Compute,
    Failed,
    Fetch,
    Gradient,
    Install,
    Returned,
    Send,
    Stripe,
    Tick,
    TransferBroken,
    Wire,
)
from pliant.core.member.state import KeptGradients
from pliant.core.messages import Report, Stopped
from unit.core.build import A, B, C, D, E, world
from unit.core.member.drive import EMPTY, LAST, Crew, computed, lines, recovery, these, training

STEPS = lines(GENESIS, 1, LAST)
SECOND, THIRD = STEPS[1].lineage, STEPS[2].lineage


def cut() -> Crew:
    """Step 3 was computed by A, B and C; C died before the reduction, and A and B were told so by their sockets."""
    crew = training(A, B, C)
    crew.compute()
    crew.crash(C)
    crew.hush()
    crew.fails(A, B, peer=C)
    return crew


def halved() -> Crew:
    """Step 3 reached A, which is in step 4 by now and computed slot 0 of it; it reached neither B nor C, and C died."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns(A)
    crew.boundary(A)
    crew.feed(A, computed(4, 0))
    crew.crash(C)
    crew.fails(B, peer=C)
    crew.recover(2, A, B)
    crew.feed(A, computed(4, 1))  # at this safe moment A hears that its world is over
    crew.hush()
    crew.wire(2)
    return crew


def lagging() -> Crew:
    """As `halved`, after the comparison: B is to catch up with A."""
    crew = halved()
    crew.hush()
    crew.returns()
    return crew


# -------------------------------------------------------------------------------------------- stop, then report


def test_a_failed_collective_stops_a_member_which_says_what_it_kept() -> None:
    """Rule 10."""
    crew = cut()
    stopped = Stopped(A, 1, SECOND, these(0, 1), "a collective failed", C, stateless=False)
    assert crew.said(A) == (Break(1), Send(stopped))
    m = crew[A]
    assert (m.phase, m.in_flight, m.stop_reason, m.blamed_peer) == (Phase.STOPPED, False, "a collective failed", C)
    assert (m.lineage, m.applied_line, m.holds_state, m.kept_gradients.slots) == (SECOND, STEPS[1], True, these(0, 1))


def test_who_stopped_says_so_again_until_the_world_is_sealed() -> None:
    crew = cut()
    stopped = Stopped(A, 1, SECOND, these(0, 1), "a collective failed", C, stateless=False)
    assert crew.feed(A, Tick()) == (Send(stopped),)
    assert crew.feed(A, Tick()) == (Send(stopped),)
    crew.recover(2, A, B)
    assert crew.feed(A, Tick()) == ()


def test_a_stopped_member_hears_of_the_recovery_world_and_wires_it() -> None:
    """Rule 11."""
    crew = cut()
    crew.hush()
    after = crew.recover(2, A, B)
    assert crew.said(A) == (Wire(after),)
    assert (crew[A].phase, crew[A].stop_reason, crew[A].wiring_generation) == (Phase.STOPPED, "a collective failed", 2)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"sealed": 1}, "generation 1 is sealed"),
        ({"unenterable_generations": frozenset({1})}, "generation 1 cannot be entered by all its members"),
        ({"gone_in_open_worlds": frozenset({C, B, D})}, "b, c is gone"),
    ],
)
def test_who_hears_that_its_world_is_over_breaks_the_group_and_waits_for_the_operation(
    facts: dict[str, Any], why: str
) -> None:
    """Rules 9, 10: the buffers are ours again when the operation returned, not before (H16)."""
    crew = training(A, B, C)
    crew.compute(A)
    assert crew.tell(A, **facts) == (Break(1),)
    assert (crew[A].phase, crew[A].in_flight, crew[A].stop_reason) == (Phase.COLLECTING, True, why)
    stopped = Stopped(A, 1, SECOND, these(0, 1), why, None, stateless=False)
    said = () if "sealed" in facts else (Send(stopped),)
    assert crew.feed(A, Failed(1, B)) == (Break(1), *said)
    assert (crew[A].phase, crew[A].in_flight, crew[A].stop_reason) == (Phase.STOPPED, False, why)


@pytest.mark.parametrize(
    "facts",
    [
        {"sealed": 0},
        {"unenterable_generations": frozenset({2})},
        {"gone_in_open_worlds": frozenset({D})},
        {"current": 2},
        {"draining": True},
    ],
)
def test_what_does_not_concern_its_world_stops_no_member(facts: dict[str, Any]) -> None:
    crew = training(A, B, C)
    crew.compute(A)
    crew.tell(A, **facts)
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.COLLECTING, "")


def test_user_code_is_not_interrupted() -> None:
    """Rule 10: the next safe moment is when some slots are done; what was computed is kept."""
    crew = training(A, B, C)
    assert crew.tell(A, gone_in_open_worlds=frozenset({C})) == ()
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.COMPUTING, "c is gone")
    stopped = Stopped(A, 1, SECOND, these(1), "c is gone", None, stateless=False)
    assert crew.feed(A, computed(3, 1)) == (Break(1), Send(stopped))
    assert crew[A].phase is Phase.STOPPED


def test_post_step_code_is_not_interrupted() -> None:
    """Rule 3."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns()
    crew.hush()
    assert crew.tell(A, gone_in_open_worlds=frozenset({C})) == ()
    crew.boundary(A)
    stopped = Stopped(A, 1, THIRD, EMPTY, "c is gone", None, stateless=False)
    assert crew.said(A) == (Break(1), Send(stopped))
    assert crew.state(A).posts == 3


def test_the_first_reason_to_stop_is_the_one_that_is_told() -> None:
    crew = training(A, B, C)
    crew.tell(A, gone_in_open_worlds=frozenset({C}))
    crew.tell(A, gone_in_open_worlds=frozenset({B, C}))
    assert crew[A].stop_reason == "c is gone"


def test_an_operation_that_returns_in_time_is_applied_all_the_same() -> None:
    """Rule 10: it waits for the operation to return, whichever way; the comparison will tell who has the step."""
    crew = training(A, B, C)
    crew.compute()
    crew.tell(A, gone_in_open_worlds=frozenset({C}))
    crew.hush()
    crew.returns(A)
    assert crew.said(A) == (Apply(STEPS[2]),)
    crew.boundary(A)
    assert crew[A].phase is Phase.STOPPED
    assert crew[A].lineage == THIRD


def test_failures_that_concern_nothing_under_way_are_ignored() -> None:
    crew = training(A, B, C)
    computing = crew[A]
    assert crew.feed(A, Failed(1, B)) == ()
    assert crew[A] == computing
    crew.compute(A)
    collecting = crew[A]
    assert crew.feed(A, Failed(2, B)) == ()
    assert crew[A] == collecting


def test_a_switch_that_was_decided_is_forgotten_by_who_stops() -> None:
    """Rule 10: planned worlds are not for it any more."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.compute()
    crew.returns()
    assert crew[A].switch_to == 2
    crew.tell(A, sealed=2)
    crew.boundary(A)
    assert (crew[A].phase, crew[A].switch_to, crew[A].generation) == (Phase.STOPPED, 0, 1)


# ------------------------------------------------------------------------------------------------------- hello


def test_a_recovery_world_begins_with_a_comparison() -> None:
    """Rule 12: lineage, whether it holds the state, kept slots."""
    crew = cut()
    after = crew.recover(2, A, B)
    crew.hush()
    crew.wire(2)
    for name, kept in ((A, these(0, 1)), (B, these(2, 3))):
        word = Word(Purpose.HELLO, 2, 0, SECOND, holds=True, state=crew.state(A).hash, kept=kept)
        assert crew.said(name) == (Collect(after, word),)
        m = crew[name]
        assert (m.generation, m.phase, m.entered, m.stop_reason, m.blamed_peer) == (
            2,
            Phase.COLLECTING,
            False,
            "",
            None,
        )
        assert (m.holders, m.previous_world, m.lineage) == (EMPTY, None, SECOND)
        assert m.kept_gradients.slots == kept


def test_a_comparison_in_which_all_agree_commits_the_step() -> None:
    """Rule 1: every member entered the hello with step 2 applied."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[1], ())
    crew.hush()
    crew.returns()
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (None, (STEPS[1],))
    report = Report(A, 0, 2, (STEPS[1],), frozenset({A, B}))
    assert crew.said(A) == (Compute(3, (4,), idle=False), Send(report))
    assert (crew[A].entered, crew[A].holders) == (True, these(0, 1))


def test_a_comparison_in_which_they_differ_commits_nothing_on_the_winner() -> None:
    """Rule 1: B has not applied step 3; it counts when a collective shows that it has."""
    crew = lagging()
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[2], (STEPS[1],))
    assert (crew[B].applied_line, tuple(crew[B].committed_lines)) == (STEPS[1], ())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"generation": 3}, "rank 1 is in a hello of 3, not a hello of 2"),
        ({"purpose": Purpose.STEP}, "rank 1 is in a step of 2, not a hello of 2"),
        ({"failed": True}, "rank 1 failed"),
    ],
)
def test_a_comparison_of_different_things_is_none(said: dict[str, Any], why: str) -> None:
    """H2, the second lock."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    first, second = crew.words(A)
    actions = crew.feed(A, Returned(2, (first, replace(second, **said))))
    assert actions == (Break(2), Send(Stopped(A, 2, SECOND, these(0, 1), why, None, stateless=False)))
    assert (crew[A].phase, crew[A].applied_line) == (Phase.STOPPED, STEPS[1])


def test_lineages_are_compared_by_generation_before_step() -> None:
    """H10: B redid a lower step in a later generation. A, with more steps, has the history that did not go on."""
    crew = cut()
    crew.seal(recovery(2, A, B))
    crew.wire(2)
    first, second = crew.words(A)
    redone = Lineage(2, 1, digest=7)
    actions = crew.feed(A, Returned(2, (first, replace(second, lineage=redone, kept=EMPTY))))
    assert actions == (CatchUp(B, redone), Send(Report(A, 0, 2, (), frozenset({A, B}))))
    assert (crew[A].phase, crew[A].catch_up_to) == (Phase.CATCHING_UP, redone)


def test_below_the_durable_step_the_world_stops_and_says_what_is_left() -> None:
    """Rule 12: step 3 is durable, and no member here has it."""
    crew = cut()
    crew.seal(recovery(2, A, B, base=THIRD))
    crew.wire(2)
    crew.hush()
    crew.returns(A)
    why = "the newest state left is of step 2, and the history is at step 3"
    assert crew.said(A) == (Break(2), Send(Stopped(A, 2, SECOND, these(0, 1), why, None, stateless=True)))
    assert (crew[A].phase, crew[A].stateless, crew[A].holds_state) == (Phase.STOPPED, True, True)
    assert crew[A].applied_line == STEPS[1]


def test_at_the_durable_step_the_world_goes_on() -> None:
    crew = cut()
    crew.seal(recovery(2, A, B, base=SECOND))
    crew.wire(2)
    crew.returns(A)
    assert (crew[A].phase, crew[A].stateless) == (Phase.COMPUTING, False)


def test_a_world_in_which_no_member_holds_the_state_stops() -> None:
    """Rule 12: the coordinator must fall back on a checkpoint."""
    crew = Crew(A, B)
    crew.seal(recovery(2, A, B))
    crew.wire(2)
    crew.hush()
    crew.returns(A)
    why = "no member holds the state"
    assert crew.said(A) == (Break(2), Send(Stopped(A, 2, GENESIS, EMPTY, why, None, stateless=True)))
    assert crew[A].stateless


def test_a_world_entered_afterwards_forgets_what_the_last_comparison_found() -> None:
    crew = cut()
    crew.seal(recovery(2, A, B, base=THIRD))
    crew.wire(2)
    crew.returns(A)
    crew.seal(recovery(3, A, B, base=SECOND))
    crew.wire(3)
    assert not crew[A].stateless
    assert crew[A].stop_reason == ""


# -------------------------------------------------------------------------------------------------------- redo


def test_only_the_missing_slots_are_computed_again() -> None:
    """Rule 14, H13: A keeps 0-1 and B 2-3, though the new world's runs would be 0-2 and 3-5; C's 4-5 are dealt out."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Compute(3, (4,), idle=False)
    assert crew.said(B)[0] == Compute(3, (5,), idle=False)
    assert crew[A].kept_gradients.slots == these(0, 1)
    crew.compute()
    assert crew[A].kept_gradients.slots == these(0, 1, 4)
    word = crew.word(B)
    assert (word.slots, word.samples, word.digest) == (3, 6, computed(3, 2, 3, 5).digest)
    assert word.slot_checksum == sum(map(slot_checksum, (2, 3, 5))) % 2**64
    crew.returns()
    [redone] = lines(SECOND, 2, 1)
    assert [crew[name].applied_line for name in (A, B)] == [redone, redone]
    assert (redone.samples, redone.digest) == (STEPS[2].samples, STEPS[2].digest)


def test_the_dealing_out_is_for_the_step_in_flight_only() -> None:
    """Rule 14: the next step's slots come from the world record again."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.returns()
    crew.step()
    crew.step()
    assert crew.said(A)[-1] == Compute(5, (0, 1, 2), idle=False)
    assert crew.said(B)[-1] == Compute(5, (3, 4, 5), idle=False)
    assert (crew[A].recovery_shares, crew[B].recovery_shares) == ((), ())


def test_a_member_that_kept_its_slots_and_gets_no_more_runs_an_idle_one() -> None:
    """Rules 14, 22: what it kept is in its sum all the same."""
    crew = training(A, B, C, D)
    assert [crew[name].slots_to_compute for name in (A, B, C, D)] == [these(0), these(1, 2), these(3), these(4, 5)]
    crew.compute()
    crew.crash(C)
    crew.fails(A, B, D, peer=C)
    crew.recover(2, A, B, D)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Compute(3, (3,), idle=False)
    assert crew.said(B)[0] == Compute(3, (1,), idle=True)
    assert crew.said(D)[0] == Compute(3, (2,), idle=True)
    crew.compute()
    assert (crew.word(B).slots, crew.word(B).samples) == (2, 4)
    crew.returns()
    assert crew[D].applied_line == lines(SECOND, 2, 1)[0]


def test_a_second_failure_loses_nothing_of_what_the_first_redo_computed() -> None:
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.returns()
    crew.compute(A)
    crew.fails(A)
    crew.recover(3, A, B)
    crew.feed(B, computed(3, 5))
    crew.wire(3)
    assert (crew.word(A).kept, crew.word(B).kept) == (these(0, 1, 4), these(2, 3, 5))
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Compute(3, (0,), idle=True)
    crew.compute()
    crew.returns()
    assert crew[A].applied_line == lines(SECOND, 3, 1)[0]


def test_kept_slots_that_are_not_disjoint_are_all_computed_afresh() -> None:
    """Rule 14: it cannot be, and must not be counted twice if it is."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    first, second = crew.words(A)
    crew.hush()
    crew.feed(A, Returned(2, (first, replace(second, kept=these(1, 2)))))
    assert crew.said(A)[0] == Compute(3, (0, 1, 2), idle=False)
    assert crew[A].kept_gradients == KeptGradients(base=SECOND)


def test_what_a_laggard_kept_is_of_another_step_and_does_not_count() -> None:
    """H13: A computed slots 0 and 1 of step 4; what B kept is of step 3."""
    crew = lagging()
    assert crew.said(A)[0] == Compute(4, (0,), idle=True)
    assert crew[B].recovery_shares == ((0, 1), ())


# ---------------------------------------------------------------------------------------------------- catch up


def test_a_laggard_takes_the_winners_gradient_and_makes_the_step_its_own() -> None:
    """Rule 13, H6, H7: its own state is stepped, and its own post-step code runs, once."""
    crew = halved()
    assert (crew.word(A).lineage, crew.word(B).lineage) == (THIRD, SECOND)
    crew.returns()
    assert crew.said(B)[-2:] == (CatchUp(A, THIRD), Send(Report(B, 1, 2, (), frozenset({A, B}))))
    m = crew[B]
    assert (m.phase, m.catch_up_to, m.lineage, m.holds_state) == (Phase.CATCHING_UP, THIRD, SECOND, True)
    assert m.kept_gradients.slots == these(2, 3)
    crew.hush()
    assert crew.feed(B, Gradient(STEPS[2])) == (Apply(STEPS[2]),)
    m = crew[B]
    assert (m.phase, m.catch_up_to, m.lineage) == (Phase.APPLIED, None, THIRD)
    assert (m.applied_line, tuple(m.committed_lines)) == (STEPS[2], (STEPS[1],))
    crew.boundary(B)
    assert crew.state(B) == crew.state(A)
    assert crew.state(B).posts == 3
    assert crew.said(B)[-1] == Compute(4, (1,), idle=True)
    assert crew[B].kept_gradients == KeptGradients(base=THIRD)
    crew.step()
    assert crew.state(B) == crew.state(A)
    assert crew[B].committed_lines == (STEPS[1], STEPS[2])


@pytest.mark.parametrize(
    "line",
    [
        None,
        replace(STEPS[2], parent=STEPS[0].lineage),
        replace(STEPS[2], lineage=STEPS[3].lineage),
    ],
)
def test_a_laggard_that_cannot_apply_the_gradient_receives_the_state_aside(line: Any) -> None:
    """Rule 13, H6: its own state and what it kept stay until the other is whole."""
    crew = lagging()
    assert crew.feed(B, Gradient(line)) == (Fetch(2, (A,)),)
    m = crew[B]
    assert (m.phase, m.fetching, m.catch_up_to) == (Phase.CATCHING_UP, True, THIRD)
    assert (m.lineage, m.holds_state, m.kept_gradients.slots, m.state_hash) == (
        SECOND,
        True,
        these(2, 3),
        crew.state(B).hash,
    )


def test_a_laggard_that_installs_the_winners_state_runs_no_post_step_code() -> None:
    """Rule 13, H7: the scheduler in that state has been stepped; `run.step()` is False here."""
    crew = lagging()
    crew.feed(B, Gradient(None))
    crew.hush()
    crew.receive(B)
    assert crew.said(B) == (Install(THIRD, ()),)
    m = crew[B]
    assert (m.phase, m.lineage, m.catch_up_to, m.fetching) == (Phase.INSTALLING, THIRD, None, False)
    assert (m.applied_line, tuple(m.committed_lines)) == (STEPS[2], (STEPS[1],))
    crew.install(B)
    assert crew.said(B) == (Compute(4, (1,), idle=True),)
    assert crew.state(B) == crew.state(A)
    assert (crew.state(B).posts, crew[B].kept_gradients) == (3, KeptGradients(base=THIRD))


def test_a_laggard_takes_over_the_reports_of_whom_it_follows() -> None:
    """Rule 24: lines that are durable already are not news."""
    crew = lagging()
    crew.feed(B, Gradient(None))
    stripe = Stripe(0, 1, THIRD, 5, STEPS[:3])
    crew.feed(B, stripe)
    assert (tuple(crew[B].committed_lines), crew[B].applied_line) == ((STEPS[1],), STEPS[2])


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_donor_whose_step_is_durable_leaves_nothing_to_commit(count: int) -> None:
    """The winner's line is durable or committed: then it is not in the tail as applied."""
    crew = lagging()
    crew.feed(B, Gradient(None))
    crew.tell(B, durable=STEPS[count - 1].lineage if count else GENESIS)
    crew.feed(B, Stripe(0, 1, THIRD, 5, STEPS[:2]))
    assert (tuple(crew[B].committed_lines), crew[B].applied_line) == (STEPS[min(count, 2) : 2], None)
    assert crew[B].lineage == THIRD


def test_a_state_of_another_lineage_than_the_winners_is_fetched_again() -> None:
    crew = lagging()
    crew.feed(B, Gradient(None))
    assert crew.feed(B, Stripe(0, 1, SECOND, 5, ())) == (Fetch(2, (A,)),)
    m = crew[B]
    assert (m.phase, m.received_state, m.stripes, m.fetching, m.lineage) == (Phase.CATCHING_UP, None, (), True, SECOND)


def test_a_donor_that_dies_leaves_the_laggard_as_it_was() -> None:
    """Rule 13, H6: neither torn nor without its gradients; they recover together."""
    crew = lagging()
    stopped = Stopped(B, 2, SECOND, these(2, 3), "the donor of a gradient cannot be reached", None, stateless=False)
    assert crew.feed(B, TransferBroken()) == (Break(2), Send(stopped))
    m = crew[B]
    assert (m.phase, m.lineage, m.applied_line, m.holds_state) == (Phase.STOPPED, SECOND, STEPS[1], True)


def test_the_last_holder_of_a_step_may_die_and_the_step_is_done_again() -> None:
    """H6: A alone had step 3, and is gone with it; B finishes it from what it kept."""
    crew = lagging()
    crew.crash(A)
    crew.answer(B)
    assert crew[B].phase is Phase.STOPPED
    crew.recover(3, B)
    crew.wire(3, B)
    crew.hush()
    crew.returns(B)
    assert crew.said(B)[0] == Compute(3, (0, 1, 4, 5), idle=False)
    crew.step()
    assert crew[B].lineage == lines(SECOND, 3, 1)[0].lineage


def test_a_gradient_no_member_asked_for_changes_nothing() -> None:
    crew = lagging()
    machine = crew[A]
    assert crew.feed(A, Gradient(STEPS[2])) == ()
    assert crew[A] == machine


def test_the_donor_is_the_first_that_has_the_winning_step() -> None:
    crew = training(A, B, C, D)
    crew.compute()
    crew.returns(B, C)
    crew.boundary(B, C)
    crew.crash(D)
    crew.fails(A, peer=D)
    crew.recover(2, A, B, C)
    crew.compute(B, C)
    crew.wire(2)
    crew.hush()
    crew.returns(A)
    assert crew.said(A)[0] == CatchUp(B, THIRD)


def test_who_hears_during_the_comparison_that_the_world_is_over_stops_after_it() -> None:
    """Rule 10: the hello returned in time, but the world it was for is sealed."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    assert crew.tell(A, sealed=2) == (Break(2),)
    crew.hush()
    crew.returns(A)
    assert crew.said(A) == (Break(2),)
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.STOPPED, "generation 2 is sealed")


def test_a_laggard_that_hears_so_applies_nothing_more() -> None:
    """Rule 10."""
    crew = halved()
    crew.tell(B, sealed=2)
    crew.hush()
    crew.returns(B)
    assert crew.said(B) == (Break(2),)
    assert crew.feed(B, Gradient(STEPS[2])) == ()
    assert (crew[B].phase, crew[B].lineage) == (Phase.STOPPED, SECOND)


def test_a_laggard_told_to_stop_does_so_at_once() -> None:
    crew = lagging()
    assert crew.tell(B, sealed=2) == (Break(2),)
    assert crew[B].phase is Phase.STOPPED
    assert crew.feed(B, Gradient(STEPS[2])) == ()


# -------------------------------------------------------------------------------------- joiners, and the last step


def test_a_joiner_in_a_recovery_world_fetches_from_the_winners_before_any_member_goes_on() -> None:
    """Rule 15: B is behind, so its state is not the one to take."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns(A)
    crew.boundary(A)
    crew.crash(C)
    crew.fails(B, peer=C)
    crew.add(E)
    crew.recover(2, E, A, B)
    crew.compute(A)
    crew.wire(2)
    assert crew.word(E) == Word(Purpose.HELLO, 2, 0, GENESIS, holds=False)
    crew.hush()
    crew.returns(E)
    assert crew.said(E) == (Fetch(2, (A,)),)
    assert (crew[E].phase, crew[E].catch_up_to, crew[E].compare_again) == (Phase.CATCHING_UP, THIRD, True)
    assert (crew[E].fetching, crew[E].holders, tuple(crew[E].committed_lines)) == (True, these(1, 2), ())


def test_a_failure_after_the_last_step_leads_to_the_closing_collective() -> None:
    """Every member has the last step; the hello commits it, and the run still ends with words."""
    crew = training(A, B, C, step=LAST)
    crew.step()
    crew.crash(C)
    crew.fails(A, B, peer=C)
    crew.add(E)
    crew.recover(2, A, B, E)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew[A].committed_lines[-1] == STEPS[-1]
    crew.receive(E)
    crew.install(E)
    assert [crew.word(name).purpose for name in (A, B, E)] == [Purpose.HELLO] * 3
    crew.returns()
    assert [crew.word(name).purpose for name in (A, B, E)] == [Purpose.CLOSE] * 3
    assert [crew.word(name).holds for name in (A, B, E)] == [True, True, True]
    crew.returns()
    assert [crew[name].phase for name in (A, B, E)] == [Phase.DONE] * 3


def test_a_laggard_catches_up_with_the_last_step() -> None:
    crew = training(A, B, C, step=LAST)
    crew.compute()
    crew.returns(A)
    crew.boundary(A)
    crew.crash(C)
    crew.fails(A, B, peer=C)
    crew.recover(2, A, B)
    crew.wire(2)
    crew.returns()
    assert crew.word(A).purpose is Purpose.CLOSE
    crew.answer(B)
    crew.boundary(B)
    assert crew.word(B).purpose is Purpose.CLOSE
    crew.returns()
    assert [crew[name].phase for name in (A, B)] == [Phase.DONE, Phase.DONE]
    assert crew.state(A) == crew.state(B)


def test_a_planned_world_is_wired_from_the_comparison_on() -> None:
    """Rule 10 holds for who stopped, not for who is in a recovery world."""
    crew = cut()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.hush()
    crew.propose(world(3, A, B, E))
    assert crew.said(A) == (Wire(world(3, A, B, E)),)
