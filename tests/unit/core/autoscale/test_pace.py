"""Speeds of a job by its size, from undisturbed stretches of its history."""

from __future__ import annotations

import pytest

from pliant.core import messages as m
from pliant.core.accounting.pauses import CHECKPOINTING, SWITCHING, Pause
from pliant.core.autoscale.pace import PAUSE_S, PAUSES_KEPT, WINDOW_S, WORLDS_KEPT, JobPace
from pliant.core.data.ledger import GENESIS
from unit.core.build import A, B, lines, new_job, running, world


def committed(at: float, generation: int, count: int, *pauses: Pause) -> m.StepsCommitted:
    """So many steps of 10 samples each."""
    return m.StepsCommitted(at, generation, A, lines(GENESIS, generation, count), pauses)


def entered(at: float, generation: int, size: int) -> tuple[m.Event, ...]:
    members = (A, B)[:size]
    return m.WorldFormed(at, world(generation, *members)), m.WorldEntered(at, generation)


def paced(*events: m.Event) -> JobPace:
    pace = JobPace()
    for event in events:
        pace.add(event)
    return pace


def test_the_first_report_after_a_change_only_begins_a_stretch() -> None:
    pace = paced(*entered(0.0, 1, 2), committed(3.0, 1, 2))
    assert (pace.speeds, pace.measured_s, pace.size, pace.changed_at) == ((), 0.0, 2, 0.0)
    pace.add(committed(5.0, 1, 2))
    assert (pace.speeds, pace.measured_s, pace.now) == (((2, 10.0),), 2.0, 5.0)


@pytest.mark.parametrize(
    "between",
    [
        m.HoldersChanged(4.0, 1, frozenset({A})),
        m.MemberGone(4.0, B, "left", "it was asked to"),
        m.WorldFormed(4.0, world(2, A)),
        committed(4.0, 2, 1),
        committed(4.0, 1, 1, Pause(1, CHECKPOINTING, 0.5)),
        committed(3.0, 1, 1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_disturbed_stretch_does_not_count(between: m.Event) -> None:
    pace = paced(*entered(0.0, 1, 2), committed(3.0, 1, 2), between)
    assert pace.speeds == ()


def test_events_that_stop_no_member_disturb_nothing() -> None:
    pace = paced(*entered(0.0, 1, 2), committed(3.0, 1, 2), m.Granted(4.0, 2, "x"), committed(5.0, 1, 4))
    assert pace.speeds == ((2, 20.0),)


def test_each_size_has_its_own_speed() -> None:
    pace = paced(*entered(0.0, 1, 1), committed(1.0, 1, 1), committed(2.0, 1, 1))
    for event in (*entered(3.0, 2, 2), committed(4.0, 2, 1), committed(5.0, 2, 2)):
        pace.add(event)
    assert (pace.speeds, pace.size, pace.changed_at) == (((1, 10.0), (2, 20.0)), 2, 3.0)


def test_a_world_that_was_never_seen_is_not_measured() -> None:
    assert paced(m.WorldEntered(0.0, 7), committed(1.0, 7, 1), committed(2.0, 7, 1)).speeds == ()
    assert JobPace.of(new_job()).size == 0
    pace = JobPace.of(running(2))
    for event in (committed(1.0, 1, 1), committed(2.0, 1, 1)):
        pace.add(event)
    assert pace.speeds == ((2, 10.0),)


def test_old_stretches_are_forgotten() -> None:
    pace = paced(*entered(0.0, 1, 1), committed(0.0, 1, 1), committed(WINDOW_S, 1, 1))
    assert pace.measured_s == WINDOW_S
    pace.add(committed(WINDOW_S + WINDOW_S / 2, 1, 10))
    assert pace.measured_s == pytest.approx(WINDOW_S)
    assert pace.speeds[0][1] == pytest.approx((5 + 100) / WINDOW_S)


def test_the_cost_of_a_change_is_the_median_of_the_last_pauses() -> None:
    assert JobPace().pause_s == PAUSE_S
    pace = paced(committed(1.0, 1, 3, Pause(1, SWITCHING, 2.0), Pause(2, SWITCHING, 4.0), Pause(3, CHECKPOINTING, 9.0)))
    assert pace.pause_s == 3.0
    for number in range(PAUSES_KEPT):
        pace.add(committed(2.0 + number, 1, 1, Pause(1, SWITCHING, 1.0)))
    assert pace.pause_s == 1.0


def test_few_worlds_are_kept_in_mind() -> None:
    pace = paced(*(m.WorldFormed(0.0, world(number, A)) for number in range(1, 3 * WORLDS_KEPT)))
    assert len(pace._worlds) == WORLDS_KEPT
