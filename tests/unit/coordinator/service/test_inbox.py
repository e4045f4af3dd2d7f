"""Long texts are cut before they are kept for ever."""

from dataclasses import replace

import pytest

from pliant.coordinator.service.inbox import SAMPLES_MAX, SLOTS_MAX, TEXT_MAX, truncate_texts
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import FailingSlots
from pliant.core.model.names import AgentId, MemberId

A, X = MemberId("a"), AgentId("x")
LONG = "y" * (TEXT_MAX + 1)
CUT = f"{'y' * TEXT_MAX}... ({TEXT_MAX + 1} characters)"


@pytest.mark.parametrize(
    "request_",
    [
        m.Drain(A, 1.0, LONG),
        m.DrainAgent(X, 1.0, LONG),
        m.Cancel(LONG),
        m.Leave(A, 0, LONG),
        m.Stopped(A, 1, GENESIS, frozenset(), LONG),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_long_reason_is_cut_and_says_so(request_: m.Drain | m.DrainAgent | m.Cancel | m.Leave | m.Stopped) -> None:
    found = truncate_texts(request_)
    assert type(found) is type(request_)
    assert getattr(found, "why") == CUT  # noqa: B009  # of any of them


def test_a_long_error_of_user_code_is_cut() -> None:
    poison = FailingSlots(1, (0,), ((1, 2),), A, LONG)
    assert truncate_texts(m.Raised(poison)) == m.Raised(replace(poison, error=CUT))


def test_of_many_slots_and_samples_that_may_have_raised_the_first_are_kept() -> None:
    many = tuple(range(SLOTS_MAX + 1))
    found = truncate_texts(m.Raised(FailingSlots(1, many, tuple((slot, slot) for slot in many), A, "short")))
    assert isinstance(found, m.Raised)
    assert found.failing_slots.slots == many[:SLOTS_MAX]
    assert found.failing_slots.samples == tuple((slot, slot) for slot in many[:SLOTS_MAX])
    half = SAMPLES_MAX // 2 + 1
    found = truncate_texts(m.Raised(FailingSlots(1, (0, 1, 2), ((5,) * half,) * 3, A, "short")))
    assert isinstance(found, m.Raised)
    assert found.failing_slots.samples == ((5,) * half, (5,) * (half - 2), ())


@pytest.mark.parametrize("request_", [m.Cancel("y" * TEXT_MAX), m.Raised(FailingSlots(1, (0,), ((),), A, "short"))])
def test_what_is_short_stays_as_it_is(request_: m.Command) -> None:
    assert truncate_texts(request_) is request_
