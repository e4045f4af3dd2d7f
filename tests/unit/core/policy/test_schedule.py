"""The elastic schedule by itself: which entry counts, and which schedules are refused."""

import pytest

from pliant.core.policy.schedule import (
    ENTRIES_MAX,
    Schedule,
    bad_schedule,
    describe_schedule,
    next_entry,
    passed_entry,
    scheduled_size,
)

SCHEDULE = ((0, 2), (10, 8), (20, 4))


@pytest.mark.parametrize(("step", "size"), [(0, 2), (9, 2), (10, 8), (19, 8), (20, 4), (1000, 4)])
def test_the_last_entry_up_to_a_step_counts(step: int, size: int) -> None:
    assert scheduled_size(SCHEDULE, step) == size


def test_before_the_first_entry_there_is_no_scheduled_size() -> None:
    assert scheduled_size(SCHEDULE[1:], 9) is None
    assert scheduled_size((), 9) is None


@pytest.mark.parametrize(
    ("before", "after", "entry"),
    [(0, 9, None), (9, 10, (10, 8)), (10, 11, None), (0, 30, (20, 4)), (19, 20, (20, 4)), (20, 40, None)],
)
def test_an_entry_is_passed_once_and_of_several_the_last_one_counts(
    before: int, after: int, entry: tuple[int, int] | None
) -> None:
    assert passed_entry(SCHEDULE, before, after) == entry


def test_the_next_entry_is_the_first_after_the_step() -> None:
    assert next_entry(SCHEDULE, 0) == (10, 8)
    assert next_entry(SCHEDULE, 10) == (20, 4)
    assert next_entry(SCHEDULE, 20) is None


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (((-1, 2),), "the steps of a schedule are counted from 0; got -1:2"),
        (((5, 2), (5, 3)), "the steps of a schedule must rise; got 5:3 after step 5"),
        (((5, 2), (4, 3)), "the steps of a schedule must rise; got 4:3 after step 5"),
        (
            ((0, 1),),
            "the schedule asks for 1 workers from step 0 on, outside 2 to 8: change 0:1, or --workers",
        ),
        (
            ((0, 2), (7, 9)),
            "the schedule asks for 9 workers from step 7 on, outside 2 to 8: change 7:9, or --workers",
        ),
        (tuple((step, 2) for step in range(ENTRIES_MAX + 1)), "a schedule can have up to 1000 entries; got 1001"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_its_entry(schedule: Schedule, why: str) -> None:
    assert bad_schedule(schedule, 2, 8) == why


@pytest.mark.parametrize("schedule", [(), SCHEDULE, tuple((step, 2) for step in range(ENTRIES_MAX))])
def test_a_schedule_within_the_sizes_is_accepted(schedule: Schedule) -> None:
    assert bad_schedule(schedule, 2, 8) == ""


def test_a_schedule_is_shown_as_it_was_passed() -> None:
    assert describe_schedule(SCHEDULE) == "0:2,10:8,20:4"
    assert describe_schedule(()) == ""
