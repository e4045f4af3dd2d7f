"""Every order of events in a small world: nothing wrong, no member stuck."""

import pytest

from pliant_sim.exhaustive.explore import Bounds, Explorer, explore


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(members=2, target=2, faults=0, generations=3, steps=3),
        Bounds(members=3, target=3, faults=0, generations=3, steps=2),
        Bounds(members=2, target=2, faults=1, generations=3, steps=2),
        Bounds(members=3, target=2, faults=1, generations=2, steps=1),
        Bounds(members=2, target=2, faults=0, generations=3, steps=1, cold=True),
    ],
    ids=str,
)
def test_everything_within_the_bounds_is_well(bounds: Bounds) -> None:
    found = explore(bounds)
    assert (found.wrong, found.path) == ("", ())
    assert found.complete
    assert found.states > 50


def test_reaching_the_bound_is_said() -> None:
    found = explore(Bounds(members=3, target=3, faults=2, generations=3, steps=2, states_max=500))
    assert found.wrong == ""
    assert not found.complete
    assert found.states == 500


def test_a_state_in_which_nothing_can_happen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no member ever computes, the job is stuck, and the way there is told."""
    monkeypatch.setattr(Explorer, "_do", lambda self, spot, name: None)
    monkeypatch.setattr(Explorer, "_warm_up", lambda self, spot: None)
    found = explore(Bounds(members=2, target=2, faults=0))
    assert found.wrong.startswith("stuck: the job is starting")
    assert "m0 receives its view" in found.path
