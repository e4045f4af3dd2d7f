"""A member without state: let in, following the others' steps, receiving the state aside (rule 15)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.data.ledger import GENESIS, LedgerLine
from pliant.core.member import Phase
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.join import FOLLOWED_MAX
from pliant.core.member.signals import (
    Admission,
    Break,
    Collect,
    Compute,
    Failed,
    Fetch,
    Install,
    Installed,
    Returned,
    Send,
    Stripe,
    Tick,
    TransferBroken,
    Wired,
)
from pliant.core.member.state import FollowedStep, KeptGradients
from pliant.core.messages import Stopped
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import EMPTY, LAST, Crew, State, lines, recovery, these, training

NEXT = world(2, A, B, D)
STATELESS = Word(Purpose.STEP, 2, 0, GENESIS, holds=False)
THEIRS = ((0, 1, 2), (3, 4, 5), ())  # who brings which slots while D follows


def history(switch: int) -> tuple[LedgerLine, ...]:
    """The lines of a job whose generation 2 begins after step `switch`."""
    before = lines(GENESIS, 1, switch)
    return (*before, *lines(before[-1].lineage, 2, LAST - switch))


STEPS = history(5)


def admitted(step: int = 5) -> Crew:
    """D was let into generation 2 after `step`, without state; A and B compute the next one."""
    crew = training(A, B, step=step)
    crew.add(D)
    crew.propose(NEXT)
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    return crew


def pieces(crew: Crew, donor: MemberId, count: int = 2) -> tuple[Stripe, ...]:
    """The stripes of a donor's state as it is now."""
    state = crew.state(donor)
    return tuple(
        Stripe(index, count, state.lineage, state.hash, unreported_lines(crew[donor])) for index in range(count)
    )


def bring(crew: Crew, stripe: Stripe, state: State) -> None:
    """That stripe of that state arrives at D."""
    crew.seats[D].aside = state
    crew.feed(D, stripe)


# --------------------------------------------------------------------------------------------------- let in


def test_a_joiner_is_let_in_by_a_member_of_the_world_it_wired() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.feed(D, Wired(2))
    assert (crew[D].phase, crew[D].wired_worlds) == (Phase.OUTSIDE, (NEXT,))
    assert crew.feed(D, Admission(2, crew[A].lineage, (A, B))) == (Fetch(2, (A, B)), Collect(NEXT, STATELESS, THEIRS))
    m = crew[D]
    assert (m.phase, m.world, m.rank, m.wired_worlds) == (Phase.COLLECTING, NEXT, 2, ())
    assert (m.fetching, m.in_flight, m.holds_state, m.entered) == (True, True, False, False)


def test_a_joiner_let_in_before_its_own_wiring_returned_follows_when_it_does() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    word = Admission(2, crew[A].lineage, (A, B))
    assert crew.feed(D, word) == ()
    assert (crew[D].admission, crew[D].phase) == (word, Phase.OUTSIDE)
    assert crew.feed(D, Wired(2)) == (Fetch(2, (A, B)), Collect(NEXT, STATELESS, THEIRS))
    assert (crew[D].admission, crew[D].generation) == (None, 2)


def test_a_joiner_is_not_let_into_another_world_than_the_one_entered() -> None:
    """The others entered 2; D wired 3 instead, and waits for the words to lead there, or for a recovery."""
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.propose(world(3, A, B, D), D)
    word = Admission(2, crew[A].lineage, (A, B))
    crew.feed(D, word)
    assert crew.feed(D, Wired(3)) == ()
    assert (crew[D].phase, crew[D].generation, crew[D].admission) == (Phase.OUTSIDE, 0, word)


def test_no_member_is_let_in_twice() -> None:
    crew = admitted()
    machine = crew[D]
    assert crew.feed(D, Admission(2, crew[A].lineage, (A, B))) == ()
    assert crew.feed(D, Admission(3, crew[A].lineage, (A, B))) == ()
    assert crew[D] == machine


def test_a_late_word_that_lets_a_joiner_into_a_sealed_world_leads_nowhere() -> None:
    """P6: it breaks the group at once, and goes on to the recovery world."""
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.wire(2, D)
    crew.seal(recovery(3, A, B, D), D)
    crew.hush()
    crew.feed(D, Admission(2, crew[A].lineage, (A, B)))
    assert crew.said(D)[-1] == Break(2)
    crew.fails(D)
    crew.wire(3, D)
    assert (crew[D].generation, crew.word(D).purpose) == (3, Purpose.HELLO)


@pytest.mark.parametrize("step", [LAST - 1, LAST])
def test_a_joiner_let_in_after_the_last_step_closes_with_the_others(step: int) -> None:
    crew = training(A, B, step=step)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.wire(2, D)
    crew.step()
    crew.feed(D, Admission(2, crew[A].lineage, (A, B)))
    expected = Purpose.CLOSE if step == LAST else Purpose.STEP
    assert (crew.word(D).purpose, crew.word(D).step) == (expected, 0)


def test_a_joiner_let_into_a_world_that_holds_closes_with_the_others() -> None:
    crew = training(A, B)
    crew.add(D)
    holding = world(2, A, D, hold=True)
    crew.propose(holding, A, D)
    crew.wire(2)
    crew.step()
    crew.deliver()
    assert crew.word(A).purpose is Purpose.CLOSE
    assert crew.word(D) == Word(Purpose.CLOSE, 2, 0, GENESIS, holds=False)


# ------------------------------------------------------------------------------------------------ following


def test_a_step_that_goes_by_is_remembered_and_not_applied() -> None:
    """Rule 15: without state there is nothing to apply it to, and nothing to compute for it."""
    crew = admitted()
    before = crew.state(A).hash
    crew.compute()
    crew.returns(D)
    assert crew.said(D) == (Collect(NEXT, STATELESS, THEIRS),)
    m = crew[D]
    assert m.followed_steps == (FollowedStep(STEPS[5], before),)
    assert (m.phase, m.lineage, m.applied_line, tuple(m.committed_lines), m.holds_state) == (
        Phase.COLLECTING,
        GENESIS,
        None,
        (),
        False,
    )
    assert m.holders == these(0, 1)
    assert m.fetching


def test_only_so_many_steps_are_remembered() -> None:
    """H9: the backlog is bounded."""
    assert FOLLOWED_MAX == 8
    crew = admitted(step=2)
    for _ in range(FOLLOWED_MAX + 1):
        crew.step()
    assert [heard.line.lineage.step for heard in crew[D].followed_steps] == list(range(4, 4 + FOLLOWED_MAX))


def test_a_follower_stops_when_the_words_disagree() -> None:
    crew = admitted()
    crew.compute()
    first, second, third = crew.words(D)
    why = "rank 1 holds another state than the ranks before it"
    actions = crew.feed(D, Returned(2, (first, replace(second, state=3), third)))
    assert actions == (Break(2), Send(Stopped(D, 2, STEPS[4].lineage, EMPTY, why, None, diverged=True)))
    assert (crew[D].phase, crew[D].followed_steps, crew[D].fetching) == (Phase.STOPPED, (), False)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_follower_closes_after_the_last_step(steps: int) -> None:
    """It is done with the others, though it never held the state."""
    crew = admitted(step=LAST - steps)
    for _ in range(steps):
        assert crew.word(D) == STATELESS
        crew.step()
    assert crew.word(D) == replace(STATELESS, purpose=Purpose.CLOSE)
    crew.returns()
    assert (crew[D].phase, crew[D].holds_state) == (Phase.DONE, False)
    assert (crew[D].applied_line, tuple(crew[D].committed_lines)) == (None, ())


# ------------------------------------------------------------------------------------- receiving and installing


def test_a_whole_state_is_installed_once_the_words_prove_it() -> None:
    """Rule 15: the hash in the members' words equals its own; the step that went by meanwhile is replayed."""
    crew = admitted()
    crew.receive(D)
    aside = crew[D].received_state
    assert aside == Stripe(0, 1, STEPS[4].lineage, crew.state(A).hash, STEPS[3:5])
    assert (crew[D].fetching, crew[D].holds_state, crew.said(D)) == (False, False, ())
    crew.compute()
    crew.returns(D)
    assert crew.said(D) == (Install(STEPS[4].lineage, (STEPS[5],)),)
    m = crew[D]
    assert (m.phase, m.lineage, m.holds_state) == (Phase.INSTALLING, STEPS[5].lineage, False)
    assert (tuple(m.committed_lines), m.applied_line) == (STEPS[3:5], STEPS[5])


def test_what_is_durable_already_needs_no_report_of_the_joiner() -> None:
    crew = admitted()
    crew.receive(D)
    crew.compute()
    crew.tell(D, durable=STEPS[3].lineage)
    crew.returns(D)
    assert (tuple(crew[D].committed_lines), crew[D].applied_line) == (STEPS[4:5], STEPS[5])


def test_who_installed_holds_the_state_and_says_so_in_the_next_words() -> None:
    """Rule 15: until its word says so it owns no slots; the idle one runs the loop's body (rule 22)."""
    crew = admitted()
    crew.receive(D)
    crew.step()
    crew.hush()
    crew.install(D)
    assert crew.said(D) == (Compute(7, (2,), idle=True),)
    m = crew[D]
    assert (m.phase, m.holds_state, m.state_hash) == (Phase.COMPUTING, True, crew.state(A).hash)
    assert (m.kept_gradients, m.received_state, m.stripes, m.followed_steps) == (
        KeptGradients(base=STEPS[5].lineage),
        None,
        (),
        (),
    )
    crew.compute()
    word = crew.word(D)
    assert (word.step, word.holds, word.state, word.lineage) == (7, True, crew.state(A).hash, STEPS[5].lineage)
    crew.returns()
    crew.boundary()
    assert [crew[name].holders for name in (A, B, D)] == [these(0, 1, 2)] * 3
    assert [crew[name].slots_to_compute for name in (A, B, D)] == [these(0, 1), EMPTY, EMPTY]  # step 8 is a short one
    assert crew.state(D) == crew.state(A)


def test_steps_that_went_by_during_the_transfer_are_replayed_in_order() -> None:
    """Rule 15: each brings its small state, so the user's code need not run for them here."""
    crew = admitted()
    [stripe] = pieces(crew, A, count=1)
    state = crew.state(A)
    crew.step()
    crew.step()
    bring(crew, stripe, state)
    crew.compute()
    crew.hush()
    crew.returns(D)
    assert crew.said(D) == (Install(STEPS[4].lineage, STEPS[5:8]),)
    assert (tuple(crew[D].committed_lines), crew[D].applied_line) == (STEPS[3:7], STEPS[7])
    crew.returns(A, B)
    crew.boundary(A, B)
    crew.install(D)
    assert crew.state(D) == crew.state(B)


def test_a_state_as_new_as_the_last_step_heard_waits_for_the_next_words() -> None:
    """Nothing proves it yet: the words of a step carry the hash of the state before it."""
    crew = admitted()
    crew.step()
    crew.compute()
    crew.returns(A, B)
    crew.boundary(A)
    crew.receive(D)
    crew.hush()
    crew.returns(D)
    assert crew.said(D) == (Collect(NEXT, STATELESS, ((0, 1), (), ())),)
    assert crew[D].received_state is not None
    assert not crew[D].fetching
    crew.boundary(B)
    crew.compute()
    crew.hush()
    crew.returns(D)
    assert crew.said(D) == (Install(STEPS[6].lineage, (STEPS[7],)),)


def test_a_state_whose_hash_is_not_the_members_own_is_fetched_again() -> None:
    """H9: each stripe's checksum may be good, and the whole is not what the others have."""
    crew = admitted()
    [stripe] = pieces(crew, A, count=1)
    bring(crew, replace(stripe, state=stripe.state + 1), State())
    crew.compute()
    crew.returns(D)
    assert crew.said(D) == (Fetch(2, (A, B)), Collect(NEXT, STATELESS, THEIRS))
    assert (crew[D].received_state, crew[D].stripes, crew[D].fetching) == (None, (), True)


def test_a_state_of_another_history_is_fetched_again() -> None:
    crew = admitted()
    [stripe] = pieces(crew, A, count=1)
    bring(crew, replace(stripe, lineage=replace(stripe.lineage, digest=1)), State())
    crew.compute()
    crew.returns(D)
    assert crew.said(D) == (Fetch(2, (A, B)), Collect(NEXT, STATELESS, THEIRS))


@pytest.mark.parametrize(("steps", "installs"), [(FOLLOWED_MAX, True), (FOLLOWED_MAX + 1, False)])
def test_a_state_older_than_what_is_remembered_is_fetched_again(steps: int, installs: bool) -> None:
    """H9: bound the backlog; with more steps to replay a newer state is the shorter way."""
    crew = admitted(step=2)
    [stripe] = pieces(crew, A, count=1)
    state = crew.state(A)
    for _ in range(steps - 1):
        crew.step()
    bring(crew, stripe, state)
    crew.compute()
    crew.hush()
    crew.returns(D)
    expected = Install(stripe.lineage, history(2)[2 : 2 + steps]) if installs else Fetch(2, (A, B))
    assert crew.said(D)[0] == expected


# --------------------------------------------------------------------------------------------------- stripes


def test_a_state_is_whole_when_every_stripe_is_there() -> None:
    crew = admitted()
    first, second, third = pieces(crew, A, count=3)
    assert crew.feed(D, third) == ()
    assert crew.feed(D, first) == ()
    assert crew.feed(D, first) == ()
    assert (crew[D].stripes, crew[D].received_state, crew[D].fetching) == ((third, first), None, True)
    assert crew.feed(D, second) == ()
    assert (crew[D].stripes, crew[D].received_state, crew[D].fetching) == ((third, first, second), second, False)


@pytest.mark.parametrize("label", [{"lineage": GENESIS}, {"state": 5}, {"count": 3}])
def test_stripes_with_two_labels_mean_starting_again(label: dict[str, Any]) -> None:
    """H9: stripe 1 of step 5 and stripe 2 of step 6 are no state at all, though each checksum is good."""
    crew = admitted()
    crew.step()
    crew.hush()
    first, second = pieces(crew, A)
    crew.feed(D, first)
    assert crew.feed(D, replace(second, **label)) == (Fetch(2, (A, B)),)
    m = crew[D]
    assert (m.stripes, m.received_state, m.fetching) == ((), None, True)
    assert crew.feed(D, second) == ()
    assert m.received_state is None


def test_a_donor_that_goes_on_between_two_stripes_means_starting_again() -> None:
    """H9, told in full: the second attempt brings one lineage, and that is installed."""
    crew = admitted()
    first, _ = pieces(crew, A)
    crew.feed(D, first)
    crew.step()
    _, second = pieces(crew, B)
    assert crew.feed(D, second) == (Fetch(2, (A, B)),)
    crew.receive(D)
    crew.step()
    crew.install(D)
    crew.step()
    assert crew.state(D) == crew.state(A) == crew.state(B)


def test_stripes_that_no_member_waits_for_are_dropped() -> None:
    crew = admitted()
    first, second = pieces(crew, A)
    crew.receive(D)
    machine = crew[D]
    assert crew.feed(D, first) == crew.feed(D, second) == ()
    assert crew[D] == machine
    assert crew.feed(A, first) == ()
    assert crew[A].stripes == ()


def test_a_broken_transfer_starts_again_from_a_member_that_holds_the_state_now() -> None:
    crew = admitted()
    crew.step()
    first, _ = pieces(crew, A)
    crew.feed(D, first)
    crew.hush()
    assert crew.feed(D, TransferBroken()) == (Fetch(2, (A, B)),)
    assert (crew[D].stripes, crew[D].fetching, crew[D].phase) == ((), True, Phase.COLLECTING)


def test_values_of_user_code_that_differ_between_donors_come_from_one_of_them() -> None:
    """Else a joiner would ask for stripes that never match, and the others would wait for it in the collective."""
    crew = admitted()
    crew.step()
    crew.hush()
    assert crew.feed(D, TransferBroken(values_differ=True)) == (Fetch(2, (A,)),)
    assert crew.feed(D, TransferBroken()) == (Fetch(2, (A, B)),)


def test_donors_whose_states_differ_end_the_collective_that_waits_for_the_joiner() -> None:
    """Else the words that show which of them is wrong would never be compared."""
    crew = admitted()
    crew.hush()
    assert crew.feed(D, TransferBroken(wrong_state=True)) == (Break(2),)
    assert crew[D].stop_reason == "the donors' states differ"
    said = crew.feed(D, Failed(2, None))
    sent = [each.command for each in said if isinstance(each, Send)]
    assert [(each.why, each.diverged) for each in sent if isinstance(each, Stopped)] == [
        ("the donors' states differ", False)
    ]


def test_a_transfer_that_is_over_cannot_break() -> None:
    crew = admitted()
    crew.receive(D)
    machine = crew[D]
    assert crew.feed(D, TransferBroken()) == ()
    assert crew[D] == machine


def test_a_transfer_that_stays_silent_for_three_ticks_starts_again() -> None:
    crew = admitted()
    crew.step()
    first, second, _ = pieces(crew, A, count=3)
    assert crew.feed(D, Tick()) == crew.feed(D, Tick()) == ()
    assert crew[D].quiet_ticks == 2
    assert crew.feed(D, Tick()) == (Fetch(2, (A, B)),)
    assert (crew[D].quiet_ticks, crew[D].stripes) == (0, ())
    crew.feed(D, first)
    crew.feed(D, Tick())
    crew.feed(D, Tick())
    crew.feed(D, second)
    assert (crew[D].quiet_ticks, crew[D].stripes) == (0, (first, second))
    assert crew.feed(D, Tick()) == ()


def test_who_waits_for_no_stripes_counts_no_ticks() -> None:
    crew = admitted()
    crew.receive(D)
    for _ in range(4):
        assert crew.feed(D, Tick()) == ()
    assert crew[D].quiet_ticks == 0


# ------------------------------------------------------------------------------- what may happen on the way


def test_a_joiner_that_stops_gives_up_what_it_received() -> None:
    """Rule 10: the next world's lineage may be another one."""
    crew = admitted()
    crew.compute()
    crew.returns(D)
    first, _ = pieces(crew, A)
    crew.feed(D, first)
    crew.hush()
    crew.fails(D, peer=B)
    assert crew.said(D) == (
        Break(2),
        Send(Stopped(D, 2, STEPS[5].lineage, EMPTY, "a collective failed", B, False)),
    )
    m = crew[D]
    assert (m.fetching, m.stripes, m.received_state, m.followed_steps) == (False, (), None, ())
    crew = admitted()
    crew.receive(D)
    crew.fails(D)
    assert crew[D].received_state is None


def test_a_joiner_told_to_stop_installs_nothing_more() -> None:
    """Its world is sealed; the step's collective returned just in time."""
    crew = admitted()
    crew.receive(D)
    crew.compute()
    crew.tell(D, sealed=2)
    crew.hush()
    crew.returns(D)
    assert crew.said(D) == (Break(2),)
    assert (crew[D].phase, crew[D].stop_reason) == (Phase.STOPPED, "generation 2 is sealed")
    assert (crew[D].holds_state, crew[D].received_state) == (False, None)


def test_an_installation_is_not_interrupted() -> None:
    """Rule 13: what was received is installed at once, or not at all."""
    crew = admitted()
    crew.receive(D)
    crew.compute()
    crew.returns(D)
    crew.hush()
    assert crew.tell(D, sealed=2) == ()
    assert crew[D].phase is Phase.INSTALLING
    assert crew.feed(D, Tick()) == ()
    crew.returns(A, B)
    crew.boundary(A, B)
    crew.hush()
    crew.install(D)
    assert crew.said(D) == (Break(2),)
    m = crew[D]
    assert (m.phase, m.holds_state, m.lineage) == (Phase.STOPPED, True, STEPS[5].lineage)
    assert m.kept_gradients == KeptGradients(base=STEPS[5].lineage)


def test_words_that_say_both_install_and_switch_are_followed_in_this_order() -> None:
    """Rule 3: state is installed, and the world changes, at the boundary alone."""
    crew = admitted()
    crew.propose(world(3, A, D))
    crew.wire(3)
    crew.step()
    crew.receive(D)
    crew.compute()
    crew.returns(D)
    assert (crew[D].phase, crew[D].switch_to, crew[D].generation) == (Phase.INSTALLING, 3, 2)
    crew.returns(A, B)
    crew.boundary(A, B)
    crew.hush()
    crew.install(D)
    assert crew.said(D) == (Compute(8, (1,), idle=True),)
    m = crew[D]
    assert (m.generation, m.rank, m.holds_state, m.holders) == (3, 1, True, these(0))
    assert crew[B].phase is Phase.LINGERING


def test_who_installs_the_last_step_closes_with_the_others() -> None:
    crew = admitted(step=LAST - 1)
    crew.receive(D)
    crew.step()
    crew.install(D)
    word = crew.word(D)
    assert (word.purpose, word.holds, word.lineage.step) == (Purpose.CLOSE, True, LAST)
    crew.returns()
    assert [(crew[name].phase, crew[name].holds_state) for name in (A, B, D)] == [(Phase.DONE, True)] * 3


def test_an_installation_no_member_ordered_changes_nothing() -> None:
    crew = admitted()
    for name in (A, D):
        machine = crew[name]
        assert crew.feed(name, Installed(9)) == ()
        assert crew[name] == machine


def test_two_joiners_take_the_state_at_their_own_pace() -> None:
    crew = training(A, B)
    crew.add(C)
    crew.add(D)
    crew.propose(world(2, A, B, C, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.receive(C)
    crew.step()
    crew.install(C)
    crew.receive(D)
    crew.step()
    crew.install(D)
    crew.step()
    assert len({crew.state(name) for name in (A, B, C, D)}) == 1
    assert crew[A].holders == these(0, 1, 2, 3)
    assert [crew[name].slots_to_compute for name in (A, B, C, D)] == [these(0), these(1, 2), these(3), these(4, 5)]
