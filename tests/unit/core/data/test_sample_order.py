"""The canonical order's values are a promise: a job resumed by a newer Pliant goes on in the same order.

If a test with pinned values fails, the code is wrong, not the values.
"""

import pytest

from pliant.core.data.sample_order import Cursor, Order, keys, sides
from pliant.errors import BadInput

HUGE = 10**5000  # more digits than Python turns into decimal text


def _name(value: int) -> str:
    return hex(value) if value < HUGE else "huge"


def test_cursors_compare_as_they_come_in_time() -> None:
    assert Cursor(0, 7) < Cursor(0, 8) < Cursor(1, 0)
    assert max(Cursor(1, 2), Cursor(0, 99)) == Cursor(1, 2)


PINNED_WHOLE = [
    (0, 1, 0, [0]),
    (0, 2, 0, [0, 1]),
    (1, 2, 0, [1, 0]),
    (0, 3, 0, [1, 0, 2]),
    (0, 5, 0, [0, 4, 1, 3, 2]),
    (0, 5, 1, [4, 2, 3, 0, 1]),
    (1, 8, 0, [5, 7, 2, 3, 6, 1, 4, 0]),
    (-1, 8, 0, [3, 4, 1, 0, 5, 2, 6, 7]),
    (42, 23, 0, [1, 4, 15, 6, 3, 7, 13, 20, 16, 10, 17, 11, 21, 14, 19, 8, 18, 12, 9, 5, 22, 0, 2]),
]

PINNED_PLACES = [
    (42, 63, 0, 0, 6),
    (42, 63, 0, 62, 61),
    (42, 64, 0, 0, 57),
    (42, 64, 0, 63, 31),
    (0, 1000, 0, 0, 931),
    (0, 1000, 0, 999, 654),
    (0, 1000, 1, 999, 891),
    (-1, 50_000, 3, 12_345, 29022),
    (2**64, 1_281_167, 89, 1_281_166, 139953),
    (42, 1_000_000_000, 0, 0, 355013193),
    (42, 1_000_000_000, 0, 999_999_999, 623674900),
    (HUGE, 2**48, 7, 2**47 + 1, 216113131941619),
    (7, 2**62, 0, 2**62 - 1, 2162789268147062473),
    (7, 2**62, 10**30, 1, 1907224534804753789),
]


def test_epochs_of_another_length_take_the_next_samples_of_a_row_of_passes() -> None:
    passes = Order(1, 8)
    row = [*passes.take(0, range(8)), *passes.take(1, range(8)), *passes.take(2, range(8))]
    short, long = Order(1, 3, 8), Order(1, 12, 8)
    assert [sample for epoch in range(8) for sample in short.take(epoch, range(3))] == row
    assert [sample for epoch in range(2) for sample in long.take(epoch, range(12))] == row
    with pytest.raises(BadInput, match="not all inside an epoch of 3 samples"):
        short.take(0, range(4))


@pytest.mark.parametrize("data", [0, 2**62 + 1])
def test_data_of_no_length_is_refused(data: int) -> None:
    with pytest.raises(BadInput, match="data of 1 to 2\\*\\*62 samples"):
        Order(0, 5, data)


@pytest.mark.parametrize(("seed", "samples", "epoch", "expected"), PINNED_WHOLE)
def test_the_order_of_short_data_is_pinned(seed: int, samples: int, epoch: int, expected: list[int]) -> None:
    assert list(Order(seed, samples).take(epoch, range(samples))) == expected


@pytest.mark.parametrize(("seed", "samples", "epoch", "position", "expected"), PINNED_PLACES, ids=_name)
def test_the_order_of_long_data_is_pinned(seed: int, samples: int, epoch: int, position: int, expected: int) -> None:
    assert Order(seed, samples).at(epoch, position) == expected


@pytest.mark.parametrize("seed", [0, -1, 2**64, -(2**200), HUGE], ids=_name)
def test_any_integer_is_a_seed(seed: int) -> None:
    assert sorted(Order(seed, 100).take(0, range(100))) == list(range(100))


def test_seeds_that_differ_only_in_sign_or_far_up_give_other_orders() -> None:
    seeds = [1, -1, 1 + 2**64, 1 + 2**128, HUGE, HUGE + 1]
    assert len({Order(seed, 100).take(0, range(100)) for seed in seeds}) == len(seeds)


def test_seed_and_epoch_are_not_mixed_up() -> None:
    pairs = [(1, 2), (2, 1), (12, 0), (0x12, 0), (0, 0x12), (1, 0x20), (0x12, 2)]
    assert len({Order(seed, 100).take(epoch, range(100)) for seed, epoch in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("samples", "rectangle"),
    [
        (1, (2, 1)),
        (2, (2, 1)),
        (3, (2, 2)),
        (4, (2, 2)),
        (5, (4, 2)),
        (8, (4, 2)),
        (9, (4, 3)),
        (16, (4, 4)),
        (17, (6, 3)),
        (36, (6, 6)),
        (37, (8, 5)),
        (10**6, (1000, 1000)),
        (10**6 + 1, (1002, 999)),
        (2**62, (2**31, 2**31)),
    ],
)
def test_the_rectangle_holds_the_samples_barely_and_has_an_even_side(samples: int, rectangle: tuple[int, int]) -> None:
    a, b = rectangle
    assert a * (b - 1) < samples <= a * b
    assert sides(samples) == rectangle


def test_short_data_takes_more_passes() -> None:
    assert [2 * len(keys(0, 0, samples)) for samples in (1, 63, 64, 2**62)] == [24, 24, 8, 8]
    assert keys(0, 0, 63)[:4] == keys(0, 0, 64)


def test_a_position_can_be_asked_for_alone_or_in_any_range() -> None:
    order = Order(3, 1000)
    whole = order.take(1, range(1000))
    assert order.at(1, 0) == whole[0]
    assert order.at(1, 999) == whole[999]
    assert order.take(1, range(100, 200)) == whole[100:200]
    assert order.take(1, range(999, -1, -333)) == whole[999::-333]
    assert order.take(1, range(5, 5)) == ()
    assert order.take(1, range(1000, 1000)) == ()


@pytest.mark.parametrize("positions", [range(-1, 3), range(7, 11), range(10, 11), range(9, -2, -1), range(10, 5, -1)])
def test_positions_outside_the_epoch_are_refused(positions: range) -> None:
    with pytest.raises(BadInput, match=r"not all inside an epoch of 10 samples"):
        Order(0, 10).take(0, positions)


def test_epochs_are_counted_from_zero() -> None:
    assert Order(0, 1).at(0, 0) == 0
    with pytest.raises(BadInput, match="no epoch -1"):
        Order(0, 1).at(-1, 0)


@pytest.mark.parametrize("samples", [-1, 0, 2**62 + 1])
def test_an_order_needs_samples_that_it_can_number(samples: int) -> None:
    with pytest.raises(BadInput, match=f"between 1 and .* samples, not {samples}"):
        Order(0, samples)


def test_the_longest_order_has_a_last_sample() -> None:
    order = Order(0, 2**62)
    assert 0 <= order.at(0, 2**62 - 1) < 2**62
