"""The agent of a lent machine: what it starts and stops in its slots, and what it refuses for a while."""

from __future__ import annotations

from pliant.core.allocate.machines import LentMachine, LentSlot
from pliant.core.lending import (
    BACKOFF_MAX_S,
    YOUNG_S,
    Lender,
    StartAgent,
    StopAgent,
    agent_ended,
    follow_orders,
    forgive,
    is_refused,
    leave,
    machine_report,
    refuse_script,
)


def after(lender: Lender, *orders: str, now: float = 0.0) -> Lender:
    return follow_orders(lender, orders, now)[0]


def test_agents_start_in_empty_slots_only() -> None:
    lender, actions = follow_orders(Lender("m", 2), ("a", ""), 0.0)
    assert actions == (StartAgent(0, "a"),)
    assert follow_orders(lender, ("a", "b"), 1.0)[1] == (StartAgent(1, "b"),)
    lender, actions = follow_orders(lender, ("b", ""), 1.0)
    assert actions == (StopAgent(0),)
    assert follow_orders(lender, ("b", ""), 2.0)[1] == ()  # it has not ended yet
    lender = agent_ended(lender, 0, 143, "", 3.0)
    assert follow_orders(lender, ("b", ""), 3.0)[1] == (StartAgent(0, "b"),)


def test_orders_for_more_slots_than_there_are_have_no_effect() -> None:
    assert follow_orders(Lender("m", 1), ("a", "a"), 0.0)[1] == (StartAgent(0, "a"),)


def test_the_report_has_every_slot() -> None:
    lender = after(Lender("m", 3, "id"), "a", "b")
    lender = refuse_script(after(lender, "a", ""), "c", "no script")
    assert machine_report(lender, 0.5) == LentMachine(
        "m", (LentSlot("a"), LentSlot("b", True), LentSlot()), "id", (("c", "no script"),)
    )
    assert machine_report(forgive(lender, "c"), 1.5).refused == ()


def test_an_agent_that_fails_is_started_again_later_and_later() -> None:
    lender, pauses, now = Lender("m", 1), [], 0.0
    for _ in range(9):
        lender = agent_ended(after(lender, "a", now=now), 0, 1, "boom", now)
        assert follow_orders(lender, ("a",), now)[1] == ()
        pauses.append(lender.troubles["a"].until - now)
        now = lender.troubles["a"].until
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert machine_report(lender, now - 1.0).refused == (("a", "boom"),)


def test_an_agent_that_ends_at_once_counts_as_failed_and_a_steady_one_clears_it() -> None:
    lender = agent_ended(after(Lender("m", 1), "a"), 0, 0, "", YOUNG_S / 2)
    assert lender.troubles["a"].why == "its agent ended with exit status 0"
    now = lender.troubles["a"].until
    lender = agent_ended(after(lender, "a", now=now), 0, 0, "", now + YOUNG_S)
    assert lender.troubles == {}


def test_an_agent_that_was_asked_to_leave_has_not_failed() -> None:
    lender = agent_ended(after(after(Lender("m", 1), "a"), ""), 0, 143, "", 1.0)
    assert (lender.used, lender.troubles) == ({}, {})


def test_old_troubles_are_forgotten() -> None:
    lender = agent_ended(after(Lender("m", 1), "a"), 0, 1, "x", 0.0)
    now = 2.0 + BACKOFF_MAX_S
    lender = agent_ended(after(lender, "b", now=now), 0, 1, "y", now)
    assert [*lender.troubles] == ["b"]
    assert is_refused(lender, "b", now + 0.5)
    assert not is_refused(lender, "a", 0.0)


def test_a_job_without_its_script_is_refused_until_it_is_forgiven() -> None:
    lender = refuse_script(Lender("m", 2), "a", "there is no script")
    lender = agent_ended(after(lender, "b", now=0.0), 0, 1, "boom", 1e9)
    assert is_refused(lender, "a", 2e9)
    assert follow_orders(lender, ("a",), 2e9)[1] == ()
    assert follow_orders(forgive(lender, "a"), ("a",), 2e9)[1] == (StartAgent(0, "a"),)


def test_a_machine_that_leaves_stops_each_agent_once_and_starts_none() -> None:
    lender = after(after(Lender("m", 3), "a", "b"), "a", "")
    lender, actions = leave(lender)
    assert actions == (StopAgent(0),)
    assert not lender.is_done
    assert follow_orders(lender, ("a", "b", "c"), 1.0)[1] == ()
    assert machine_report(lender, 1.0).is_leaving
    for slot in (0, 1):
        lender = agent_ended(lender, slot, 143, "", 2.0)
    assert lender.is_done
