"""Schedules of a sandbox: their syntax, and which agents come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BadInput
from pliant_local.schedule import (
    AGENTS_MAX,
    AgentChange,
    SchedulePoint,
    agent_change,
    due,
    next_at,
    number_of,
    parse,
    plan,
)

EXAMPLE = (SchedulePoint(0, 2), SchedulePoint(10, 4), SchedulePoint(20, 1))


def test_a_schedule_says_from_when_on_there_are_how_many() -> None:
    assert parse("0:2,10:4,20:1") == EXAMPLE
    assert parse(" 0 : 2 , 0.5:3 ") == (SchedulePoint(0, 2), SchedulePoint(0.5, 3))
    assert parse("7:0") == (SchedulePoint(7, 0),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not SECOND:AGENTS"),
        ("0:2,", "'' is not SECOND:AGENTS"),
        ("0:2;10:4", "'0:2;10:4' is not SECOND:AGENTS"),
        ("10", "'10' is not SECOND:AGENTS"),
        ("0:two", "'0:two' is not SECOND:AGENTS"),
        ("0:-1", "'0:-1' is not SECOND:AGENTS"),
        ("-1:2", "'-1:2' is not SECOND:AGENTS"),
        ("0:1.5", "'0:1.5' is not SECOND:AGENTS"),
        ("nan:1", "'nan:1' is not SECOND:AGENTS"),
        ("0:٣", "is not SECOND:AGENTS"),
        ("0:2,10:4,10:1", "'10:1' is not after 10 s"),
        ("5:2,1:4", "'1:4' is not after 5 s"),
        ("0:65", "'0:65' has 65 agents; at most 64 are possible"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert said in caught.value.why


def test_the_example_in_the_message_is_a_schedule() -> None:
    with pytest.raises(BadInput) as caught:
        parse("?")
    assert parse(caught.value.why.split('"')[1]) == EXAMPLE


def test_a_run_has_a_first_point_whatever_was_said() -> None:
    assert plan(None, None) == (SchedulePoint(0, 2),)
    assert plan(3, None) == (SchedulePoint(0, 3),)
    assert plan(None, "0:2,10:4,20:1") == EXAMPLE
    assert plan(2, "0:2,10:4,20:1") == EXAMPLE
    assert plan(3, "10:4") == (SchedulePoint(0, 3), SchedulePoint(10, 4))
    assert plan(None, "10:4") == (SchedulePoint(0, 2), SchedulePoint(10, 4))
    assert plan(None, "0:0,5:1") == (SchedulePoint(0, 0), SchedulePoint(5, 1))


@pytest.mark.parametrize(
    ("agents", "text", "said"),
    [
        (3, "0:2,10:4", "--agents is 3, but the schedule begins with 2"),
        (0, None, "--agents must be from 1 to 64, got 0"),
        (65, None, "--agents must be from 1 to 64, got 65"),
        (None, "0:0,5:0", "The schedule never has an agent"),
    ],
)
def test_what_cannot_be_a_run_is_refused(agents: int | None, text: str | None, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan(agents, text)
    assert said in caught.value.why


def test_each_point_is_due_once() -> None:
    assert due(EXAMPLE, -1, 0) == 2
    assert due(EXAMPLE, 0, 9.9) is None
    assert due(EXAMPLE, 9.9, 10) == 4
    assert due(EXAMPLE, 10, 10) is None
    assert due(EXAMPLE, 0, 100) == 1, "of several that were missed the last one counts"
    assert [next_at(EXAMPLE, at) for at in (-1, 0, 10, 19.9, 20)] == [0, 10, 20, 20, None]


def test_the_newest_leave_first_and_new_ones_get_new_names() -> None:
    names = ("agent-1", "agent-2", "agent-3")
    assert agent_change(3, names, names) == AgentChange()
    assert agent_change(1, names, names) == AgentChange(remove=("agent-3", "agent-2"))
    assert agent_change(0, names, names) == AgentChange(remove=("agent-3", "agent-2", "agent-1"))
    assert agent_change(5, names, names) == AgentChange(add=("agent-4", "agent-5"))
    assert agent_change(2, ("agent-1",), names) == AgentChange(add=("agent-4",)), "a name is never given twice"
    assert agent_change(2, (), ()) == AgentChange(add=("agent-1", "agent-2"))


def test_names_that_are_none_of_ours_have_no_number() -> None:
    names = ("agent-7", "agent-07", "agent-", "agent-7x", "gpu-7")
    assert [number_of(name) for name in names] == [7, 0, 0, 0, 0]


@given(st.lists(st.integers(0, AGENTS_MAX), min_size=1, max_size=20))
def test_every_wish_is_fulfilled_and_the_oldest_stay(wishes: list[int]) -> None:
    present: list[str] = []
    known: list[str] = []
    for wanted in wishes:
        before = list(present)
        changed = agent_change(wanted, present, known)
        assert not changed.add or not changed.remove
        assert not set(changed.add) & set(known)
        present = [name for name in present if name not in changed.remove] + list(changed.add)
        known += changed.add
        assert len(present) == wanted
        assert len(set(present)) == wanted
        assert present[: len(before)] == before[:wanted], "agents that stay are older than agents that leave"


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, AGENTS_MAX)), min_size=1, unique_by=lambda at: at[0]))
def test_what_was_written_down_is_read_again(points: list[tuple[int, int]]) -> None:
    ordered = sorted(points)
    found = parse(",".join(f"{at}:{agents}" for at, agents in ordered))
    assert [(point.at_s, point.agents) for point in found] == ordered


@given(
    st.lists(st.floats(0, 50), unique=True, min_size=1, max_size=10),
    st.lists(st.floats(0, 60), min_size=1, max_size=30),
)
def test_nothing_of_a_schedule_is_missed_or_done_twice(times: list[float], looks: list[float]) -> None:
    points = tuple(SchedulePoint(at, number) for number, at in enumerate(sorted(times)))
    last, seen = -1.0, []
    for now in sorted({*looks, 60.0}):
        found = due(points, last, now)
        passed = [point.agents for point in points if last < point.at_s <= now]
        assert found == (passed[-1] if passed else None)
        seen += passed
        last = now
    assert seen == [point.agents for point in points]
