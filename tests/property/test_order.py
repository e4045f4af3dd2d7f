"""The canonical order for any seed and length, and its array twin (P3, rule 21)."""

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pliant.core.data import ledger
from pliant.core.data.grid import Grid
from pliant.core.data.sample_order import Order, keys, sides
from pliant.errors import BadInput
from pliant.train.data import order as arrays

seeds = st.one_of(st.integers(), st.integers(-(2**300), 2**300))
epochs = st.integers(0, 10**6)
lengths = st.one_of(st.integers(1, 200), st.integers(1, 2**48), st.integers(2**61, 2**62))


@given(seeds, st.integers(1, 300), epochs)
def test_every_epoch_is_a_permutation(seed: int, samples: int, epoch: int) -> None:
    assert sorted(Order(seed, samples).take(epoch, range(samples))) == list(range(samples))


def mixed(value: int, key: int, side: int) -> int:
    """F of the construction, once more in plain words: mix with the key, then scale to the side."""
    z = (value ^ key) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 32) * 0x94D049BB133111EB % 2**64
    return (z >> 32) * side >> 32


def position_of(order: Order, epoch: int, sample: int) -> int:
    """Run the construction backwards: undo the passes, last one first, and walk the cycle the other way."""
    a, b = sides(order.samples)
    while True:
        x, y = divmod(sample, b)
        for key_x, key_y in reversed(keys(order.seed, epoch, order.samples)):
            y = (y - mixed(x, key_y, b)) % b
            x = (x - mixed(y, key_x, a)) % a
        sample = x * b + y
        if sample < order.samples:
            return sample


@given(seeds, lengths, epochs, st.data())
def test_the_order_of_any_length_can_be_undone(seed: int, samples: int, epoch: int, data: st.DataObject) -> None:
    order = Order(seed, samples)
    position = data.draw(st.integers(0, samples - 1))
    sample = order.at(epoch, position)
    assert 0 <= sample < samples
    assert position_of(order, epoch, sample) == position


@given(seeds, st.integers(1, 90), st.integers(1, 40), epochs, st.data())
def test_the_array_twin_goes_through_the_same_passes(
    seed: int, samples: int, length: int, epoch: int, data: st.DataObject
) -> None:
    order = Order(seed, samples, length)
    start = data.draw(st.integers(0, samples))
    positions = range(start, data.draw(st.integers(start, samples)))
    assert arrays.take(order, epoch, positions).tolist() == list(order.take(epoch, positions))


@given(seeds, lengths, epochs, st.data())
def test_the_array_twin_gives_the_same_samples(seed: int, samples: int, epoch: int, data: st.DataObject) -> None:
    order = Order(seed, samples)
    start = data.draw(st.integers(0, samples - 1))
    stop = data.draw(st.integers(start, min(samples, start + 100)))
    pace = data.draw(st.sampled_from([1, 3, -1, -7]))
    positions = range(start, stop, pace) if pace > 0 else range(stop - 1, start - 1, pace)
    taken = arrays.take(order, epoch, positions)
    assert taken.dtype == np.int64
    assert tuple(taken.tolist()) == order.take(epoch, positions)


@pytest.mark.parametrize("count", [arrays.BLOCK - 1, arrays.BLOCK, arrays.BLOCK + 1])
def test_the_array_twin_works_block_by_block(count: int) -> None:
    taken = arrays.take(Order(1, 20_000), 0, range(20_000 - count, 20_000))
    whole = arrays.take(Order(1, 20_000), 0, range(20_000))
    assert sorted(whole.tolist()) == list(range(20_000))
    assert taken.tolist() == whole[-count:].tolist()
    assert whole[::997].tolist() == list(Order(1, 20_000).take(0, range(0, 20_000, 997)))


def test_the_array_twin_refuses_what_the_core_refuses() -> None:
    with pytest.raises(BadInput, match="inside an epoch of 10 samples"):
        arrays.take(Order(0, 10), 0, range(11))
    with pytest.raises(BadInput, match="no epoch -1"):
        arrays.take(Order(0, 10), -1, range(1))
    with pytest.raises(BadInput, match="the grid has 9 samples and the order 10"):
        arrays.expected_digest(Grid(9, 3, 3, 1), Order(0, 10), 1)


@given(seeds, st.integers(1, 500), st.integers(1, 64), st.data())
@settings(max_examples=50)
def test_the_array_twin_expects_the_same_digests(seed: int, samples: int, batch: int, data: st.DataObject) -> None:
    grid = Grid(samples, batch, data.draw(st.integers(1, batch)), epochs=2)
    step = data.draw(st.integers(1, grid.total_steps))
    order = Order(seed, samples)
    assert arrays.expected_digest(grid, order, step) == ledger.expected_digest(grid, order, step)


@given(seeds, st.integers(30, 10**6), epochs, st.integers(1, 10**6))
def test_another_epoch_or_seed_is_another_order(seed: int, samples: int, epoch: int, off: int) -> None:
    head = range(30)
    here = Order(seed, samples).take(epoch, head)
    assert Order(seed, samples).take(epoch + off, head) != here
    assert Order(seed + off, samples).take(epoch, head) != here


def chi_square(counts: Counter[tuple[int, ...]], outcomes: int) -> float:
    """Return how far counts are from equal, in standard deviations of what chance alone would do."""
    expected = counts.total() / outcomes
    distance = sum((count - expected) ** 2 / expected for count in counts.values())
    distance += (outcomes - len(counts)) * expected
    freedom = outcomes - 1
    return (distance - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("samples", [2, 3, 4, 5])
def test_all_orders_of_tiny_data_are_equally_likely(samples: int) -> None:
    counts = Counter(Order(seed, samples).take(0, range(samples)) for seed in range(1500))
    assert chi_square(counts, math.factorial(samples)) < 3


@pytest.mark.parametrize("samples", [6, 7, 8, 9, 64])
def test_every_sample_is_equally_likely_at_every_position(samples: int) -> None:
    places = [Order(7, samples).take(epoch, range(samples)) for epoch in range(600)]
    for at in {0, 1, samples // 2, samples - 1}:
        assert chi_square(Counter((order[at],) for order in places), samples) < 3.5


def is_even(order: tuple[int, ...]) -> bool:
    return sum(order[i] > order[j] for j in range(len(order)) for i in range(j)) % 2 == 0


@pytest.mark.parametrize("samples", [7, 8, 9, 25])
def test_even_and_odd_orders_are_equally_likely(samples: int) -> None:
    """Of a rectangle with two odd sides (3 x 3 for 8 and 9, 5 x 5 for 25) only even orders would come."""
    even = sum(is_even(Order(seed, samples).take(0, range(samples))) for seed in range(400))
    assert 160 < even < 240


def test_neighbours_are_not_neighbours_afterwards() -> None:
    order = arrays.take(Order(11, 100_000), 0, range(100_000))
    steps = np.abs(np.diff(order))
    assert (steps == 1).sum() < 12  # two expected by chance
    assert (order == np.arange(100_000)).sum() < 12  # one expected
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.01
    assert abs(steps.mean() / 100_000 - 1 / 3) < 0.005


def test_short_data_needs_its_passes() -> None:
    """Compute the figures that `pliant.core.data.sample_order` gives for 8 samples, exactly, over all 40,320 orders."""
    a, b = sides(8)
    table = np.array(list(permutations(range(8))))
    place = 8 ** np.arange(8)
    codes = table @ place
    by_code = np.argsort(codes)

    def after(pass_: list[int]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """For every order the number of the one it turns into when this pass is done after it."""
        found: np.ndarray[tuple[int], np.dtype[np.intp]] = by_code[
            np.searchsorted(codes[by_code], np.array(pass_)[table] @ place)
        ]
        return found

    cells = [divmod(cell, b) for cell in range(8)]
    turns = [
        [after([(x + f[y]) % a * b + y for x, y in cells]) for f in product(range(a), repeat=b)],
        [after([x * b + (y + f[x]) % b for x, y in cells]) for f in product(range(b), repeat=a)],
    ]
    chances = np.zeros(len(table))
    chances[0] = 1
    off = []
    for turn in range(24):
        moves = turns[turn % 2]
        spread = np.zeros(len(table))
        for move in moves:
            spread[move] += chances / len(moves)
        chances = spread
        off.append(float(np.abs(chances - 1 / len(table)).sum() / 2))
    assert 0.275 < off[7] < 0.285
    assert off[23] < 0.01


class Reader(RuleBasedStateMachine):
    """One reads an epoch from its start, others look into it anywhere; all see the same order."""

    @initialize(seed=seeds, samples=st.integers(1, 400))
    def start(self, seed: int, samples: int) -> None:
        self.order = Order(seed, samples)
        self.epoch = 0
        self.read: list[int] = []
        self.before: tuple[int, ...] = ()

    @rule(count=st.integers(1, 60))
    def read_on(self, count: int) -> None:
        stop = min(self.order.samples, len(self.read) + count)
        self.read += self.order.take(self.epoch, range(len(self.read), stop))

    @rule()
    def finish_the_epoch(self) -> None:
        self.read_on(self.order.samples)
        assert sorted(self.read) == list(range(self.order.samples))
        if self.order.samples >= 30:
            assert tuple(self.read) != self.before
        self.before = tuple(self.read)
        self.epoch += 1
        self.read = []

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        if self.read:
            position = data.draw(st.integers(0, len(self.read) - 1))
            assert self.order.at(self.epoch, position) == self.read[position]

    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        if len(self.read) < self.order.samples:
            position = data.draw(st.integers(len(self.read), self.order.samples - 1))
            assert self.order.at(self.epoch, position) not in self.read

    @rule()
    def come_back_as_a_new_process(self) -> None:
        keys.cache_clear()
        sides.cache_clear()
        self.order = Order(self.order.seed, self.order.samples)

    @invariant()
    def nothing_is_read_twice_and_arrays_agree(self) -> None:
        assert len(set(self.read)) == len(self.read)
        assert arrays.take(self.order, self.epoch, range(len(self.read))).tolist() == self.read


TestReader = Reader.TestCase
TestReader.settings = settings(max_examples=40, stateful_step_count=15)


@given(
    samples=st.integers(1, 90),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 3),
    turns=st.integers(1, 2),
    seed=seeds,
    block=st.sampled_from([1, 20, 2**14]),
    data=st.data(),
)
def test_the_digests_of_many_steps_are_those_of_each(
    samples: int, batch: int, epochs: int, turns: int, seed: int, block: int, data: st.DataObject
) -> None:
    grid = Grid(samples, batch, data.draw(st.integers(1, batch)), epochs, turns)
    start = data.draw(st.integers(1, grid.total_steps))
    steps = range(start, data.draw(st.integers(start, grid.total_steps + 1)))
    shuffled = Order(seed, samples)
    before, arrays.BLOCK = arrays.BLOCK, block
    try:
        found = arrays.expected_digests(grid, lambda epoch, positions: arrays.take(shuffled, epoch, positions), steps)
    finally:
        arrays.BLOCK = before
    assert found == [ledger.expected_digest(grid, shuffled, step) for step in steps]


def test_samples_in_sequence_go_on_from_epoch_to_epoch() -> None:
    assert arrays.take_in_sequence(5, 3, 0, range(3)).tolist() == [0, 1, 2]
    assert arrays.take_in_sequence(5, 3, 1, range(3)).tolist() == [3, 4, 0]
