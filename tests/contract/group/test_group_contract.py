"""The contract of every process group: sums, exchanges, their bits and their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contract.group.worlds import KINDS, Array, GroupKind, RankedWorld, drawn, in_order, results, wired_world
from pliant.errors import BadInput
from pliant.train.group.contract import Group

pytestmark = pytest.mark.timeout(180)

SIZES = (1, 2, 3, 4)
LENGTHS = (1, 2, 3, 7, 1000, 65_537, 400_001)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name, scope="module")
def kind(request: pytest.FixtureRequest) -> GroupKind:
    found: GroupKind = request.param
    return found


@pytest.fixture(params=SIZES, scope="module")
def ranks(kind: GroupKind, request: pytest.FixtureRequest) -> Iterator[RankedWorld]:
    with wired_world(kind, request.param) as world:
        yield world


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
def test_every_rank_has_the_sum_in_the_order_of_ranks_to_the_bit(ranks: RankedWorld, dtype: str) -> None:
    size = len(ranks.groups)
    for length in LENGTHS:
        arrays = drawn(size, length, dtype, seed=length)
        wanted = in_order(arrays).tobytes()
        assert [each.tobytes() for each in ranks.sums(arrays)] == [wanted] * size, (length, dtype)


def test_an_empty_array_has_an_empty_sum(ranks: RankedWorld) -> None:
    empty = [np.empty(0, np.float32) for _ in ranks.groups]
    assert [len(each) for each in ranks.sums(empty)] == [0] * len(ranks.groups)


def test_values_that_are_no_numbers_arrive_on_every_rank(ranks: RankedWorld) -> None:
    arrays = [np.array([1.0, np.nan if rank else 2.0, np.inf], np.float32) for rank in range(len(ranks.groups))]
    first, *others = [each.tobytes() for each in ranks.sums(arrays)]
    assert all(each == first for each in others)


def test_operations_are_carried_out_in_their_order_while_the_caller_goes_on(ranks: RankedWorld) -> None:
    size = len(ranks.groups)
    arrays = [drawn(size, length, "float32", seed=length) for length in (300_000, 10, 120_000, 2)]

    def act(group: Group[Any], rank: int) -> list[bytes]:
        mine = [ranks.kind.own(each[rank].copy()) for each in arrays]
        pending = [group.start_all_reduce(each) for each in mine[:-1]]
        group.all_reduce(mine[-1])
        for each in reversed(pending):
            each.wait()
        return [ranks.kind.plain(each).tobytes() for each in mine]

    assert ranks.all(act) == [[in_order(each).tobytes() for each in arrays]] * size


def test_bytes_of_any_length_are_gathered_in_the_order_of_ranks(ranks: RankedWorld) -> None:
    sent = [bytes([rank]) * (rank * 70_000) for rank in range(len(ranks.groups))]
    assert ranks.all(lambda group, rank: group.gather(sent[rank])) == [sent] * len(ranks.groups)


def test_too_many_bytes_to_gather_are_refused_before_anything_is_sent(ranks: RankedWorld) -> None:
    with pytest.raises(BadInput, match="can be gathered"):
        ranks.groups[0].gather(bytes((1 << 24) + 1))
    assert ranks.all(lambda group, rank: group.gather(b"after")) == [[b"after"] * len(ranks.groups)] * len(ranks.groups)


def test_stretches_of_different_lengths_reach_their_ranks(ranks: RankedWorld) -> None:
    size = len(ranks.groups)
    length = [[(3 * giver + taker) % 4 * 1000 for taker in range(size)] for giver in range(size)]

    def act(group: Group[Any], rank: int) -> Array:
        data = ranks.kind.own(
            np.concatenate([np.full(length[rank][to], 10 * rank + to, np.int64) for to in range(size)])
        )
        arriving = [length[giver][rank] for giver in range(size)]
        output = ranks.kind.own(np.zeros(sum(arriving), np.int64))
        group.start_all_to_all(output, data, arriving, length[rank]).wait()
        return ranks.kind.plain(output)

    for rank, found in enumerate(ranks.all(act)):
        wanted = np.concatenate([np.full(length[giver][rank], 10 * giver + rank, np.int64) for giver in range(size)])
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("length", [1, 1000, 100_000])
def test_equal_stretches_are_gathered_in_place_and_from_elsewhere(ranks: RankedWorld, length: int) -> None:
    size = len(ranks.groups)
    wanted = np.repeat(np.arange(size, dtype=np.float64), length)

    def act(group: Group[Any], rank: int) -> list[Array]:
        outputs = [ranks.kind.own(np.zeros(size * length)) for _ in range(2)]
        outputs[0][rank * length : (rank + 1) * length] = rank
        group.start_all_gather(outputs[0], outputs[0][rank * length : (rank + 1) * length]).wait()
        group.start_all_gather(outputs[1], ranks.kind.own(np.full(length, float(rank)))).wait()
        return [ranks.kind.plain(each) for each in outputs]

    for found in ranks.all(act):
        assert all(np.array_equal(each, wanted) for each in found)


def test_a_late_rank_is_waited_for(ranks: RankedWorld) -> None:
    size = len(ranks.groups)
    early = ranks.start(lambda group, rank: group.gather(b"early"), range(1, size))
    assert not any(future.done() for future in early)
    assert ranks.groups[0].gather(b"late") == [b"late", *[b"early"] * (size - 1)]
    results(early)
