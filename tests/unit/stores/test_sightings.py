"""The end of another owner's hold, measured on the caller's own clock."""

from __future__ import annotations

import pytest

from pliant.stores.sightings import HoldSightings


@pytest.mark.parametrize("its_end_s", [5.0, 1e6], ids=["behind", "ahead"])
def test_the_holder_s_clock_does_not_count(its_end_s: float) -> None:
    seen = HoldSightings()
    assert seen.until("lead", "y", (1, its_end_s), 10.0, 1000.0) == 1010.0
    assert seen.until("lead", "y", (1, its_end_s), 10.0, 1009.0) == 1010.0


def test_a_renewal_counts_from_the_moment_it_is_seen() -> None:
    seen = HoldSightings()
    seen.until("lead", "y", (1, 5.0), 10.0, 1000.0)
    assert not seen.has_changed("lead", "y")
    assert seen.until("lead", "y", (1, 6.0), 10.0, 1004.0) == 1014.0
    assert seen.has_changed("lead", "y")


def test_callers_and_names_are_measured_apart() -> None:
    seen = HoldSightings()
    seen.until("lead", "y", (1, 5.0), 10.0, 1000.0)
    assert seen.until("lead", "z", (1, 5.0), 10.0, 20.0) == 30.0
    assert seen.until("sweep", "y", (1, 5.0), 10.0, 1007.0) == 1017.0
