"""The choice of coordinators: one after the other, each with a deadline, and the watch where one answers."""

from math import inf

import pytest

from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.core.endpoints import (
    ANSWER_S,
    LEARNED_MAX,
    check_limit_s,
    command_limit_s,
    endpoints_of,
    in_order,
    note_answer,
    note_leader,
    note_silence,
    pause_limit_s,
    renewal_limit_s,
    silence_s,
)
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE

ONE, TWO, THREE = (f"http://10.0.0.{number}:7711" for number in (1, 2, 3))
THREE_OF_THEM = endpoints_of((ONE, TWO, THREE))
LIMIT_S = renewal_limit_s(LEASE_TTL_S, 3)


def test_of_several_coordinators_all_can_be_asked_within_a_lease() -> None:
    assert LEASE_TTL_S / RENEWALS_PER_LEASE + 4 * LIMIT_S < LEASE_TTL_S
    assert command_limit_s(LEASE_TTL_S, 2) == LEASE_TTL_S / 4
    assert check_limit_s(LEASE_TTL_S, 2) == LIMIT_S
    assert command_limit_s(3600.0, 2) == renewal_limit_s(3600.0, 2) == ANSWER_S


def test_where_no_other_can_be_asked_a_request_waits_longer() -> None:
    assert command_limit_s(LEASE_TTL_S, 1) == check_limit_s(LEASE_TTL_S, 1) == ANSWER_S
    assert renewal_limit_s(LEASE_TTL_S, 1) == LEASE_TTL_S / RENEWALS_PER_LEASE


def test_a_silent_coordinator_is_left_out_until_a_standby_leads_and_asked_again_within_the_lease() -> None:
    assert silence_s(LEASE_TTL_S) >= HOLD_TTL_S
    assert LEASE_TTL_S / RENEWALS_PER_LEASE + LIMIT_S + silence_s(LEASE_TTL_S) + LIMIT_S < LEASE_TTL_S


def test_of_several_coordinators_none_of_which_leads_all_are_asked_again_soon() -> None:
    assert pause_limit_s(LEASE_TTL_S, 2) == 0.5
    assert pause_limit_s(LEASE_TTL_S, 1) < LEASE_TTL_S / RENEWALS_PER_LEASE


def test_the_one_that_answered_last_is_asked_first_and_then_the_others_around() -> None:
    assert in_order(THREE_OF_THEM, 0.0) == (0, 1, 2)
    assert in_order(note_answer(THREE_OF_THEM, 1, 5.0, 5.1), 6.0) == (1, 2, 0)


def test_one_that_missed_a_deadline_is_not_asked_again_for_as_long_unless_all_have() -> None:
    known = note_silence(THREE_OF_THEM, 0, 2.0, 8.0, 10.0)
    assert in_order(known, 11.9) == (1, 2)
    assert in_order(known, 12.0) == (0, 1, 2)
    for endpoint in (1, 2):
        known = note_silence(known, endpoint, 2.0, 8.0, 10.0)
    assert in_order(known, 11.9) == (0, 1, 2)


def test_a_watch_is_opened_again_when_another_one_answers_or_the_same_after_a_silence() -> None:
    assert note_answer(THREE_OF_THEM, 0, 5.0, 5.1).moved_at == -inf
    assert note_answer(THREE_OF_THEM, 1, 5.0, 5.1).moved_at == 5.1
    silent = note_silence(THREE_OF_THEM, 0, 2.0, 8.0, 10.0)
    again = note_answer(silent, 0, 13.0, 13.1)
    assert (again.moved_at, again.silent, again.missed) == (13.1, {}, frozenset())
    assert note_answer(again, 0, 14.0, 14.1).moved_at == 13.1


def test_an_answer_or_a_silence_of_a_request_from_before_the_move_changes_nothing() -> None:
    known = note_answer(THREE_OF_THEM, 1, 5.0, 5.1)
    assert note_answer(known, 0, 4.0, 40.0) == known
    assert note_silence(known, 0, 2.0, 4.0, 40.0) == known


def test_the_leader_that_a_standby_names_is_asked_next_unless_it_is_silent() -> None:
    assert note_leader(THREE_OF_THEM, THREE, 0.0) == (THREE_OF_THEM, 2)
    silent = note_silence(THREE_OF_THEM, 2, 2.0, 8.0, 10.0)
    assert note_leader(silent, THREE, 11.0) == (silent, None)
    assert note_leader(silent, THREE, 12.0) == (silent, 2)


def test_a_leader_that_was_not_configured_is_asked_too() -> None:
    known, endpoint = note_leader(endpoints_of((ONE,)), TWO, 0.0)
    assert (known.urls, endpoint) == ((ONE, TWO), 1)
    for number in range(LEARNED_MAX - 1):
        known, _ = note_leader(known, f"http://10.1.0.{number}:1", 0.0)
    assert note_leader(known, "http://10.1.0.99:1", 0.0) == (known, None)


@pytest.mark.parametrize(("known", "named"), [("https", "http"), ("http", "https")])
def test_a_leader_with_another_scheme_is_not_followed(known: str, named: str) -> None:
    assert note_leader(endpoints_of((f"{known}://10.0.0.1:1",)), f"{named}://10.0.0.2:1", 0.0)[1] is None
