"""Leases: time gives liveness only, and errs on the late side (rule 19)."""

from math import inf

import pytest

from pliant.core.leases import IsolationDetector, Leases


def unseen(key: str) -> float | None:
    return None


def leases(pause_s: float = 100.0) -> Leases[str]:
    return Leases(pause_s)


def test_a_lease_runs_out_at_its_deadline_and_not_before() -> None:
    held = leases()
    held.grant("a", 10.0, now=5.0)
    assert held.expired(14.999, unseen) == []
    assert held.expired(15.0, unseen) == ["a"]


def test_a_lease_has_the_time_to_live_of_its_last_grant() -> None:
    held = leases()
    assert held.ttl_s("a") is None
    held.grant("a", 10.0, now=5.0)
    held.grant("a", 3.0, now=5.0)
    assert held.ttl_s("a") == 3.0
    assert held.expired(8.0, unseen) == ["a"]


def test_what_ran_out_is_told_once() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    assert "a" in held
    assert len(held) == 1
    assert held.expired(10.0, unseen) == ["a"]
    assert "a" not in held
    assert len(held) == 0
    assert held.expired(99.0, unseen) == []


def test_a_renewed_lease_runs_for_its_full_time_again() -> None:
    held = leases()
    held.grant("a", 10.0, now=5.0)
    assert held.renew("a", now=14.0)
    assert held.expired(23.999, unseen) == []
    assert held.renew("a", now=23.999)
    assert held.expired(33.998, unseen) == []
    assert held.expired(33.999, unseen) == ["a"]


def test_what_was_never_granted_or_ran_out_cannot_be_renewed() -> None:
    held = leases()
    assert not held.renew("a", now=0.0)
    assert "a" not in held
    held.grant("a", 10.0, now=0.0)
    held.expired(10.0, unseen)
    assert not held.renew("a", now=10.0)


def test_granting_again_starts_its_time_again() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    held.grant("a", 20.0, now=5.0)
    assert held.expired(24.0, unseen) == []
    assert held.expired(25.0, unseen) == ["a"]
    assert held.expired(99.0, unseen) == []


def test_several_run_out_in_the_order_of_their_deadlines_then_of_granting() -> None:
    held = leases()
    for key, ttl_s in (("late", 9.0), ("z", 5.0), ("early", 1.0), ("a", 5.0)):
        held.grant(key, ttl_s, now=0.0)
    assert held.expired(9.0, unseen) == ["early", "z", "a", "late"]


def test_a_dropped_lease_never_runs_out() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    held.grant("b", 10.0, now=0.0)
    held.drop("a")
    held.drop("stranger")
    assert held.expired(10.0, unseen) == ["b"]


def test_a_lease_dropped_and_granted_again_runs_from_the_second_grant() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    held.drop("a")
    held.grant("a", 10.0, now=5.0)
    assert held.expired(10.0, unseen) == []
    assert held.expired(15.0, unseen) == ["a"]
    assert held.expired(99.0, unseen) == []


def test_dropping_many_leaves_the_others_running() -> None:
    held = leases()
    for number in range(300):
        held.grant(f"m{number}", 10.0 + number, now=0.0)
    for number in range(298):
        held.drop(f"m{number}")
    held.renew("m298", now=1.0)
    assert len(held) == 2
    assert held.expired(308.999, unseen) == []
    assert held.expired(309.0, unseen) == ["m298", "m299"]


def test_those_who_are_left_run_out_in_their_order_whatever_was_dropped() -> None:
    held = leases()
    for number in range(3):
        held.grant(f"m{number}", 30.0 - 10.0 * number, now=0.0)
    for number in range(100):
        held.grant(f"x{number}", 5.0, now=0.0)
        held.drop(f"x{number}")
    assert held.expired(10.0, unseen) == ["m2"]
    assert held.expired(20.0, unseen) == ["m1"]
    assert held.expired(30.0, unseen) == ["m0"]


@pytest.mark.parametrize("live", [0, 10])
def test_what_is_left_behind_by_dropped_leases_is_bounded(live: int) -> None:
    held = leases()
    for number in range(live):
        held.grant(f"m{number}", 50.0, now=0.0)
    kept: list[int] = []
    for _ in range(150):
        held.grant("x", 10.0, now=0.0)
        held.drop("x")
        kept.append(len(held._heap))
    limit = 64 + 2 * live
    grown = [*range(live + 1, limit + 1), live]  # then it is swept
    assert kept[: len(grown)] == grown
    assert max(kept) == limit


# ----------------------------------------------------------------------------------------- signs of life


def test_a_member_may_vouch_for_a_lease_that_would_run_out() -> None:
    """A report of a generation is a sign of life of all its members (H17)."""
    held = leases()
    held.grant("a", 10.0, now=0.0)
    assert held.expired(10.0, lambda key: 3.0) == []
    assert held.expired(12.999, unseen) == []
    assert held.expired(13.0, unseen) == ["a"]


def test_an_old_sign_of_life_saves_no_member() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    assert held.expired(10.0, lambda key: 0.0) == ["a"]
    held.grant("b", 10.0, now=0.0)
    assert held.expired(10.0, lambda key: -5.0) == ["b"]


def test_no_member_is_asked_about_a_lease_that_runs() -> None:
    asked: list[str] = []

    def vouched(key: str) -> float | None:
        asked.append(key)
        return None

    held = leases()
    held.grant("a", 10.0, now=0.0)
    held.grant("b", 10.0, now=0.0)
    held.renew("a", now=5.0)
    assert held.expired(10.0, vouched) == ["b"]
    assert asked == ["b"]


def test_each_is_vouched_for_by_itself() -> None:
    held = leases()
    held.grant("a", 10.0, now=0.0)
    held.grant("b", 10.0, now=0.0)
    assert held.expired(10.0, {"a": 8.0}.get) == ["b"]
    assert held.expired(18.0, unseen) == ["a"]


# -------------------------------------------------------------------------------------------- our own sleep


def test_the_time_its_owner_slept_is_no_member_s_fault() -> None:
    held = leases(pause_s=1.0)
    assert held.expired(0.0, unseen) == []
    held.grant("a", 10.0, now=0.0)
    assert held.expired(1000.0, unseen) == []  # 999 s of sleep, 1 s of it counted
    assert held.expired(1001.0, unseen) == []
    for tick in range(2, 9):
        assert held.expired(1000.0 + tick, unseen) == []
    assert held.expired(1009.0, unseen) == ["a"]


@pytest.mark.parametrize(("gap", "over"), [(1.0, ["a"]), (1.5, [])])
def test_a_gap_of_exactly_the_pause_is_no_sleep(gap: float, over: list[str]) -> None:
    held = leases(pause_s=1.0)
    held.expired(0.0, unseen)
    held.grant("a", gap, now=0.0)
    assert held.expired(gap, unseen) == over


def test_before_the_first_look_nothing_was_slept() -> None:
    held = leases(pause_s=1.0)
    held.grant("a", 10.0, now=0.0)
    assert held.expired(10.0, unseen) == ["a"]


def test_sleeps_add_up_and_renewals_count_in_waking_time() -> None:
    held = leases(pause_s=1.0)
    held.expired(0.0, unseen)
    held.expired(11.0, unseen)  # slept 10
    held.expired(22.0, unseen)  # slept 20
    held.grant("a", 2.0, now=22.0)
    held.renew("a", now=23.0)
    assert held.expired(23.0, unseen) == []
    assert held.expired(24.0, unseen) == []
    assert held.expired(25.0, unseen) == ["a"]


def test_a_sign_of_life_is_taken_in_waking_time_too() -> None:
    held = leases(pause_s=1.0)
    held.expired(0.0, unseen)
    held.expired(101.0, unseen)  # slept 100
    held.grant("a", 1.0, now=101.0)
    assert held.expired(102.0, lambda key: held.waking_time(101.5)) == []
    assert held.expired(102.4, unseen) == []
    assert held.expired(102.5, unseen) == ["a"]


def test_a_sleep_after_a_sign_of_life_is_not_taken_off_it() -> None:
    held = leases(pause_s=1.0)
    held.expired(0.0, unseen)
    held.grant("a", 10.0, now=0.0)
    for second in range(1, 10):
        assert held.expired(float(second), unseen) == []
    sign = held.waking_time(9.0)
    assert held.expired(14.0, lambda key: sign) == []  # slept 4 of these 5
    for second in range(15, 23):
        assert held.expired(float(second), lambda key: sign) == []
    assert held.expired(23.0, lambda key: sign) == ["a"]


def test_a_sleep_counts_for_no_member_that_speaks_before_it_was_noticed() -> None:
    held = leases(pause_s=1.0)
    held.expired(0.0, unseen)
    held.grant("a", 10.0, now=0.0)
    assert held.waking_time(1.0) == 1.0
    assert held.waking_time(21.0) == 1.0  # 20 s of sleep, though no member has looked since
    held.renew("a", now=21.0)
    assert held.expired(21.0, unseen) == []
    for second in range(22, 31):
        assert held.expired(float(second), unseen) == []
    assert held.expired(31.0, unseen) == ["a"]


# ----------------------------------------------------------------------------------------- every member's silence


def test_it_is_silent_until_the_first_word() -> None:
    silence = IsolationDetector(5.0)
    assert silence.is_isolated(0.0)
    assert silence.quiet_s(0.0) == inf
    assert silence.note_contact(7.0)
    assert not silence.is_isolated(7.0)


def test_a_silence_begins_when_no_member_was_heard_for_longer_than_that() -> None:
    silence = IsolationDetector(5.0)
    silence.note_contact(0.0)
    assert not silence.is_isolated(5.0)
    assert silence.is_isolated(5.001)
    assert silence.quiet_s(6.0) == 6.0


@pytest.mark.parametrize(("gap", "ended"), [(0.0, False), (5.0, False), (5.001, True), (500.0, True)])
def test_the_first_word_after_a_silence_ends_it(gap: float, ended: bool) -> None:
    silence = IsolationDetector(5.0)
    silence.note_contact(10.0)
    assert silence.note_contact(10.0 + gap) is ended
    assert not silence.note_contact(10.0 + gap)


def test_a_lease_granted_again_for_less_ends_sooner() -> None:
    held: Leases[str] = Leases(100.0)
    held.grant("a", 10.0, 50.0)
    held.grant("a", 1.0, 50.0)
    assert held.expired(50.9, lambda key: None) == []
    assert held.expired(51.0, lambda key: None) == ["a"]
    assert held.expired(70.0, lambda key: None) == []
