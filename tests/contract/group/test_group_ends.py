"""The end of a process group: broken off from outside, by a lost peer, while it is wired, and without a trace."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.group.worlds import (
    KINDS,
    PATIENCE_S,
    GroupKind,
    RankedWorld,
    ranked_world,
    results,
    threads_named,
    wired_world,
)
from e2e.running import wait_for
from pliant.train.group.contract import Group, GroupBroken

pytestmark = pytest.mark.timeout(180)

BREAK_S = 0.2  # the machines that run this are shared; the median of many trials is below a millisecond on a quiet one


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> GroupKind:
    found: GroupKind = request.param
    return found


def reducing(ranks: RankedWorld, length: int) -> Callable[[Group[Any], int], float]:
    """Return an act that reduces until the group breaks, and the moment when it did."""

    def act(group: Group[Any], _rank: int) -> float:
        array = ranks.kind.own(np.ones(length, np.float32))
        with suppress(GroupBroken):
            while True:
                group.all_reduce(array)
        return time.monotonic()

    return act


@pytest.mark.parametrize("length", [100, 200_000])
def test_every_rank_returns_at_once_when_one_breaks_off(kind: GroupKind, length: int) -> None:
    took = []
    for _ in range(5):
        with wired_world(kind, 3) as ranks:
            waiting = ranks.start(reducing(ranks, length))
            began = time.monotonic()
            ranks.groups[1].break_off()
            took += [ended - began for ended in results(waiting)]
    assert statistics.median(took) < BREAK_S, took


def test_a_rank_that_waits_for_another_returns_when_it_is_broken_off_here(kind: GroupKind) -> None:
    took = []
    for _ in range(5):
        with wired_world(kind, 2) as ranks:
            (waiting,) = ranks.start(reducing(ranks, 10), [0])
            began = time.monotonic()
            ranks.groups[0].break_off()
            took.append(waiting.result(PATIENCE_S) - began)
    assert min(took) < BREAK_S, took


def test_started_operations_fail_and_nothing_touches_their_arrays_any_more(kind: GroupKind) -> None:
    with wired_world(kind, 2) as ranks:
        array = ranks.kind.own(np.ones(3_000_000, np.float32))
        pending = [ranks.groups[0].start_all_reduce(array), ranks.groups[0].start_all_reduce(array)]
        ranks.groups[0].break_off()
        for each in pending:
            with pytest.raises(GroupBroken, match="broken off"):
                each.wait()
        array[:] = 7
        ranks.groups[1].break_off()
        assert (ranks.kind.plain(array) == 7).all()


def test_a_broken_group_starts_nothing(kind: GroupKind) -> None:
    with wired_world(kind, 2) as ranks:
        ranks.groups[0].break_off()
        ranks.groups[0].break_off()
        with pytest.raises(GroupBroken, match="broken off"):
            ranks.groups[0].gather(b"")
        with pytest.raises(GroupBroken, match="broken off"):
            ranks.groups[0].start_all_reduce(ranks.kind.own(np.ones(1)))


def test_the_peer_whose_connection_ended_is_named(kind: GroupKind) -> None:
    with wired_world(kind, 2) as ranks:
        (waiting,) = ranks.start(lambda group, _rank: group.gather(b""), [0])
        ranks.groups[1].dispose()
        with pytest.raises(GroupBroken) as caught:
            waiting.result(PATIENCE_S)
        assert caught.value.peer == "m1"


def test_a_wiring_without_a_member_ends_when_it_is_broken_off(kind: GroupKind) -> None:
    with ranked_world(kind, 3) as ranks:
        wirings = [ranks.kind.wiring(ranks.world, each) for each in ranks.talkers[:2]]
        ranks.wirings = wirings
        running = [ranks.threads.submit(wiring.run) for wiring in wirings]
        for wiring in wirings:
            wiring.break_off()
        for each in running:
            with pytest.raises(GroupBroken, match="broken off"):
                each.result(PATIENCE_S)


def test_a_wiring_that_is_broken_off_after_its_end_breaks_its_group(kind: GroupKind) -> None:
    with wired_world(kind, 2) as ranks:
        ranks.wirings[0].break_off()
        with pytest.raises(GroupBroken):
            ranks.groups[0].gather(b"")


def test_many_generations_leave_no_thread_and_no_descriptor(kind: GroupKind) -> None:
    def used() -> tuple[int, list[str]]:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threads_named("pliant-")

    def one_generation() -> None:
        with wired_world(kind, 3) as ranks:
            array = [ranks.kind.own(np.ones(200_000, np.float32)) for _ in range(3)]
            pending = [group.start_all_reduce(each) for group, each in zip(ranks.groups, array, strict=True)]
            for each in pending:
                each.wait()

    one_generation()
    wait_for(lambda: not threads_named("pliant-"), "the threads to end")
    before = used()[0]
    for _ in range(10):
        one_generation()
    wait_for(lambda: not threads_named("pliant-"), "the threads to end")
    assert used()[0] <= before
