"""Joining: who may, and what it sets in motion."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS
from pliant.core.job.validation import ADDRESS_MAX, PAIR_NAME_MAX, PAIR_VALUE_MAX, PAIRS_MAX, PID_MAX, WEIGHT_MAX
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobState, Member, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState, member_state
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    X,
    Y,
    after,
    formed,
    gathered,
    join,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    world,
)

PASS = "pass the job's value, or train under another name with --job"
OTHER_TERMS = {
    Terms(Grid(61, 10, 6, 2), seed=7): "with a dataset of 61 samples where the job has 60 samples",
    Terms(Grid(60, 12, 6, 2), seed=8): "with batch_size 12 where the job has 10, and with seed 8 where the job has 7",
    Terms(Grid(60, 10, 4, 3), seed=7, checkpoint_every=1): (
        "with slots 4 where the job has 6, with epochs 3 where the job has 2, "
        "and with checkpoint_every 1 where the job has 0"
    ),
    replace(TERMS, extra=(("order", "sequential"),)): "with order sequential where the job has none",
}


def test_the_first_member_fixes_the_terms() -> None:
    job = new_job(2)
    assert job.terms is None
    assert made(job, join(A, Y, weight=3)) == (m.MemberJoined(NOW, Member(A, 1, Y, 3), TERMS),)
    job = after(job, join(A, Y, weight=3))
    assert job.terms == TERMS
    assert (job.members, job.joined) == ({A: Member(A, 1, Y, 3)}, 1)


@pytest.mark.parametrize("terms", OTHER_TERMS, ids=OTHER_TERMS.values())
def test_a_member_that_would_train_with_other_terms_is_refused(terms: Terms) -> None:
    job = after(new_job(2), join(A))
    for name in (A, B):  # also the member that is in already: its process was started anew with other data
        refusal = refused(job, join(name, terms=terms))
        assert refusal.code is Code.MISMATCH
        assert refusal.why == f"{name} would train {OTHER_TERMS[terms]}: {PASS}"


LONGER = replace(TERMS, grid=replace(TERMS.grid, epochs=5))
SHORTER = replace(TERMS, grid=replace(TERMS.grid, epochs=1))
CHECKED = replace(TERMS, verify=3, checkpoint_every=6)


@pytest.mark.parametrize("terms", [LONGER, CHECKED])
def test_the_length_of_a_job_stays_while_members_train(terms: Terms) -> None:
    job = running(2, steps=3)
    why = refused(job, join(C, terms=terms)).why
    assert "where the job has" in why
    assert why.endswith(", and other members train now: stop them first, then start all with the new value")


@pytest.mark.parametrize("terms", [LONGER, SHORTER, CHECKED])
def test_a_next_start_may_change_the_length_of_a_job(terms: Terms) -> None:
    job = after(running(2, steps=3), m.Leave(A, 0, "bye"), m.Leave(B, 0, "bye"))
    assert made(job, join(C, terms=terms)) == (m.MemberJoined(NOW, Member(C, 3, X), terms),)
    job = after(job, join(C, terms=terms))
    assert job.terms == terms
    assert refused(job, join(D)).code is Code.MISMATCH  # a worker that was started with the old value


def test_a_next_start_cannot_end_before_the_steps_that_are_done() -> None:
    job = after(running(2, steps=6), m.Leave(A, 0, "bye"), m.Leave(B, 0, "bye"))
    why = refused(job, join(C, terms=SHORTER)).why
    assert why == (
        "c would train with epochs 1 where the job has 2: its training would end with step 6, but the job is at step 6 "
        "already: train longer, or under another name with --job"
    )
    assert refused(job, join(C, terms=replace(LONGER, seed=9))).why.endswith(PASS)


ENCRYPTED, PLAIN = replace(TERMS, encrypted=True), replace(TERMS, encrypted=False)


def test_a_member_that_could_not_connect_to_the_others_is_refused_with_the_setting_that_helps() -> None:
    without = refused(after(new_job(2), join(A, terms=ENCRYPTED)), join(B, terms=PLAIN))
    assert without == Rejection(
        Code.MISMATCH,
        "b has no CA file, but the other members encrypt their connections, so it could not connect to them: set "
        "PLIANT_CA_FILE or --ca-file as on the other machines",
    )
    only_one = refused(after(new_job(2), join(A, terms=PLAIN)), join(B, terms=ENCRYPTED))
    assert only_one == Rejection(
        Code.MISMATCH,
        "b has a CA file, but the other members have none, so they could not connect to it: set PLIANT_CA_FILE or "
        "--ca-file on every machine of the job, or on none",
    )


@pytest.mark.parametrize("terms", [ENCRYPTED, PLAIN])
def test_a_member_of_an_older_version_that_does_not_tell_joins(terms: Terms) -> None:
    assert set(after(new_job(2), join(A, terms=terms), join(B)).members) == {A, B}
    assert set(after(new_job(2), join(A), join(B, terms=terms)).members) == {A, B}


def test_a_next_start_may_encrypt_what_the_last_one_did_not() -> None:
    job = after(new_job(2), join(A, terms=PLAIN), m.Leave(A, 0, "bye"), join(B, terms=ENCRYPTED))
    assert job.terms == ENCRYPTED


ALSO = (("model", "MLP 3fa9"), ("order", "shuffled"))


@pytest.mark.parametrize(
    ("also", "differs"),
    [
        (ALSO[:1], "without order where the job has shuffled"),
        ((ALSO[0], ("order", "sequential")), "with order sequential where the job has shuffled"),
        ((*ALSO, ("precision", "bf16")), "with precision bf16 where the job has none"),
    ],
)
def test_terms_of_the_users_own_must_be_equal_too(also: tuple[tuple[str, str], ...], differs: str) -> None:
    job = after(new_job(2), join(A, terms=replace(TERMS, extra=ALSO)))
    refusal = refused(job, join(B, terms=replace(TERMS, extra=also)))
    assert refusal == Rejection(Code.MISMATCH, f"b would train {differs}: {PASS}")


def test_in_which_order_terms_are_said_does_not_matter_and_the_first_stays() -> None:
    job = after(new_job(2), join(A, terms=replace(TERMS, extra=ALSO)), join(B, terms=replace(TERMS, extra=ALSO[::-1])))
    assert job.terms == replace(TERMS, extra=ALSO)
    assert len(job.members) == 2


def test_of_very_many_differences_the_first_are_named() -> None:
    ours, theirs = (tuple((f"t{i}", value) for i in range(PAIRS_MAX)) for value in "xy")
    job = after(new_job(2), join(A, terms=replace(TERMS, extra=ours)))
    why = refused(job, join(B, terms=replace(TERMS, extra=theirs))).why
    assert why.endswith(f"with t7 y where the job has x, and with 24 more differences: {PASS}")


@pytest.mark.parametrize(("verify", "every"), [(-1, 0), (1_000_001, 0), (3, 4), (4, 2)])
def test_states_are_verified_so_that_a_checkpoint_has_one_that_was(verify: int, every: int) -> None:
    """No member would know whether the others were worth going back to."""
    assert refused(new_job(), join(A, terms=replace(TERMS, verify=verify, checkpoint_every=every))).code is Code.BAD


@pytest.mark.parametrize(("verify", "every"), [(0, 5), (1, 5), (5, 5), (5, 10), (1_000_000, 0)])
def test_a_checkpoint_of_a_verified_step_is_taken(verify: int, every: int) -> None:
    assert made(new_job(), join(A, terms=replace(TERMS, verify=verify, checkpoint_every=every)))


@pytest.mark.parametrize(
    "also",
    [
        tuple((f"t{i}", "") for i in range(PAIRS_MAX + 1)),
        (("order", "a"), ("order", "b")),
        (("seed", "7"),),
        (("", "a"),),
        (("n" * (PAIR_NAME_MAX + 1), "a"),),
        (("a\nb", "a"),),
        (("order", "v" * (PAIR_VALUE_MAX + 1)),),
        (("order", "a\x1b[0m"),),
    ],
)
def test_terms_that_cannot_be_said_are_refused(also: tuple[tuple[str, str], ...]) -> None:
    assert refused(new_job(), join(A, terms=replace(TERMS, extra=also))).code is Code.BAD


def test_terms_as_long_as_they_may_be_are_taken() -> None:
    also = tuple((f"{i:0{PAIR_NAME_MAX}d}", "v" * PAIR_VALUE_MAX) for i in range(PAIRS_MAX))
    assert made(new_job(), join(A, terms=replace(TERMS, extra=also)))


# ------------------------------------------------------------------------------------------------- addresses


def test_a_world_says_where_its_members_reach_one_another() -> None:
    job = after(new_job(3), join(A, address="10.0.0.1:7001", pid=41), join(B), join(C, address="[::1]:7003"))
    assert formed(job, 1).addresses == ("10.0.0.1:7001", "", "[::1]:7003")
    assert (job.members[A].address, job.members[A].pid, job.members[B].pid) == ("10.0.0.1:7001", 41, 0)


@pytest.mark.parametrize("address", ["a:1\n", "a b:1", "a\t:1", "\x00", "\u2028:1", "h" * (ADDRESS_MAX + 1)])
def test_an_address_no_member_can_dial_is_refused(address: str) -> None:
    assert refused(new_job(), join(A, address=address)).code is Code.BAD
    assert made(new_job(), join(A, address="h" * ADDRESS_MAX))


@pytest.mark.parametrize("pid", [-1, PID_MAX + 1])
def test_a_process_id_is_one(pid: int) -> None:
    assert refused(new_job(), join(A, pid=pid)) == Rejection(
        Code.BAD, f"a process id must be 0 to 4294967295; got {pid}"
    )
    assert made(new_job(), join(A, pid=PID_MAX))


# --------------------------------------------------------------------------------------------------- members


def test_members_are_numbered_as_they_join_and_numbers_are_not_used_again() -> None:
    job = after(new_job(3), join(A), join(B), m.Leave(B, 0, "bye"), join(C))
    assert {name: one.number for name, one in job.members.items()} == {A: 1, C: 3}
    assert job.joined == 3


def test_joining_twice_is_joining_once() -> None:
    job = after(new_job(2), join(A))
    assert made(job, join(A)) == ()
    assert made(job, join(A, Y, weight=0)) == ()  # the answer to the first was lost; nothing is judged again


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1])
def test_a_member_must_weigh_something(weight: int) -> None:
    why = f"a member's weight must be 1 to 1000000; got {weight}"
    assert refused(new_job(), join(A, weight=weight)) == Rejection(Code.BAD, why)
    assert made(new_job(), join(A, weight=WEIGHT_MAX))


def test_a_member_and_its_agent_have_names_that_fit_into_an_address() -> None:
    assert refused(new_job(), join(MemberId("a b"))).code is Code.BAD
    assert refused(new_job(), join(A, AgentId("a b"))).code is Code.BAD


def test_gone_for_good_means_not_under_that_name() -> None:
    """Rule 11: lost is final; that process may come back only as a new member without state (H10)."""
    job = after(running(3), m.Expire(C))
    assert refused(job, join(C)) == Rejection(Code.GONE, "c is gone for good; join as a new member")
    assert made(job, join(D)) == (m.MemberJoined(NOW, Member(D, 4, X), TERMS),)


def test_that_a_name_is_gone_is_said_before_anything_else() -> None:
    job = after(running(3), m.Expire(C))
    assert refused(job, join(C, terms=next(iter(OTHER_TERMS)), weight=0)).code is Code.GONE


def test_no_world_forms_below_min() -> None:
    job = new_job(3)
    for count, name in enumerate((A, B), 1):
        job, events = pump(job, join(name))
        why = f"{count} of the 3 workers needed; the job starts"
        assert events[1:] == (m.StateChanged(NOW, JobState.WAITING, why),)
        assert job.generation == 0


def test_the_first_world_forms_at_exactly_min_and_starts_from_nothing() -> None:
    job, events = pump(after(new_job(3), join(A), join(B, weight=2)), join(C))
    first = formed(job, 1)
    assert (first.number, first.kind, first.members) == (1, WorldKind.ROLLBACK, (A, B, C))
    assert (first.weights, first.base, first.hold, first.why) == ((1, 2, 1), GENESIS, False, "the job starts")
    assert events[1:] == (
        m.WorldFormed(NOW, first),
        m.StateChanged(NOW, JobState.STARTING, "the job starts"),
    )
    assert (job.generation, job.current, job.sealed) == (1, 0, 0)


def test_no_member_is_added_to_a_first_world_that_has_not_reported() -> None:
    job, events = pump(gathered(2), join(C))
    assert events == (m.MemberJoined(NOW, Member(C, 3, X), TERMS),)
    assert job.worlds == gathered(2).worlds
    assert member_state(job, C) is MemberState.JOINING


def test_the_first_report_makes_the_job_run_and_lets_the_late_in() -> None:
    job = after(gathered(2), join(C))
    job, events = pump(job, report(job, B, 1, holders=(A, B)))
    second = world(2, A, B, C, why="c joins")
    assert events == (
        m.WorldEntered(NOW, 1),
        m.HoldersChanged(NOW, 1, frozenset({A, B})),
        m.WorldFormed(NOW, second),
        m.StateChanged(NOW, JobState.RUNNING, "c joins"),
    )
    assert [one.number for one in job.worlds] == [1, 2]
    assert (job.current, job.sealed) == (1, 0)


def test_a_joiner_never_stops_who_trains() -> None:
    """Rules 5, 8: another membership is planned while the present one goes on, and entered by the switch."""
    before = running(2, steps=3)
    job, events = pump(before, join(C))
    assert formed(job, 2).kind is WorldKind.PLANNED
    assert formed(job, 2).base == before.durable
    assert formed(job, 1) == formed(before, 1)
    assert not any(isinstance(event, m.WorldBroken | m.WorldEntered) for event in events)
    assert member_state(job, C) is MemberState.JOINING
    assert member_state(job, A) is MemberState.ACTIVE


def test_who_joins_beyond_the_target_is_a_spare() -> None:
    job, events = pump(running(2, new_job(1, 6, 2)), join(C))
    assert events == (m.MemberJoined(NOW, Member(C, 3, X), TERMS),)
    assert len(job.worlds) == 1
    assert member_state(job, C) is MemberState.SPARE
