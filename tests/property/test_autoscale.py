"""Laws of autoscaling, for any speeds that a job may have at its sizes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.autoscale import JobPace, ScalingFacts, advise
from pliant.core.autoscale.pace import SizePace

SPEEDS = st.floats(min_value=0.01, max_value=1e4)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, int, int, dict[int, float]]:
    """A smallest, a largest and a first size, and the true speed at each size."""
    low = draw(st.integers(1, 8))
    high = draw(st.integers(low, low + 7))
    return low, high, draw(st.integers(low, high)), {size: draw(SPEEDS) for size in range(low, high + 1)}


def follow(low: int, high: int, first: int, speeds: dict[int, float], left: float | None, turns: int) -> list[int]:
    """Follow the advice: each size is measured as it is, and each change takes 1 s."""
    size, sizes, found = first, dict[int, SizePace](), [first]
    for turn in range(turns):
        sizes[size] = SizePace(speeds[size] * 100.0, 100.0)
        pace = JobPace(dict(sizes), size, 0.0, 1000.0 * (turn + 1), _pauses=[1.0])
        size = advise(ScalingFacts(low, high, size, left), pace).size
        found.append(size)
    return found


@given(jobs(), st.one_of(st.none(), st.floats(0.0, 1e9)))
def test_advice_settles_within_the_sizes_and_never_goes_in_circles(
    job: tuple[int, int, int, dict[int, float]], left: float | None
) -> None:
    low, high, first, speeds = job
    count = high - low + 1
    found = follow(low, high, first, speeds, left, 3 * count + 3)
    assert all(low <= size <= high for size in found)
    changes = [pair for pair in pairwise(found) if pair[0] != pair[1]]
    assert len(changes) <= 2 * count
    assert len(set(changes)) == len(changes)  # no change is made twice
    assert found[-1] == found[-2]  # it has settled


@given(jobs())
def test_a_size_that_is_kept_is_kept_again(job: tuple[int, int, int, dict[int, float]]) -> None:
    low, high, first, speeds = job
    last = follow(low, high, first, speeds, None, 3 * (high - low + 1) + 3)[-1]
    assert follow(low, high, last, speeds, None, 0) == [last]
    sizes = {size: SizePace(speed * 100.0, 100.0) for size, speed in speeds.items()}
    pace = JobPace(sizes, last, 0.0, 1000.0, _pauses=[1.0])
    once = advise(ScalingFacts(low, high, last), pace).size
    again = advise(ScalingFacts(low, high, once), JobPace(sizes, once, 0.0, 1000.0, _pauses=[1.0])).size
    assert again == once


@given(jobs(), st.integers(0, 40), st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_advice_is_within_the_sizes_whatever_was_measured(
    job: tuple[int, int, int, dict[int, float]], target: int, now: float, seconds: float
) -> None:
    low, high, size, speeds = job
    sizes = {each: SizePace(speed * seconds, seconds) for each, speed in speeds.items()}
    advised = advise(ScalingFacts(low, high, target), JobPace(sizes, size, 0.0, now)).size
    assert low <= advised <= high
