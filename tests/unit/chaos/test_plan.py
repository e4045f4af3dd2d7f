"""Drawn faults: the same for the same seed and membership, and never one that stops a job for good."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import (
    COORDINATOR,
    DEFAULT_KINDS,
    KINDS,
    LAST_HOLDER,
    LONG_LEASES,
    NO_COORDINATOR,
    NO_WORKER,
    NOT_LIVE,
    SHORT_S,
    ChaosOptions,
    ChaosTarget,
    Cut,
    JobSnapshot,
    PlannedFault,
    Postponed,
    draw_fault,
    due_time,
    parse_kinds,
)
from pliant.errors import BadInput

THREE = tuple(ChaosTarget(name, active=True, reachable=True) for name in ("a", "b", "c"))
ALIVE = JobSnapshot(THREE, 1, 10.0)
WISH = ChaosOptions(7, (*DEFAULT_KINDS, FaultKind.KILL_ALL), 10.0, 600.0)

targets = st.builds(ChaosTarget, st.sampled_from("abcdef"), st.booleans(), st.booleans())
crowds = st.lists(targets, max_size=6, unique_by=lambda each: each.member).map(tuple)
alives = st.builds(
    JobSnapshot,
    crowds,
    st.integers(1, 4),
    st.just(10.0),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "it waits"]),
)
wishes = st.builds(
    ChaosOptions,
    st.integers(0, 2**31),
    st.lists(st.sampled_from(KINDS), min_size=1, unique=True).map(tuple),
    st.floats(0.1, 100.0),
    st.floats(0.1, 1000.0),
)


def only(kind: FaultKind) -> ChaosOptions:
    return replace(WISH, kinds=(kind,))


def drawn(kind: FaultKind, alive: JobSnapshot = ALIVE, numbers: int = 200) -> list[PlannedFault]:
    found = [draw_fault(only(kind), number, alive) for number in range(numbers)]
    return [each for each in found if isinstance(each, PlannedFault)]


def test_what_is_asked_for_is_understood() -> None:
    assert parse_kinds("kill, stop,kill,,all") == (FaultKind.KILL, FaultKind.STOP, FaultKind.KILL_ALL)
    assert FaultKind.KILL_ALL not in DEFAULT_KINDS
    assert set(DEFAULT_KINDS) == set(KINDS) - {FaultKind.KILL_ALL}


@pytest.mark.parametrize(("text", "why"), [("kill,melt", "Unknown fault 'melt'"), (" , ", "--faults is empty")])
def test_what_cannot_be_is_refused_with_what_there_is(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        parse_kinds(text)
    assert "partition" in refused.value.why


@given(wishes, st.integers(0, 50))
def test_moments_follow_one_another_and_end_in_time(wish: ChaosOptions, number: int) -> None:
    one, two = due_time(wish, number), due_time(wish, number + 1)
    assert one == due_time(wish, number)
    if one is None:
        assert two is None
    else:
        assert wish.every_s * (number + 0.25) <= one < wish.for_s
        assert two is None or 0.5 * wish.every_s <= two - one <= 1.5 * wish.every_s


def test_there_are_about_as_many_as_fit() -> None:
    assert sum(due_time(WISH, number) is not None for number in range(1000)) == 60


@given(wishes, st.integers(0, 50), alives)
def test_a_fault_is_a_function_of_the_seed_and_of_what_is_alive(
    wish: ChaosOptions, number: int, alive: JobSnapshot
) -> None:
    fault = draw_fault(wish, number, alive)
    assert draw_fault(wish, number, alive) == fault
    assert fault.kind in wish.kinds


@given(wishes, st.integers(0, 50), alives)
def test_names_do_not_matter_but_ranks_do(wish: ChaosOptions, number: int, alive: JobSnapshot) -> None:
    renamed = replace(alive, members=tuple(replace(each, member=f"x{each.member}") for each in alive.members))
    one, two = draw_fault(wish, number, alive), draw_fault(wish, number, renamed)
    if isinstance(one, PlannedFault):
        assert isinstance(two, PlannedFault)
        expected = [name if name == COORDINATOR else f"x{name}" for name in one.victims]
        assert (two.kind, list(two.victims), two.lasts_s, two.cut) == (one.kind, expected, one.lasts_s, one.cut)
    else:
        assert one == two


@given(wishes, st.integers(0, 50), alives)
def test_only_who_is_here_is_struck_and_somebody_keeps_the_state(
    wish: ChaosOptions, number: int, alive: JobSnapshot
) -> None:
    fault = draw_fault(wish, number, alive)
    if isinstance(fault, Postponed):
        assert fault.why
        return
    assert not alive.not_training
    assert sum(each.active for each in alive.members) >= alive.size_min
    assert fault.victims
    here = {each.member for each in alive.members if each.reachable}
    if fault.victims == (COORDINATOR,):
        assert alive.coordinator_reachable
        return
    assert set(fault.victims) <= here
    spared = [each for each in alive.members if each.active and each.member not in fault.victims]
    brief = fault.kind is FaultKind.SLOW or (fault.kind is FaultKind.STOP and fault.lasts_s < alive.lease_s / 2)
    assert spared or fault.kind is FaultKind.KILL_ALL or brief or not alive.live


def test_one_worker_is_killed_and_now_and_then_two() -> None:
    counts = [len(fault.victims) for fault in drawn(FaultKind.KILL)]
    assert set(counts) == {1, 2}
    assert counts.count(2) < counts.count(1)
    assert {fault.victims[0] for fault in drawn(FaultKind.KILL)} == {"a", "b", "c"}


def test_the_last_holder_is_not_killed_but_may_stand_still_for_a_moment() -> None:
    alone = replace(ALIVE, members=THREE[:1])
    assert draw_fault(only(FaultKind.KILL), 0, alone) == Postponed(FaultKind.KILL, LAST_HOLDER)
    joiner = ChaosTarget("b", active=False, reachable=True)
    assert {fault.victims for fault in drawn(FaultKind.KILL, replace(ALIVE, members=(THREE[0], joiner)))} == {("b",)}
    assert all(fault.lasts_s < 5 for fault in drawn(FaultKind.STOP, alone))
    assert len(drawn(FaultKind.STOP, alone)) < 200
    assert drawn(FaultKind.PARTITION, replace(alone, coordinator_reachable=False)) == []


def test_the_only_worker_of_a_launch_may_be_killed() -> None:
    assert len(drawn(FaultKind.KILL, replace(ALIVE, members=THREE[:1], live=False))) == 200


def test_all_are_all_that_are_here() -> None:
    assert {fault.victims for fault in drawn(FaultKind.KILL_ALL)} == {("a", "b", "c")}
    far = tuple(replace(each, reachable=False) for each in THREE)
    for kind in (FaultKind.KILL_ALL, FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW):
        assert draw_fault(only(kind), 0, replace(ALIVE, members=far)) == Postponed(kind, NO_WORKER)
    assert (
        draw_fault(only(FaultKind.PARTITION), 0, replace(ALIVE, members=far, coordinator_reachable=False)).kind
        is FaultKind.PARTITION
    )


def test_a_coordinator_that_is_elsewhere_is_left_alone() -> None:
    far = replace(ALIVE, coordinator_reachable=False)
    assert draw_fault(only(FaultKind.KILL_COORDINATOR), 0, far) == Postponed(FaultKind.KILL_COORDINATOR, NO_COORDINATOR)
    assert drawn(FaultKind.KILL_COORDINATOR)[0] == PlannedFault(0, FaultKind.KILL_COORDINATOR, (COORDINATOR,))
    assert {fault.cut for fault in drawn(FaultKind.PARTITION, far)} == set(Cut) - {Cut.COORDINATOR_ISOLATED}


def test_workers_that_are_no_members_are_not_cut_off() -> None:
    assert draw_fault(only(FaultKind.PARTITION), 0, replace(ALIVE, live=False)) == Postponed(
        FaultKind.PARTITION, NOT_LIVE
    )


def test_every_cut_is_made_and_stops_are_short_and_longer_than_a_lease() -> None:
    assert {fault.cut for fault in drawn(FaultKind.PARTITION)} == set(Cut)
    for kind in (FaultKind.STOP, FaultKind.PARTITION):
        lasting = [fault.lasts_s for fault in drawn(kind)]
        short = [each for each in lasting if SHORT_S[0] <= each <= SHORT_S[1]]
        long = [each for each in lasting if 10 * LONG_LEASES[0] <= each <= 10 * LONG_LEASES[1]]
        assert len(short) + len(long) == len(lasting)
        assert len(short) > len(long) > 0


def test_a_job_that_does_not_train_or_is_too_small_is_left_alone() -> None:
    assert draw_fault(only(FaultKind.KILL), 0, replace(ALIVE, not_training="it waits")) == Postponed(
        FaultKind.KILL, "it waits"
    )
    few = draw_fault(only(FaultKind.KILL), 0, replace(ALIVE, size_min=4))
    assert few == Postponed(FaultKind.KILL, "3 of at least 4 workers hold the state")
