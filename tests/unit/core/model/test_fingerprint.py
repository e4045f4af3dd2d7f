"""Members that compute other bits than the job's: there, visible, and in no world (P4)."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.validation import PAIR_NAME_MAX, PAIR_VALUE_MAX, PAIRS_MAX
from pliant.core.messages import Code
from pliant.core.messages.describe import describe
from pliant.core.model.fingerprint import DIFFERENCES_MAX, Fingerprint, fingerprint_difference, most_common
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState, member_state, mismatch_why, view_of
from unit.core.build import A, B, C, D, after, evolved, formed, join, made, new_job, pump, refused, report

NEW: Fingerprint = (("torch", "2.13.0"), ("threads", "1"))
OLD: Fingerprint = (("torch", "2.12.1"), ("threads", "1"))
OTHER = "computes other bits: with torch 2.12.1 where the job has 2.13.0"


def joins(name: MemberId, bits: Fingerprint = ()) -> m.Join:
    return replace(join(name), fingerprint=bits)


def strict(*members: tuple[MemberId, Fingerprint], size_min: int = 1) -> Job:
    """These joined at once."""
    return pump(new_job(size_min), *(joins(name, bits) for name, bits in members))[0]


# ----------------------------------------------------------------------------------------------------------- words


def test_bits_differ_in_words_a_person_understands() -> None:
    assert fingerprint_difference(NEW, OLD) == OTHER
    assert (
        fingerprint_difference(NEW, (("torch", "2.13.0"),))
        == "computes other bits: without threads where the job has 1"
    )
    assert fingerprint_difference((("torch", "1"),), (("torch", "1"), ("cuda", "12"))) == (
        "computes other bits: with cuda 12 where the job has none"
    )
    assert fingerprint_difference((("a", "1"), ("b", "1")), (("a", "2"), ("b", "2"))) == (
        "computes other bits: with a 2 where the job has 1, and with b 2 where the job has 1"
    )


def test_of_many_differences_the_first_are_named() -> None:
    ours, theirs = (tuple((f"n{i}", value) for i in range(DIFFERENCES_MAX + 2)) for value in "xy")
    assert fingerprint_difference(ours, theirs).endswith(", and with 2 more differences")


@pytest.mark.parametrize(("ours", "theirs"), [(NEW, NEW[::-1]), (NEW, ()), ((), OLD), ((), ())])
def test_the_same_bits_in_any_order_or_none_at_all_are_no_others(ours: Fingerprint, theirs: Fingerprint) -> None:
    assert fingerprint_difference(ours, theirs) == ""


def test_most_decide_and_of_as_many_the_first() -> None:
    assert most_common([OLD, NEW, NEW[::-1]]) == tuple(sorted(NEW))
    assert most_common([OLD, NEW]) == tuple(sorted(OLD))
    assert most_common([(), (), NEW]) == tuple(sorted(NEW))
    assert most_common([(), ()]) == ()
    assert most_common([]) == ()


# ---------------------------------------------------------------------------------------------------------- worlds


def test_the_first_world_is_of_those_most_of_whom_compute_the_same() -> None:
    job = strict((A, OLD), (B, NEW), (C, NEW))
    assert formed(job, 1).members == (B, C)
    assert job.fingerprint == NEW


def test_of_as_many_the_first_to_join_decide() -> None:
    job = strict((A, OLD), (B, NEW))
    assert (formed(job, 1).members, job.fingerprint) == ((A,), OLD)


def test_who_does_not_say_may_be_in_any_world() -> None:
    job = strict((A, ()), (B, NEW), (C, OLD), (D, NEW))
    assert (formed(job, 1).members, job.fingerprint) == ((A, B, D), NEW)


def test_the_first_world_with_any_member_that_says_decides_for_the_job() -> None:
    job = strict((A, ()))
    assert job.fingerprint == ()
    job = after(job, report(job, A, 1, holders=(A,)), joins(B, OLD), joins(C, NEW))
    assert (job.worlds[-1].members, job.fingerprint) == ((A, B), OLD)


def test_who_computes_other_bits_joins_and_stays_a_spare() -> None:
    job = strict((A, NEW), (B, NEW))
    job = after(job, report(job, A, 1, holders=(A, B)))
    [joined] = made(job, joins(C, OLD))
    assert describe(joined) == f"c joined; it is a spare: it {OTHER}"
    job = after(job, joins(C, OLD))
    assert [world.members for world in job.worlds] == [(A, B)]
    assert (mismatch_why(job, C), view_of(job, 1, C).spare_why) == (OTHER, OTHER)
    assert member_state(job, C) is MemberState.SPARE
    assert (mismatch_why(job, A), view_of(job, 1, A).spare_why, mismatch_why(job, D)) == ("", "", "")


def test_a_recovery_does_not_take_it_to_reach_min() -> None:
    job = strict((A, NEW), (B, NEW), size_min=2)
    job = after(job, report(job, A, 1, holders=(A, B)), joins(C, OLD), m.Expire(B))
    assert job.state is JobState.WAITING
    assert job.why == f"1 of the 2 workers needed; 1 other does not count: c {OTHER}; b was lost: its lease ran out"


def test_a_job_that_waits_says_how_many_do_not_count() -> None:
    job = strict((A, NEW), (B, OLD), (C, OLD[::-1]), (D, (("torch", "1"),)), size_min=3)
    assert job.state is JobState.WAITING
    assert job.why == (
        "2 of the 3 workers needed; 2 others do not count: a computes other bits: with torch 2.13.0 where the job has "
        "2.12.1; the job starts"
    )


def test_every_member_gone_those_who_compute_other_bits_do_not_take_over() -> None:
    """The history's bits are the job's promise, not the first world's."""
    job = strict((A, NEW))
    job = after(job, report(job, A, 1, 2, holders=(A,)), joins(B, OLD), m.Expire(A))
    assert (job.state, job.fingerprint) == (JobState.WAITING, NEW)


def test_a_world_that_names_no_member_we_know_decides_nothing() -> None:
    """It is complained about elsewhere; an event is never refused."""
    job = strict((A, ()))
    world = replace(formed(job, 1), number=2, members=(MemberId("stranger"),))
    assert evolved(job, m.WorldFormed(0.0, world)).fingerprint == ()


# ---------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "bits",
    [
        tuple((f"n{i}", "v") for i in range(PAIRS_MAX + 1)),
        (("torch", "1"), ("torch", "2")),
        (("", "1"),),
        (("n" * (PAIR_NAME_MAX + 1), "1"),),
        (("a\nb", "1"),),
        (("torch", "v" * (PAIR_VALUE_MAX + 1)),),
        (("torch", "a\nb"),),
    ],
)
def test_bits_that_cannot_be_said_are_refused(bits: Fingerprint) -> None:
    assert refused(new_job(), joins(A, bits)).code is Code.BAD


def test_bits_as_long_as_may_be_are_taken() -> None:
    bits = tuple((f"{i:0{PAIR_NAME_MAX}d}", "v" * PAIR_VALUE_MAX) for i in range(PAIRS_MAX))
    assert made(new_job(), joins(A, bits))
